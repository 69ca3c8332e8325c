"""Sudoku boards with exactly one solution: drawing them and solving them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

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
    best: tuple[Board, Board] | None = None
    for _ in range(_TRIES):
        solution = _shuffled(side, rng)
        board = _emptied(solution, empties, rng)
        if best is None or num_empty(board) > num_empty(best[0]):
            best = (board, solution)
        if num_empty(board) == empties:
            break
    assert best is not None
    return best


def num_empty(board: Board) -> int:
    """Empty cells."""
    return sum(row.count(0) for row in board)


def solutions(board: Board) -> Iterator[Board]:
    """Every way to fill the empty cells of a board whose filled cells do not conflict."""
    side = len(board)
    search = _Search(board)
    yield from (
        tuple(tuple(flat[row * side : (row + 1) * side]) for row in range(side))
        for flat in search.run()
    )


def conflicts(board: Board) -> set[Cell]:
    """Cells that hold the same number as another cell of their row, column or box."""
    side, box = len(board), math.isqrt(len(board))
    out: set[Cell] = set()
    seen: dict[tuple[str, int, int, int], Cell] = {}
    for row in range(side):
        for col in range(side):
            number = board[row][col]
            if not number:
                continue
            units = (("row", row, 0), ("column", 0, col), ("box", row // box, col // box))
            for kind, first, second in units:
                other = seen.setdefault((kind, first, second, number), (row, col))
                if other != (row, col):
                    out |= {other, (row, col)}
    return out


def numbers_around(board: Board, cell: Cell) -> dict[str, tuple[int, ...]]:
    """The different numbers in the other cells of a cell's row, column and box, in rising order."""
    box = math.isqrt(len(board))
    places = [(r, c) for r in range(len(board)) for c in range(len(board)) if (r, c) != cell]
    units = {
        "row": [(r, c) for r, c in places if r == cell[0]],
        "column": [(r, c) for r, c in places if c == cell[1]],
        "box": [
            (r, c) for r, c in places if (r // box, c // box) == (cell[0] // box, cell[1] // box)
        ],
    }
    return {
        kind: tuple(sorted({board[r][c] for r, c in cells} - {0})) for kind, cells in units.items()
    }


class _Search:
    """Backtracking over the empty cell with the fewest numbers left."""

    def __init__(self, board: Board) -> None:
        side, box = len(board), math.isqrt(len(board))
        self._all = (1 << side) - 1
        self._flat = [number for row in board for number in row]
        self._units = [
            (i // side, side + i % side, 2 * side + (i // side // box) * box + i % side // box)
            for i in range(side * side)
        ]
        self._used = [0] * (3 * side)
        self._empty = [i for i, number in enumerate(self._flat) if not number]
        for i, number in enumerate(self._flat):
            if number:
                self._flip(i, 1 << number - 1)

    def run(self) -> Iterator[list[int]]:
        if not self._empty:
            yield list(self._flat)
            return
        best_cell, free = -1, 0
        fewest = len(self._units)
        for index, i in enumerate(self._empty):
            a, b, c = self._units[i]
            left = self._all & ~(self._used[a] | self._used[b] | self._used[c])
            if left.bit_count() < fewest:
                best_cell, free, fewest = index, left, left.bit_count()
                if fewest < 2:
                    break
        cell = self._empty.pop(best_cell)
        while free:
            bit = free & -free
            free ^= bit
            self._flat[cell] = bit.bit_length()
            self._flip(cell, bit)
            yield from self.run()
            self._flip(cell, bit)
        self._flat[cell] = 0
        self._empty.insert(best_cell, cell)

    def _flip(self, cell: int, bit: int) -> None:
        for unit in self._units[cell]:
            self._used[unit] ^= bit


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
