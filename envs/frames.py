"""Frames: compact JSON that lets a viewer draw a state without knowing the environment.

Two kinds. A **grid** has `size` [rows, cols], `cells` (one string per row, one character per cell),
`legend` (character -> what it is) and `overlays` (things on cells: {"is", "at": [row, col]}).
A **card** has `title` and `lines` of text. Keys are sorted, so equal states give equal frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
}
_OTHER_COLOUR = (150, 110, 180)


def grid_frame(
    cells: Sequence[str], legend: Mapping[str, str], overlays: Iterable[tuple[str, Position]]
) -> str:
    """The frame of a board."""
    frame = {
        "kind": "grid",
        "size": [len(cells), len(cells[0])],
        "cells": list(cells),
        "legend": dict(legend),
        "overlays": [{"is": name, "at": list(at)} for name, at in overlays],
    }
    return json.dumps(frame, sort_keys=True, separators=(",", ":"))


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
    rows, cols = data["size"]
    image = np.zeros((rows * tile, cols * tile, 3), dtype=np.uint8)
    for row, line in enumerate(data["cells"]):
        for col, char in enumerate(line):
            _paint(image, (row, col), data["legend"][char], tile, inset=0)
    for overlay in data["overlays"]:
        row, col = overlay["at"]
        _paint(image, (row, col), overlay["is"], tile, inset=max(1, tile // 5))
    return image


def _paint(image: NDArray[np.uint8], at: Position, name: str, tile: int, inset: int) -> None:
    top, left = at[0] * tile, at[1] * tile
    # A pixel line of the background stays between cells, so that equal neighbours can be counted.
    image[top + inset : top + tile - max(inset, 1), left + inset : left + tile - max(inset, 1)] = (
        _COLOURS.get(name, _OTHER_COLOUR)
    )
