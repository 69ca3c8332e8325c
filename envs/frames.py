"""Frames: compact JSON that lets a viewer draw a state without knowing the environment.

`to_png` draws a frame as a picture, for people and, of an observation's view, for policies that see
(`render: rgb`).

Two kinds. A **grid** has `size` [rows, cols], `cells` (one string per row, one character per cell),
`legend` (character -> what it is) and `overlays` (things on cells: {"is", "at": [row, col]}); it
may have `block`, the side of square blocks that thicker lines part.
A **card** has `title` and `lines` of text. Keys are sorted, so equal states give equal frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from echoscope.text.png import encode_picture
from echoscope.text.sentences import wrapped

from .worlds.grid.geometry import Position

MAX_FRAME_CELLS = 64 * 64

_COLOURS: Mapping[str, tuple[int, int, int]] = {
    "floor": (235, 232, 225),
    "ice": (214, 234, 248),
    "wall": (84, 84, 92),
    "hole": (23, 42, 69),
    "goal": (46, 160, 67),
    "target": (222, 120, 98),
    "box": (181, 131, 73),
    "player": (52, 101, 220),
    "white": (247, 247, 244),
    "yellow": (244, 215, 59),
    "orange": (245, 154, 60),
    "red": (232, 104, 95),
    "green": (108, 192, 122),
    "blue": (127, 165, 245),
    "nothing": (0, 0, 0),
}
_OTHER_COLOUR = (190, 165, 210)
_OUTLINES: Mapping[str, tuple[int, int, int]] = {
    "placed": (52, 101, 220),
    "conflict": (200, 40, 40),
}
"""Overlays that are drawn as an edge: what they mark stays in sight."""
_SIDES: Mapping[str, Position] = {
    "facing north": (-1, 0), "facing east": (0, 1), "facing south": (1, 0), "facing west": (0, -1),
}  # fmt: skip
"""Overlays that say where somebody looks: a stripe at that edge of the tile."""
_INK, _PAPER = (20, 20, 20), (255, 255, 255)

MAX_PNG_SIDE = 1024
"""Pixels of a drawn board, at most; its tiles get smaller."""
_PNG_TILE = 32
_CARD_COLUMNS, _CARD_ROWS = 64, 48
"""Characters of a drawn card, at most; the rest is left out."""
_CHAR, _LINE, _EDGE = 6, 14, 8
"""Pixels: width of a character, height of a line, and the edge around a card."""


def grid_frame(
    cells: Sequence[str],
    legend: Mapping[str, str],
    overlays: Iterable[tuple[str, Position]],
    *,
    block: int | None = None,
) -> str:
    """The frame of a board."""
    frame: dict[str, Any] = {} if block is None else {"block": block}
    frame |= {
        "kind": "grid",
        "size": [len(cells), len(cells[0])],
        "cells": list(cells),
        "legend": dict(legend),
        "overlays": [{"is": name, "at": list(at)} for name, at in overlays],
    }
    return json.dumps(frame, sort_keys=True, separators=(",", ":"))


class BoardFrames:
    """Frames of one board whose overlays move: `frame(overlays)` is `grid_frame(..., overlays)`.

    What stays is written once.
    """

    def __init__(self, cells: Sequence[str], legend: Mapping[str, str]) -> None:
        # Of the sorted keys only "size" follows the overlays.
        self._head, _, self._tail = grid_frame(cells, legend, ()).rpartition("[],")

    def frame(self, overlays: Iterable[tuple[str, Position]]) -> str:
        """The frame with these overlays; names are plain text without quotes or backslashes."""
        listed = ",".join(f'{{"at":[{row},{col}],"is":"{name}"}}' for name, (row, col) in overlays)
        return f"{self._head}[{listed}],{self._tail}"


def card_frame(title: str, lines: Iterable[str]) -> str:
    """The frame of a world without a board."""
    frame = {"kind": "card", "title": title, "lines": list(lines)}
    return json.dumps(frame, sort_keys=True, separators=(",", ":"))


def read_frame(frame: str) -> dict[str, Any]:
    """The checked content of a frame; ValueError says what does not fit."""
    data = json.loads(frame)
    if not isinstance(data, dict) or data.get("kind") not in ("grid", "card"):
        raise ValueError("a frame must be a JSON object of kind 'grid' or 'card'")
    if data["kind"] == "card":
        lines = data.get("lines")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise ValueError("a card's 'lines' must be a list of strings")
        return data
    cells, size, legend = data.get("cells"), data.get("size"), data.get("legend")
    if not isinstance(cells, list) or not cells or not all(isinstance(r, str) for r in cells):
        raise ValueError("a grid's 'cells' must be a list of strings")
    rows, cols = len(cells), len(cells[0])
    if size != [rows, cols] or any(len(row) != cols for row in cells) or not cols:
        raise ValueError(f"a grid's 'size' is {size}, but 'cells' has {rows} rows of {cols}")
    if rows * cols > MAX_FRAME_CELLS:
        raise ValueError(f"a grid of {rows} x {cols} cells exceeds {MAX_FRAME_CELLS} cells")
    if not isinstance(legend, dict) or set("".join(cells)) - set(legend):
        raise ValueError("a grid's 'legend' must name every character of 'cells'")
    block = data.get("block", 1)
    if type(block) is not int or block < 1:
        raise ValueError(f"a grid's 'block' is {block!r}, but must be a positive integer")
    for overlay in data.get("overlays", ()):
        row, col = overlay["at"]
        if not (0 <= row < rows and 0 <= col < cols and isinstance(overlay["is"], str)):
            raise ValueError(f"an overlay lies outside the grid: {overlay}")
    return data


def to_rgb(frame: str, tile: int = 16) -> NDArray[np.uint8]:
    """A grid frame as pixels, (rows * tile, cols * tile, 3). ValueError for a card."""
    data = read_frame(frame)
    if data["kind"] != "grid":
        raise ValueError("only grid frames can be drawn as pixels")
    return np.array(_grid_image(data, tile))


@lru_cache(maxsize=1024)
def to_png(frame: str) -> bytes:
    """A frame as a PNG picture: equal frames give equal bytes.

    A board has tiles of 32 pixels, fewer where a side would be longer than `MAX_PNG_SIDE`. What
    has no colour of its own, such as a number, stands on its cell as text. A card is text on
    paper, at most 64 characters wide and 48 lines long.

    Raises:
        ValueError: not a frame; see `read_frame`.
    """
    data = read_frame(frame)
    if data["kind"] == "card":
        return encode_picture(_card_image(data))
    return encode_picture(_grid_image(data, min(_PNG_TILE, MAX_PNG_SIDE // max(data["size"]))))


def _grid_image(data: Mapping[str, Any], tile: int) -> Image.Image:
    rows, cols = data["size"]
    image = Image.new("RGB", (cols * tile, rows * tile))
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(data["cells"]):
        for col, char in enumerate(line):
            name = data["legend"][char]
            _paint(draw, (row, col), name, tile, inset=0)
            if name not in _COLOURS:
                _write(draw, (row, col), name if name.isdecimal() else char, tile)
    for overlay in data["overlays"]:
        row, col = overlay["at"]
        if overlay["is"] in _SIDES:
            _paint_side(draw, (row, col), _SIDES[overlay["is"]], tile)
            continue
        name, _, thing = overlay["is"].partition(" ")
        if not thing or name not in _COLOURS:  # else a thing with a colour, as "red key"
            name = thing = overlay["is"]
        _paint(draw, (row, col), name, tile, inset=max(1, tile // 5))
        if thing not in {*_COLOURS, *_OUTLINES}:
            _write(draw, (row, col), thing[:1].upper(), tile)
    block = tile * data.get("block", MAX_FRAME_CELLS)
    for x in range(block, cols * tile, block):
        draw.line((x - 1, 0, x - 1, rows * tile), fill=_PAPER, width=2)
    for y in range(block, rows * tile, block):
        draw.line((0, y - 1, cols * tile, y - 1), fill=_PAPER, width=2)
    return image


def _paint(draw: ImageDraw.ImageDraw, at: Position, name: str, tile: int, inset: int) -> None:
    top, left = at[0] * tile, at[1] * tile
    # A pixel line of the background stays between cells, so that equal neighbours can be counted.
    last = tile - max(inset, 1) - 1
    if name in _OUTLINES:
        box = (left + 1, top + 1, left + tile - 3, top + tile - 3)
        draw.rectangle(box, outline=_OUTLINES[name], width=max(1, tile // 12))
    elif last >= inset:
        box = (left + inset, top + inset, left + last, top + last)
        draw.rectangle(box, fill=_COLOURS.get(name, _OTHER_COLOUR))


def _paint_side(draw: ImageDraw.ImageDraw, at: Position, side: Position, tile: int) -> None:
    top, left, width = at[0] * tile, at[1] * tile, max(1, tile // 6)
    low, high = (0, tile - 2 - width), (width, tile - 2)
    rows = (0, tile - 2) if not side[0] else (low[side[0] > 0], high[side[0] > 0])
    cols = (0, tile - 2) if not side[1] else (low[side[1] > 0], high[side[1] > 0])
    draw.rectangle((left + cols[0], top + rows[0], left + cols[1], top + rows[1]), fill=_INK)


def _write(draw: ImageDraw.ImageDraw, at: Position, text: str, tile: int) -> None:
    """Text in the middle of a tile, where the tile has room for it."""
    if len(text) * _CHAR <= tile - 2 and tile >= _LINE:
        centre = (at[1] * tile + tile // 2, at[0] * tile + tile // 2)
        left = centre[0] - len(text) * _CHAR // 2
        draw.text((left, centre[1] - _LINE // 2 + 1), _printable(text), fill=_INK, font=_font())


def _card_image(data: Mapping[str, Any]) -> Image.Image:
    lines = [str(data.get("title") or ""), *data["lines"]]
    rows = [
        row
        for line in lines[:_CARD_ROWS]
        for row in wrapped(line[: _CARD_COLUMNS * _CARD_ROWS], _CARD_COLUMNS)
    ][:_CARD_ROWS]
    size = (_CARD_COLUMNS * _CHAR + 2 * _EDGE, len(rows) * _LINE + 2 * _EDGE)
    image = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(image)
    for number, row in enumerate(rows):
        draw.text((_EDGE, _EDGE + number * _LINE), _printable(row), fill=_INK, font=_font())
    return image


def _printable(text: str) -> str:
    """What the font can draw: anything beyond Latin-1 becomes "?"."""
    shown = text.encode("latin-1", "replace").decode("latin-1")
    return "".join(char if char.isprintable() else " " for char in shown)


@lru_cache(maxsize=1)
def _font() -> ImageFont.ImageFont:
    """Pillow's own bitmap font: the same pixels on every machine, unlike a font of the system."""
    return ImageFont.load_default_imagefont()
