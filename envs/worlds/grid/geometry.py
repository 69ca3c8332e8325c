"""What the board worlds share: directions, distances, and how an offset is said in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from ...base import Observation

Position = tuple[int, int]
"""(row, column), from 0 at the top left."""

BoardFormat = Literal["grid", "coord", "both", "relative"]
"""How an observation shows a board: `grid` draws it, `coord` lists what stands where, `both` does
both, and `relative` says in one line what matters to the next move."""

PlainBoardFormat = Literal["grid", "coord", "both"]
"""The formats of a board for which no `relative` line is written."""

MOVES: Mapping[str, Position] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Direction -> (row change, column change), in the order in which everything is listed."""


def board_text(
    form: BoardFormat,
    *,
    grid: Callable[[], str],
    coord: Callable[[], str],
    relative: Callable[[], str] = str,
) -> str:
    """The board in a format; what is not asked for is not written."""
    if form == "relative":
        return relative()
    parts = [coord()] if form in ("coord", "both") else []
    if form in ("grid", "both"):
        parts.append(grid())
    return "\n".join(parts)


def board_observation(
    form: BoardFormat,
    frame: str,
    *,
    grid: Callable[[], str],
    coord: Callable[[], str],
    relative: Callable[[], str],
) -> Observation:
    """The board in a format."""
    text = board_text(form, grid=grid, coord=coord, relative=relative)
    return Observation(text=text, frame=frame)


def shift(at: Position, move: str) -> Position:
    """The neighbour of `at` in a direction."""
    row, col = MOVES[move]
    return at[0] + row, at[1] + col


def offset_words(start: Position, end: Position) -> str:
    """How to get from `start` to `end`: "2 up 1 right", "3 left", "here"."""
    down, right = end[0] - start[0], end[1] - start[1]
    words = []
    if down:
        words.append(f"{abs(down)} {'down' if down > 0 else 'up'}")
    if right:
        words.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " ".join(words) if words else "here"


def distances(target: Position, free: Collection[Position]) -> dict[Position, int]:
    """Length of the shortest walk from every reachable free cell to `target`."""
    lengths = {target: 0}
    queue = deque([target])
    while queue:
        at = queue.popleft()
        for move in MOVES:
            neighbour = shift(at, move)
            if neighbour in free and neighbour not in lengths:
                lengths[neighbour] = lengths[at] + 1
                queue.append(neighbour)
    return lengths


def point(at: Position) -> str:
    """`(row, column)`."""
    return f"({at[0]}, {at[1]})"


def points(cells: Collection[Position]) -> str:
    """Positions in reading order, or "none"."""
    return ", ".join(point(cell) for cell in sorted(cells)) if cells else "none"
