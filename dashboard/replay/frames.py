"""Stored frames, read again without trust: JSON text of any origin -> a bounded `Grid` or `Card`.

Whatever is no frame (`text/pictures.py`) becomes a card that says why and shows the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from echoscope.text import pictures
from echoscope.text.sentences import wrapped

from ..escaping import visible

MAX_NAME_CHARS = 40
MAX_LINES = 60
MAX_LINE_CHARS = 400

Position = tuple[int, int]
"""Row and column, from 0 at the top left."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """Something that stands on a cell."""

    name: str
    at: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A board: one character per cell, what each means, and what stands on cells."""

    cells: tuple[str, ...]
    legend: dict[str, str]
    overlays: tuple[Overlay, ...]
    block: int
    """Side of the square blocks that thicker lines part; larger than the board: none."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.cells), len(self.cells[0])

    def cell(self, position: Position) -> str:
        """What a cell is."""
        return self.legend[self.cells[position[0]][position[1]]]

    def find(self, name: str) -> Position | None:
        """Where the first overlay of that name stands."""
        return next((overlay.at for overlay in self.overlays if overlay.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Lines of text under a title."""

    title: str
    lines: tuple[str, ...]

    def find(self, name: str) -> Position | None:
        """None: nothing stands anywhere."""
        return None


Frame = Grid | Card


def read_frame(text: str) -> Frame:
    """The content of a stored frame. Never raises: what is no frame is a card that says so."""
    try:
        frame = pictures.read_frame(text)
    except ValueError as error:
        safe = visible(text, limit=MAX_LINE_CHARS * 4)
        lines = tuple(row for line in safe.split("\n")[:MAX_LINES] for row in wrapped(line, 80))
        return Card(title="Not a frame", lines=(f"{error}. It holds:", *lines))
    if frame["kind"] == "card":
        return Card(title=_name(frame["title"], 2), lines=_shown_lines(frame["lines"]))
    return Grid(
        cells=tuple(frame["cells"]),
        legend={char: _name(name) for char, name in frame["legend"].items()},
        overlays=tuple(
            Overlay(_name(o["is"]), (o["at"][0], o["at"][1])) for o in frame["overlays"]
        ),
        block=frame["block"],
    )


def _name(text: str, times: int = 1) -> str:
    return visible(text, times * MAX_NAME_CHARS)


def _shown_lines(lines: Sequence[str]) -> tuple[str, ...]:
    safe = tuple(visible(line, MAX_LINE_CHARS) for line in lines[:MAX_LINES])
    left_out = len(lines) - MAX_LINES
    return (*safe, f"[{left_out:,} more lines are not shown]") if left_out > 0 else safe
