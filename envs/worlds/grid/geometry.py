"""What the board worlds share: directions, distances, formats, and how an offset is said."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import ClassVar, Literal, Protocol, TypeVar

from ...base import Observation, StepResult, normalise
from ..task_env import TaskEnv

Position = tuple[int, int]
"""(row, column), from 0 at the top left."""

Format = Literal["grid", "relative"]
"""How an observation shows a board: `grid` draws it, and `relative` says in one line what matters
to the next move."""
BoardFormat = Literal["grid", "coord", "both", "relative"]
"""Besides, `coord` lists what stands where, and `both` does that and draws the board."""

MOVES: Mapping[str, Position] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Direction -> (row change, column change), in the order in which everything is listed."""


class _Shown(Protocol):
    @property
    def observation(self) -> BoardFormat: ...


B = TypeVar("B", bound=_Shown)
S = TypeVar("S", bound=Hashable)


class BoardEnv(TaskEnv[B]):
    """A board, shown in the format `observation` of its configuration."""

    def __init__(self, config: B | None = None) -> None:
        super().__init__(config)
        self.begin(0, 0)  # a configuration without boards fails when it is made

    def observe(self) -> Observation:
        form, frame = self._config.observation, self.frame()
        if form == "relative":
            return Observation(text=self.in_one_line(), frame=frame)
        parts = [self.listed()] if form in ("coord", "both") else []
        parts += [self.drawn()] if form in ("grid", "both") else []
        return Observation(text="\n".join(parts), frame=frame)

    @abstractmethod
    def frame(self) -> str:
        """The board for people."""

    @abstractmethod
    def drawn(self) -> str:
        """The board as lines of text."""

    @abstractmethod
    def in_one_line(self) -> str:
        """What matters to the next move."""

    def listed(self) -> str:
        """What stands where."""
        raise NotImplementedError


class MoveEnv(BoardEnv[B]):
    """A board that is played by words of which all can be played at any time."""

    moves: ClassVar[tuple[str, ...]] = tuple(MOVES)

    def legal_actions(self) -> tuple[str, ...]:
        return self.moves

    def invalid_notice(self, action: str) -> str:
        is_short = self._config.observation == "relative"
        return "Invalid." if is_short else super().invalid_notice(action)

    def step(self, action: str) -> StepResult:
        move = normalise(action)
        if move not in self.moves or self.is_over:
            return self.refused(action)
        return self.move(move)

    @abstractmethod
    def move(self, move: str) -> StepResult:
        """What one of `moves` does before the end of the episode."""


def shift(position: Position, move: str) -> Position:
    """The neighbour of a position in a direction."""
    row, col = MOVES[move]
    return position[0] + row, position[1] + col


def offset_words(start: Position, end: Position) -> str:
    """How to get from `start` to `end`: "2 up 1 right", "3 left", "here"."""
    down, right = end[0] - start[0], end[1] - start[1]
    parts = []
    if down:
        parts.append(f"{abs(down)} {'down' if down > 0 else 'up'}")
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " ".join(parts) if parts else "here"


def shortest_way(
    start: S,
    is_end: Callable[[S], bool],
    steps: Callable[[S], Iterable[tuple[str, S]]],
    max_states: float = math.inf,
) -> list[str] | None:
    """The fewest moves from one state to another.

    None if no moves lead there, or none were found within `max_states` states.

    Args:
        steps: The moves that a state allows, and where they lead; of two ways of one length the
            one whose moves come first is taken.
    """
    ways: dict[S, tuple[str, S] | None] = {start: None}
    queue = deque([start])
    end = start if is_end(start) else None
    while end is None and queue and len(ways) <= max_states:
        state = queue.popleft()
        for move, after in steps(state):
            if after in ways:
                continue
            ways[after] = move, state
            if is_end(after):
                end = after
                break
            queue.append(after)
    if end is None:
        return None
    moves: list[str] = []
    while (way := ways[end]) is not None:
        move, end = way
        moves.append(move)
    return moves[::-1]


def distances(start: S, steps: Callable[[S], Iterable[tuple[str, S]]]) -> dict[S, int]:
    """Every state that moves lead to -> the fewest moves that do."""
    lengths = {start: 0}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for _, after in steps(state):
            if after not in lengths:
                lengths[after] = lengths[state] + 1
                queue.append(after)
    return lengths


def walk_over(free: Collection[Position]) -> Callable[[Position], list[tuple[str, Position]]]:
    """The steps of a walk over free cells, for `shortest_way` and `distances`."""
    return lambda cell: [(move, to) for move in MOVES if (to := shift(cell, move)) in free]


def cells_of(shape: tuple[int, int], *, margin: int = 0) -> list[Position]:
    """The positions of a board in reading order, without a margin of so many cells."""
    rows, cols = shape
    return [
        (row, col) for row in range(margin, rows - margin) for col in range(margin, cols - margin)
    ]


def drawn_rows(shape: tuple[int, int], char: Callable[[Position], str]) -> tuple[str, ...]:
    """The rows of a board, where each position has one character."""
    rows, cols = shape
    return tuple("".join(char((row, col)) for col in range(cols)) for row in range(rows))


def with_marks(drawn: Iterable[str], marks: Mapping[Position, str]) -> str:
    """The lines of a board, with other characters at some positions."""
    lines = [list(row) for row in drawn]
    for (row, col), mark in marks.items():
        lines[row][col] = mark
    return "\n".join(map("".join, lines))


def point(position: Position) -> str:
    """`(row, column)`."""
    return f"({position[0]}, {position[1]})"


def points(cells: Collection[Position]) -> str:
    """Positions in reading order, or "none"."""
    return ", ".join(point(cell) for cell in sorted(cells)) if cells else "none"
