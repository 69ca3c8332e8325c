"""Sudoku: fill the empty cells so that no number occurs twice in a row, column or box. Boards have
exactly one solution."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from echoscope.text.pictures import grid_frame

from ...base import EnvSpec, StepResult, hash_task, prefixed
from ...params import require, require_within
from ..grid.geometry import BoardEnv, Format

Board = tuple[tuple[int, ...], ...]
"""Rows of numbers; 0 is an empty cell."""
Cell = tuple[int, int]
_TRIES = 20


@lru_cache(maxsize=4096)
def draw_board(side: int, empties: int, seed: int) -> tuple[Board, Board]:
    """A board with `empties` empty cells, and its only solution.

    Cells are emptied in random order, as long as the solution stays the only one. Where that ends
    too early, another solution is taken; the emptiest board of some is returned then.
    """
    rng = np.random.default_rng(seed)
    tried: list[tuple[Board, Board]] = []
    for _ in range(_TRIES):
        solution = _shuffled(side, rng)
        tried.append((_emptied(solution, empties, rng), solution))
        if num_empty(tried[-1][0]) == empties:
            break
    return max(tried, key=lambda pair: num_empty(pair[0]))


def num_empty(board: Board) -> int:
    return sum(row.count(0) for row in board)


def solutions(board: Board) -> Iterator[Board]:
    """Every way to fill the empty cells of a board whose filled cells do not conflict."""
    side, box = len(board), math.isqrt(len(board))
    flat = [number for row in board for number in row]
    units = [
        (i // side, side + i % side, 2 * side + (i // side // box) * box + i % side // box)
        for i in range(side * side)
    ]
    all_numbers, used = (1 << side) - 1, [0] * (3 * side)
    """The numbers of each row, column and box, as bits."""
    empty = [i for i, number in enumerate(flat) if not number]

    def flip(cell: int, bit: int) -> None:
        for unit in units[cell]:
            used[unit] ^= bit

    def filled() -> Iterator[Board]:
        """Backtracking over the empty cell with the fewest numbers left."""
        if not empty:
            yield _board([flat[start : start + side] for start in range(0, side * side, side)])
            return
        best, free, fewest = -1, 0, len(units)
        for index, i in enumerate(empty):
            a, b, c = units[i]
            left = all_numbers & ~(used[a] | used[b] | used[c])
            if left.bit_count() < fewest:
                best, free, fewest = index, left, left.bit_count()
                if fewest < 2:
                    break
        cell = empty.pop(best)
        while free:
            bit = free & -free
            free ^= bit
            flat[cell] = bit.bit_length()
            flip(cell, bit)
            yield from filled()
            flip(cell, bit)
        flat[cell] = 0
        empty.insert(best, cell)

    for i, number in enumerate(flat):
        if number:
            flip(i, 1 << number - 1)
    yield from filled()


def conflicts(board: Board) -> set[Cell]:
    """Cells that hold the same number as another cell of their row, column or box."""
    return {
        cell
        for cell, number in _numbers(board).items()
        if number and any(number in around for around in numbers_around(board, cell).values())
    }


def numbers_around(board: Board, cell: Cell) -> dict[str, tuple[int, ...]]:
    """The different numbers in the other cells of a cell's row, column and box, in rising order."""
    side, box, (row, col) = range(len(board)), math.isqrt(len(board)), cell
    top, left = row // box * box, col // box * box
    units = {
        "row": [(row, c) for c in side],
        "column": [(r, col) for r in side],
        "box": [(r, c) for r in range(top, top + box) for c in range(left, left + box)],
    }
    return {
        kind: tuple(sorted({board[r][c] for r, c in cells if (r, c) != cell} - {0}))
        for kind, cells in units.items()
    }


def _numbers(board: Board) -> dict[Cell, int]:
    """What stands on every cell, row by row."""
    return {(r, c): number for r, row in enumerate(board) for c, number in enumerate(row)}


def _shuffled(side: int, rng: np.random.Generator) -> Board:
    """A solution: the pattern that every solution can be made from, with all that may be mixed."""
    box = math.isqrt(side)

    def order() -> list[int]:
        bands = rng.permutation(box)
        return [int(band * box + line) for band in bands for line in rng.permutation(box)]

    numbers = [int(number) + 1 for number in rng.permutation(side)]
    rows, cols = order(), order()
    pattern = [[numbers[(box * (r % box) + r // box + c) % side] for c in cols] for r in rows]
    return _board(pattern)


def _emptied(solution: Board, empties: int, rng: np.random.Generator) -> Board:
    side = len(solution)
    cells = [list(row) for row in solution]
    left = empties
    for cell_index in rng.permutation(side * side):
        if not left:
            break
        row, col = divmod(int(cell_index), side)
        number, cells[row][col] = cells[row][col], 0
        ways = solutions(_board(cells))
        next(ways)
        if next(ways, None) is None:
            left -= 1
        else:
            cells[row][col] = number
    return _board(cells)


def _board(rows: Sequence[Sequence[int]]) -> Board:
    return tuple(tuple(row) for row in rows)


_ACTION = re.compile(
    r"(?:place\s+)?(?P<number>\d{1,2})\s+at\s+(?:row\s+)?(?P<row>\d{1,2})"
    r"(?:\s*,\s*|\s+col(?:umn)?\s+)(?P<col>\d{1,2})"
    r"|(?P<row2>\d{1,2})\s*,\s*(?P<col2>\d{1,2})\s*,\s*(?P<number2>\d{1,2})",
    re.ASCII,
)
_RIGHT, _WRONG = 1.0, -0.5
_LOST = -_RIGHT
"""Of a wrong number in place of a right one: putting the right one back then earns nothing."""
_MOST_EMPTIES = {4: 11, 9: 55}
"""Boards with more have one solution too seldom to be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SudokuConfig:
    """Difficulty of `sudoku`.

    `side`: 4 or 9. `empties`: empty cells; null takes six of 4x4 and 32 of 9x9. A board with very
    many empty cells may get fewer, where no more could go without a second solution.
    `solved_reward`: for the last right number, on top of its own. `observation`: `grid` shows the
    board; `relative` lists the open cells with the numbers around each, for policies of a million
    parameters.
    """

    side: Literal[4, 9] = 4
    empties: int | None = None
    solved_reward: float = 10.0
    observation: Format = "grid"

    def __post_init__(self) -> None:
        most = _MOST_EMPTIES[self.side]
        require(
            1 <= self.num_empties <= most,
            f"empties is {self.empties}, but must lie between 1 and {most} on a board of "
            f"{self.side}x{self.side}",
        )
        require_within(self, solved_reward=(0, math.inf))

    @property
    def num_empties(self) -> int:
        """Empty cells that are wanted."""
        return {4: 6, 9: 32}[self.side] if self.empties is None else self.empties


class Sudoku(BoardEnv[SudokuConfig]):
    """A Sudoku with exactly one solution.

    Description:
        A board of 4x4 or 9x9 cells. Every row, column and box holds each number once. Some cells
        are given; a placed number may be replaced by another.
    Observation:
        The board, one row a line: `[3]` is given, ` 3 ` placed, `*3*` placed and in conflict with
        another number, ` . ` empty. Then how many cells are empty or in conflict. `relative`:
        "Empty 1,2: row 1 4, column 3, box 1." for every cell that is empty, "3 at 1,2." for every
        placed number, and "3 in conflict at 1,2: row 1 3, column 3, box 1." where it conflicts.
    Actions:
        "place 3 at row 1 col 2", "3 at 1,2" or "1,2,3" (row, column, number), counted from 1.
    Rewards:
        1 for a right number, -1 for a wrong one in place of a right one, -0.5 for another wrong
        number (so trying numbers until one is right costs what it brings), 0 for a number that
        stands there already; 10 more when the board is solved.
    Episode end:
        The board is solved.
    Success:
        The board is solved.
    Seeds:
        `seed` draws the board; `noise_seed` is not used.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> world = Sudoku(SudokuConfig(empties=1))
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(action).reward for action in world.solve()]
        [11.0]
    """

    spec = EnvSpec(
        id="sudoku",
        config_type=SudokuConfig,
        max_turns=60,
        description="Fill a Sudoku of 4x4 or 9x9 cells that has exactly one solution.",
    )

    def begin(self, seed: int, noise_seed: int) -> None:
        self._given, self._solution = draw_board(self._config.side, self._config.num_empties, seed)
        self._placed: dict[Cell, int] = {}

    def step(self, action: str) -> StepResult:
        move = _read_move(action, self._config.side)
        cell = None if move is None else move[0]
        if move is None or cell is None or self.is_solved or self._given[cell[0]][cell[1]]:
            is_short = self._config.observation == "relative"
            notice = "Invalid." if is_short else self.invalid_notice(action)
            if move is not None and not self.is_solved:
                notice += " This cell is given."
            observation = prefixed(notice, self.observe())
            return self.result(0.0, observation, is_valid=False, is_effective=False)
        was_right, is_news = self._is_right(cell), self._placed.get(cell) != move[1]
        self._placed[cell] = move[1]
        reward = 0.0
        if is_news:
            reward = _RIGHT if self._is_right(cell) else _LOST if was_right else _WRONG
        if self.is_solved:
            reward += self._config.solved_reward
        return self.result(reward, is_effective=is_news)

    def instructions(self) -> str:
        side = self._config.side
        return (
            f"Fill the board so that every row, column and {math.isqrt(side)}x{math.isqrt(side)} "
            f"box holds each number from 1 to {side} once. [3] is given, 3 you placed, *3* you "
            "placed and it conflicts, . is empty. Action: row,column,number, counted from 1, for "
            "example 1,2,3."
        )

    def solve(self) -> list[str]:
        """The right number for every cell that is empty or wrong, from the top left."""
        board = self._board
        return [
            f"{row + 1},{col + 1},{number}"
            for (row, col), number in _numbers(self._solution).items()
            if board[row][col] != number
        ]

    def guesses(self) -> tuple[str, ...]:
        """Every number for the first cell that is empty or wrong."""
        open_cells = self.solve()
        if not open_cells:
            return ()
        cell = open_cells[0].rpartition(",")[0]
        return tuple(f"{cell},{number + 1}" for number in range(self._config.side))

    def task_key(self) -> str:
        return hash_task(self.spec.id, self._given)

    @property
    def is_solved(self) -> bool:
        return self._board == self._solution

    @property
    def _board(self) -> Board:
        side = range(len(self._given))
        return tuple(
            tuple(self._placed.get((row, col), self._given[row][col]) for col in side)
            for row in side
        )

    def _is_right(self, cell: Cell) -> bool:
        return self._placed.get(cell) == self._solution[cell[0]][cell[1]]

    def info(self) -> dict[str, float]:
        return {
            "empty": float(num_empty(self._board)),
            "right": float(sum(map(self._is_right, self._placed))),
        }

    @property
    def _bad(self) -> set[Cell]:
        return conflicts(self._board) & self._placed.keys()

    def frame(self) -> str:
        board = self._board
        cells = ["".join(str(number or ".") for number in row) for row in board]
        legend = {".": "floor"} | {str(n): str(n) for row in board for n in row if n}
        overlays = [("placed", cell) for cell in sorted(self._placed)]
        overlays += [("conflict", cell) for cell in sorted(self._bad)]
        return grid_frame(cells, legend, overlays, block=math.isqrt(len(board)))

    def in_one_line(self) -> str:
        """What is not given, in order: one sentence for each cell."""
        board, bad = self._board, self._bad
        sentences = []
        for cell, number in _numbers(board).items():
            row, col = cell
            cell_name = f"{row + 1},{col + 1}"
            if self._given[row][col]:
                continue
            if number and cell not in bad:
                sentences.append(f"{number} at {cell_name}.")
                continue
            head = f"{number} in conflict at {cell_name}" if number else f"Empty {cell_name}"
            around = ", ".join(
                f"{kind} {' '.join(map(str, numbers)) or 'none'}"
                for kind, numbers in numbers_around(board, cell).items()
            )
            sentences.append(f"{head}: {around}.")
        return " ".join(sentences)

    def drawn(self) -> str:
        board, bad = self._board, self._bad
        side = range(len(board))
        marks = [[self._mark((row, col), bad) for col in side] for row in side]
        box = math.isqrt(len(board))
        bars = [
            "|".join("".join(row[start : start + box]) for start in range(0, len(row), box))
            for row in marks
        ]
        ruler = "+".join(["-" * 3 * box] * box)
        lines = [
            line
            for r, bar in enumerate(bars)
            for line in ([ruler] if r and not r % box else []) + [bar]
        ]
        return "\n".join([*lines, f"Empty: {num_empty(board)}. In conflict: {len(bad)}."])

    def _mark(self, cell: Cell, bad: set[Cell]) -> str:
        row, col = cell
        if self._given[row][col]:
            return f"[{self._given[row][col]}]"
        number = self._placed.get(cell)
        if number is None:
            return " . "
        return f"*{number}*" if cell in bad else f" {number} "


def _read_move(action: str, side: int) -> tuple[Cell, int] | None:
    """(cell, number), both from 0 and from 1; None for what is no move on a board of this size."""
    match = _ACTION.fullmatch(action.strip().casefold())
    if match is None:
        return None
    row, col, number = (int(match[name] or match[f"{name}2"]) for name in ("row", "col", "number"))
    if not all(1 <= value <= side for value in (row, col, number)):
        return None
    return (row - 1, col - 1), number
