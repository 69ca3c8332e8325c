"""Stored frames, read again without trust: JSON text of any origin -> a bounded `Grid` or `Card`.

The two kinds that environments write (docs/environments.md): a **grid** has `size`, `cells`,
`legend` and `overlays`; a **card** has `title` and `lines`. Whatever is neither becomes a card that
says why and shows the text. To add a kind: a class here, a reader in `_READERS`, a painter in
`boards.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..escaping import visible

MAX_JSON_CHARS = 200_000
MAX_CELLS = 64 * 64
MAX_OVERLAYS = 512
MAX_NAME_CHARS = 40
MAX_LINES = 60
MAX_LINE_CHARS = 400

Position = tuple[int, int]
"""Row and column, from 0 at the top left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Something that stands on a cell."""

    name: str
    at: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A board: one character per cell, what each means, and what stands on cells."""

    cells: tuple[str, ...]
    legend: Mapping[str, str]
    overlays: tuple[Overlay, ...] = ()
    block: int = MAX_CELLS
    """Side of the square blocks that thicker lines part; larger than the board: none."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.cells), len(self.cells[0])

    def kind(self, at: Position) -> str:
        """What a cell is."""
        return self.legend[self.cells[at[0]][at[1]]]

    def find(self, name: str) -> Position | None:
        """Where the first overlay of that name stands."""
        return next((overlay.at for overlay in self.overlays if overlay.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Lines of text under a title."""

    title: str
    lines: tuple[str, ...]


Frame = Grid | Card


class FrameError(ValueError):
    """The text is no frame; says what does not fit."""


def read_frame(text: str) -> Frame:
    """The content of a stored frame. Never raises: what is no frame is a card that says so."""
    try:
        return _read(text)
    except FrameError as problem:
        shown = visible(text, limit=MAX_LINE_CHARS * 4)
        return Card(title=f"Not a frame: {problem}", lines=_wrapped(shown))


def _read(text: str) -> Frame:
    if len(text) > MAX_JSON_CHARS:
        raise FrameError(f"{len(text):,} characters, at most {MAX_JSON_CHARS:,} are read")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError("not JSON") from error
    if not isinstance(data, dict):
        raise FrameError("not a JSON object")
    reader = _READERS.get(data["kind"]) if isinstance(data.get("kind"), str) else None
    if reader is None:
        raise FrameError(f"unknown kind, known are {' and '.join(sorted(_READERS))}")
    return reader(data)


def _card(data: Mapping[str, Any]) -> Card:
    title, lines = data.get("title", ""), data.get("lines")
    if not isinstance(title, str):
        raise FrameError("'title' must be text")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise FrameError("'lines' must be a list of texts")
    shown = [visible(line, MAX_LINE_CHARS) for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        shown.append(f"[{len(lines) - MAX_LINES:,} more lines are not shown]")
    return Card(title=visible(title, MAX_NAME_CHARS * 2), lines=tuple(shown))


def _grid(data: Mapping[str, Any]) -> Grid:
    cells, legend = data.get("cells"), data.get("legend")
    if not isinstance(cells, list) or not all(isinstance(row, str) for row in cells):
        raise FrameError("'cells' must be a list of texts")
    if not cells or not cells[0] or any(len(row) != len(cells[0]) for row in cells):
        raise FrameError("'cells' must be rows of one length")
    rows, cols = len(cells), len(cells[0])
    if rows * cols > MAX_CELLS:
        raise FrameError(f"{rows} x {cols} cells, at most {MAX_CELLS:,} are drawn")
    if data.get("size") != [rows, cols]:
        raise FrameError("'size' differs from 'cells'")
    if not isinstance(legend, dict) or set("".join(cells)) - set(legend):
        raise FrameError("'legend' must name every character of 'cells'")
    names = {char: legend[char] for char in set("".join(cells))}
    if not all(isinstance(name, str) for name in names.values()):
        raise FrameError("'legend' must hold texts")
    return Grid(
        cells=tuple(cells),
        legend={char: visible(name, MAX_NAME_CHARS) for char, name in names.items()},
        overlays=_overlays(data.get("overlays", []), rows, cols),
        block=_block(data.get("block", MAX_CELLS)),
    )


def _block(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_CELLS:
        raise FrameError(f"'block' must be an integer from 1 to {MAX_CELLS}")
    return value


def _overlays(found: Any, rows: int, cols: int) -> tuple[Overlay, ...]:
    if not isinstance(found, list) or len(found) > MAX_OVERLAYS:
        raise FrameError(f"'overlays' must be a list of at most {MAX_OVERLAYS}")
    return tuple(_overlay(item, rows, cols) for item in found)


def _overlay(item: Any, rows: int, cols: int) -> Overlay:
    at = item.get("at") if isinstance(item, dict) else None
    if not isinstance(at, list) or len(at) != 2 or any(type(n) is not int for n in at):
        raise FrameError("an overlay's 'at' must be [row, column]")
    if not (0 <= at[0] < rows and 0 <= at[1] < cols):
        raise FrameError("an overlay lies outside the grid")
    if not isinstance(item.get("is"), str):
        raise FrameError("an overlay's 'is' must be text")
    return Overlay(name=visible(item["is"], MAX_NAME_CHARS), at=(at[0], at[1]))


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Frame]] = {"card": _card, "grid": _grid}


def _wrapped(text: str) -> tuple[str, ...]:
    size = 80
    return tuple(
        line[at : at + size]
        for line in text.split("\n")[:MAX_LINES]
        for at in range(0, max(len(line), 1), size)
    )
