"""Pictures and frames: what is one, and what is refused."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib

import pytest
from PIL import Image

from echoscope.text.pictures import (
    MAX_BYTES,
    MAX_SIDE,
    PictureError,
    card_frame,
    encode_picture,
    grid_frame,
    open_picture,
    picture_key,
    picture_size,
    read_frame,
)

RED = encode_picture(Image.new("RGB", (3, 2), (255, 0, 0)))


def saved(kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (3, 2)).save(out, format=kind, **options)
    return out.getvalue()


def claimed(width: int, height: int) -> bytes:
    """A small file whose header says that the picture is of this size."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return RED[:8] + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + RED[33:]


def test_a_picture_is_read_as_it_was_written() -> None:
    picture = open_picture(RED)
    assert (picture.mode, picture.size, picture_size(RED)) == ("RGB", (3, 2), (3, 2))
    assert picture.getpixel((2, 1)) == (255, 0, 0)


@pytest.mark.parametrize("num_colours", [1, 2, 200, 256, 300])
def test_no_colour_is_lost(num_colours: int) -> None:
    picture = Image.new("RGB", (num_colours, 2))
    for x in range(num_colours):
        picture.putpixel((x, 1), (x % 256, x // 256, 7 * x % 256))
    assert open_picture(encode_picture(picture)).tobytes() == picture.tobytes()


def test_the_key_is_a_hash_of_the_bytes() -> None:
    assert picture_key(RED) == hashlib.blake2b(RED, digest_size=16).hexdigest()


@pytest.mark.parametrize(
    ("png", "message"),
    [
        (b"", "not a PNG file"),
        (b"<svg onload='alert(1)'/>", "not a PNG file"),
        (saved("JPEG"), "not a PNG file"),
        (saved("GIF"), "not a PNG file"),
        (saved("PNG", save_all=True, append_images=[Image.new("RGB", (3, 2), 9)]), "animation"),
        (RED[:-20], "not a PNG file"),
        (RED[:40] + b"\x00" + RED[41:], "not a PNG file"),
        (claimed(MAX_SIDE + 1, 1), f"a side may have {MAX_SIDE}"),
        (claimed(2**31 - 1, 2**31 - 1), f"a side may have {MAX_SIDE}|not a PNG file"),
        (RED + b"x" * MAX_BYTES, "may have 1,000,000"),
        ("text", "not str"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(png: bytes, message: str) -> None:
    with pytest.raises(PictureError, match=message) as refusal:
        open_picture(png)
    assert "\n" not in str(refusal.value)


def test_frames_read_back() -> None:
    grid = grid_frame(["#_"], {"#": "wall", "_": "floor"}, [("player", (0, 1))])
    assert read_frame(grid)["overlays"] == [{"is": "player", "at": [0, 1]}]
    assert read_frame(card_frame("Title", ["a", "b"]))["lines"] == ["a", "b"]


@pytest.mark.parametrize(
    "frame",
    [
        "[]",
        '{"kind":"film"}',
        '{"kind":"card","lines":[1]}',
        '{"kind":"grid","cells":[]}',
        '{"kind":"grid","size":[1,1],"cells":["##"],"legend":{"#":"wall"}}',
        '{"kind":"grid","size":[1,2],"cells":["#x"],"legend":{"#":"wall"}}',
        '{"kind":"grid","size":[1,1],"cells":["#"],"legend":{"#":"wall"},'
        '"overlays":[{"is":"player","at":[0,1]}]}',
        '{"kind":"grid","size":[1,5000],"cells":["' + "#" * 5000 + '"],"legend":{"#":"wall"}}',
    ],
)
def test_bad_frames_are_refused(frame: str) -> None:
    with pytest.raises(ValueError, match=r"grid|card"):
        read_frame(frame)
