"""Pictures as the bytes of PNG files: checked without trust, and named by their content."""

from __future__ import annotations

import hashlib
import io

from PIL import Image

MAX_BYTES = 1_000_000
"""Of one picture."""
MAX_SIDE = 2_048
"""Pixels."""
KEY_CHARS = 32


class PictureError(ValueError):
    """Bytes that are no PNG picture within the limits; one sentence."""


def picture_key(png: bytes) -> str:
    """The name of a picture: 32 hex characters of blake2b over its bytes."""
    return hashlib.blake2b(png, digest_size=KEY_CHARS // 2).hexdigest()


def open_picture(png: bytes) -> Image.Image:
    """The decoded picture, in RGB.

    Raises:
        PictureError: no bytes, too many of them, no PNG, several pictures in one, too many pixels,
            or pixels that cannot be decoded.
    """
    if not isinstance(png, bytes):
        raise PictureError(f"a picture is the bytes of a PNG file, not {type(png).__name__}")
    if len(png) > MAX_BYTES:
        raise PictureError(f"a picture has {len(png):,} bytes, but may have {MAX_BYTES:,}")
    try:
        # The size stands in the header: nothing is decoded before it is known.
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            width, height = image.size
            if max(width, height) > MAX_SIDE:
                raise PictureError(
                    f"a picture has {width} x {height} pixels, but a side may have {MAX_SIDE}"
                )
            if getattr(image, "n_frames", 1) != 1:
                raise PictureError("a picture is one PNG picture, not an animation")
            image.verify()  # of its checksums, to the last part; it closes the file
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            return image.convert("RGB")
    except PictureError:
        raise
    except Exception as error:  # noqa: BLE001 - Pillow raises many kinds for hostile bytes
        reason = " ".join(str(error).split())[:100]
        raise PictureError(f"a picture is not a PNG file that can be read ({reason})") from None


def picture_size(png: bytes) -> tuple[int, int]:
    """Width and height in pixels of a picture that is whole and within the limits.

    Raises:
        PictureError: see `open_picture`.
    """
    return open_picture(png).size


def encode_picture(image: Image.Image) -> bytes:
    """A picture as PNG, without loss and without any text in it.

    The same pixels give the same bytes under one version of Pillow. A drawing of few colours gets a
    palette.
    """
    picture = image.convert("RGB")
    if picture.getcolors(maxcolors=256) is not None:
        few = picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        if few.convert("RGB").tobytes() == picture.tobytes():
            picture = few
    out = io.BytesIO()
    picture.save(out, format="PNG", compress_level=9)
    return out.getvalue()
