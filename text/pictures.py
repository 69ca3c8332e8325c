"""What a world shows beside its text, read without trust: pictures and frames.

A picture is the bytes of a PNG file, named by its content. A frame is compact JSON that lets a
viewer draw a state without knowing the environment. There are two kinds. A **grid** has `size`
[rows, cols], `cells` (one string per row, one character per cell), `legend` (character -> what it
is) and `overlays` (things on cells: {"is", "at": [row, col]}); it may have `block`, the side of
square blocks that thicker lines part. A **card** has `title` and `lines` of text. Keys are sorted,
so equal states give equal frames.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from PIL import Image

MAX_BYTES = 1_000_000
"""Of one picture."""
MAX_SIDE = 2_048
"""Pixels."""
KEY_CHARS = 32
MAX_FRAME_CHARS = 200_000
MAX_FRAME_CELLS = 64 * 64
MAX_OVERLAYS = 512
_as_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


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


def grid_frame(
    cells: Sequence[str],
    legend: Mapping[str, str],
    overlays: Iterable[tuple[str, tuple[int, int]]],
    *,
    block: int | None = None,
) -> str:
    """The frame of a board; overlays are names with (row, column)."""
    frame: dict[str, Any] = {} if block is None else {"block": block}
    frame |= {
        "kind": "grid",
        "size": [len(cells), len(cells[0])],
        "cells": list(cells),
        "legend": dict(legend),
        "overlays": [{"is": name, "at": list(position)} for name, position in overlays],
    }
    return _as_json(frame)


def card_frame(title: str, lines: Iterable[str]) -> str:
    """The frame of a world without a board."""
    frame = {"kind": "card", "title": title, "lines": list(lines)}
    return _as_json(frame)


def read_frame(text: str) -> dict[str, Any]:
    """The checked content of a frame, with every key of its kind.

    Raises:
        ValueError: it is none; what does not fit.
    """
    if len(text) > MAX_FRAME_CHARS:
        raise ValueError(f"a frame has {len(text):,} characters, but may have {MAX_FRAME_CHARS:,}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("a frame must be JSON, of a grid or a card") from None
    if not isinstance(data, dict) or data.get("kind") not in ("grid", "card"):
        raise ValueError("a frame must be a JSON object of kind 'grid' or 'card'")
    if data["kind"] == "card":
        data = {"title": "", **data}
        if not isinstance(data["title"], str) or not _are_texts(data.get("lines")):
            raise ValueError("a card's 'title' must be a string, and 'lines' a list of strings")
        return data
    data = {"block": MAX_FRAME_CELLS, "overlays": [], **data}
    cells, legend, block = data.get("cells"), data.get("legend"), data["block"]
    if not _are_texts(cells) or not cells or not cells[0] or len(set(map(len, cells))) > 1:
        raise ValueError("a grid's 'cells' must be strings of one length")
    rows, cols = len(cells), len(cells[0])
    if data.get("size") != [rows, cols]:
        raise ValueError(f"a grid's 'size' must be that of its 'cells', [{rows}, {cols}]")
    if rows * cols > MAX_FRAME_CELLS:
        raise ValueError(f"a grid has {rows} x {cols} cells, but may have {MAX_FRAME_CELLS:,}")
    named = set(legend) if isinstance(legend, dict) and _are_texts([*legend.values()]) else set()
    if set("".join(cells)) - named:
        raise ValueError("a grid's 'legend' must name every character of 'cells'")
    if type(block) is not int or not 1 <= block <= MAX_FRAME_CELLS:
        raise ValueError("a grid's 'block' must be a positive whole number")
    overlays = data["overlays"]
    if not isinstance(overlays, list) or len(overlays) > MAX_OVERLAYS:
        raise ValueError(f"a grid's 'overlays' must be a list of at most {MAX_OVERLAYS}")
    if not all(_is_overlay(overlay, rows, cols) for overlay in overlays):
        raise ValueError("a grid's 'overlays' must have a name 'is', and a place 'at' on the grid")
    return data


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_overlay(value: Any, rows: int, cols: int) -> bool:
    match value:
        case {"is": str(), "at": [int(row), int(col)]}:
            is_flag = isinstance(row, bool) or isinstance(col, bool)
            return not is_flag and 0 <= row < rows and 0 <= col < cols
    return False
