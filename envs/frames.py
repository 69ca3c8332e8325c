"""Frames: compact JSON that lets a viewer draw a state without knowing the environment.

Two kinds. A **grid** has `size` [rows, cols], `cells` (one string per row, one character per cell),
`legend` (character -> what it is) and `overlays` (things on cells: {"is", "at": [row, col]}); it
may have `block`, the side of square blocks that thicker lines part.
A **card** has `title` and `lines` of text. Keys are sorted, so equal states give equal frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_FRAME_CELLS = 64 * 64
_as_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


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
