"""2048: slide numbers together until one of them is the wanted one."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from echoscope.text.pictures import grid_frame

from ...base import EnvSpec, StepResult, hash_task
from ...params import require, require_within
from ..grid.geometry import Format, MoveEnv
from ..task_env import one_of

Row = tuple[int, ...]
Tiles = tuple[Row, ...]
"""Rows of tiles; 0 is an empty cell."""

MOVES = ("up", "right", "down", "left")
DOUBLING_REWARD = 0.5
_LETTERS = ".ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""In a frame every tile has one character: A is 2, B is 4."""
_NAMES = {letter: str(2**power) if power else "floor" for power, letter in enumerate(_LETTERS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Game2048Config:
    """Difficulty of `game_2048`.

    `side`: rows and columns. `goal`: the tile that wins; the classic game has 2048. `start_tiles`:
    tiles at the start; the classic's two make too few different boards to keep some for evaluation.
    `two_probability`: of a new tile to be a 2, else it is a 4. `reward`: `progress` pays 0.5 each
    time the largest tile doubles; `log` pays 0.1 log2(1 + points) for every move and `points` the
    points themselves, so that a player who puts the goal off earns more than one who reaches it.
    `goal_reward`: on top, at the goal. `observation`: `grid` shows the board, `relative`
    says the points of each move.
    """

    side: int = 4
    goal: int = 256
    start_tiles: int = 3
    two_probability: float = 0.9
    reward: Literal["progress", "log", "points"] = "progress"
    goal_reward: float = 10.0
    observation: Format = "grid"

    def __post_init__(self) -> None:
        require_within(self, side=(2, 8), two_probability=(0, 1), goal_reward=(0, math.inf))
        most = 2 ** min(self.side**2, 16)
        require(
            8 <= self.goal <= most and self.goal.bit_count() == 1,
            f"goal is {self.goal}, but must be a power of two from 8 to {most} on "
            f"{self.side}x{self.side} cells",
        )
        where = f" on {self.side}x{self.side} cells"
        require_within(self, where, start_tiles=(1, self.side**2 - 1))


class Game2048(MoveEnv[Game2048Config]):
    """Tiles slide to one side, and equal neighbours become one of twice the value.

    Description:
        After every move that changed the board a new tile appears in an empty cell.
    Observation:
        "Row 1: 2 0 0 4" and so on, then "Largest: 4. Goal: 128." A 0 is an empty cell. `relative`:
        "Largest 4 of 128. up 8, right 0, down 8, left none.", the points of each move.
    Actions:
        up, right, down, left. A move that changes nothing is valid and does nothing.
    Rewards:
        0.5 each time the largest tile doubles, and 10 more at the goal: the same in every game that
        is won, soon or late. A merge gives the value of the new tile as points; `info` has the
        points of the move.
    Episode end:
        The goal is reached, or no move changes the board.
    Success:
        The goal is reached.
    Seeds:
        `seed` draws the first tiles; `noise_seed` the new ones.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> world = Game2048(Game2048Config(goal=16))
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(move).success for move in world.solve()][-1]
        True
    """

    spec = EnvSpec(
        id="game_2048",
        config_type=Game2048Config,
        max_turns=220,
        description="Slide and merge tiles until one reaches the goal.",
    )

    moves = MOVES

    def begin(self, seed: int, noise_seed: int) -> None:
        task, self._rng = np.random.default_rng(seed), np.random.default_rng(noise_seed)
        side = self._config.side
        self._tiles: Tiles = ((0,) * side,) * side
        for _ in range(self._config.start_tiles):
            self._tiles = self._with_new_tile(task)
        self._first = self._tiles
        self._plan: list[str] | None = None
        self._points = 0

    def step(self, action: str) -> StepResult:
        self._points = 0
        return super().step(action)

    def move(self, move: str) -> StepResult:
        # The expert's plan holds as long as it is followed.
        self._plan = self._plan[1:] if self._plan and self._plan[0] == move else None
        moved, self._points = slide(self._tiles, move)
        is_effective = moved != self._tiles
        reward = self._reward(moved, self._points)
        if is_effective:
            self._tiles = moved
            self._tiles = self._with_new_tile(self._rng)
        return self.result(reward, is_effective=is_effective)

    def instructions(self) -> str:
        return (
            "Slide all tiles to one side; two equal tiles that meet become one of twice the "
            f"value. After each move a new tile appears. Make a tile of {self._config.goal}. "
            f"A 0 is an empty cell. Actions: {', '.join(MOVES)}."
        )

    def solve(self) -> list[str] | None:
        """The moves of a player who keeps large tiles in one corner, to the goal.

        He plays a copy of the game, whose new tiles come as they will come here, but he does not
        know them when he chooses. None if he does not reach the goal.
        """
        if self._plan is not None:
            return list(self._plan)
        game = copy.deepcopy(self)
        moves: list[str] = []
        while not game.is_over:
            moves.append(best_move(game._tiles))
            game.step(moves[-1])
        if not game.is_solved:
            return None
        self._plan = moves
        return list(moves)

    def task_key(self) -> str:
        """The first tiles: the goal plays no part."""
        return hash_task(self.spec.id, self._first)

    @property
    def is_solved(self) -> bool:
        return largest(self._tiles) >= self._config.goal

    @property
    def is_over(self) -> bool:
        return self.is_solved or all(slide(self._tiles, move)[0] == self._tiles for move in MOVES)

    def info(self) -> dict[str, float]:
        return {"points": float(self._points), "largest": float(largest(self._tiles))}

    def _with_new_tile(self, rng: np.random.Generator) -> Tiles:
        rows = [list(row) for row in self._tiles]
        empty = [(r, c) for r, row in enumerate(rows) for c, tile in enumerate(row) if not tile]
        row, col = one_of(rng, empty)
        rows[row][col] = 2 if rng.random() < self._config.two_probability else 4
        return tuple(map(tuple, rows))

    def _reward(self, moved: Tiles, points: int) -> float:
        """What a move is worth that leads to `moved`, before the new tile appears."""
        config, after = self._config, largest(moved)
        bonus = config.goal_reward if after >= config.goal else 0.0
        if config.reward == "points":
            return points + bonus
        if config.reward == "log":
            return 0.1 * math.log2(1 + points) + bonus
        return DOUBLING_REWARD * math.log2(after / largest(self._tiles)) + bonus

    def frame(self) -> str:
        cells = [
            "".join(_LETTERS[max(tile.bit_length() - 1, 0)] for tile in row) for row in self._tiles
        ]
        return grid_frame(cells, {letter: _NAMES[letter] for letter in {*"".join(cells)}}, ())

    def drawn(self) -> str:
        rows = [f"Row {i}: {' '.join(map(str, row))}" for i, row in enumerate(self._tiles, start=1)]
        return "\n".join([*rows, f"Largest: {largest(self._tiles)}. Goal: {self._config.goal}."])

    def in_one_line(self) -> str:
        """The points of each move, or `none` for a move that changes nothing."""
        after = {move: slide(self._tiles, move) for move in MOVES}
        gains = ", ".join(
            f"{move} {'none' if tiles == self._tiles else points}"
            for move, (tiles, points) in after.items()
        )
        return f"Largest {largest(self._tiles)} of {self._config.goal}. {gains}."


def largest(tiles: Tiles) -> int:
    return max(map(max, tiles))


def slide(tiles: Tiles, move: str) -> tuple[Tiles, int]:
    """The board after a move, without the new tile, and its points."""
    lines: Iterable[Row] = tiles if move in ("left", "right") else zip(*tiles, strict=True)
    is_backward = move in ("right", "down")
    moved, total = [], 0
    for line in lines:
        after, points = slide_row(line[::-1] if is_backward else line)
        moved.append(after[::-1] if is_backward else after)
        total += points
    rows = moved if move in ("left", "right") else zip(*moved, strict=True)
    return tuple(tuple(row) for row in rows), total


@lru_cache(maxsize=1 << 16)
def slide_row(row: Row) -> tuple[Row, int]:
    """A row after sliding to the left, and the points of its merges. A tile merges once."""
    merged: list[int] = []
    points, can_merge = 0, False
    for tile in row:
        if not tile:
            continue
        if can_merge and merged[-1] == tile:
            merged[-1] *= 2
            points += merged[-1]
            can_merge = False
        else:
            merged.append(tile)
            can_merge = True
    return (*merged, *(0,) * (len(row) - len(merged))), points


def best_move(tiles: Tiles) -> str:
    """The move that leads to the best board, two moves on and new tiles left out."""
    return max(MOVES, key=lambda move: _hope(tiles, move))


def _hope(tiles: Tiles, move: str) -> float:
    moved = slide(tiles, move)[0]
    if moved == tiles:
        return -math.inf
    return _looks(moved) + max(_looks(slide(moved, follow_up)[0]) for follow_up in MOVES)


def _looks(tiles: Tiles) -> float:
    """High for large tiles along a snake from the first corner, and for empty cells."""
    snake = [tile for r, row in enumerate(tiles) for tile in (row if r % 2 == 0 else row[::-1])]
    weighted = sum(tile * 0.5**index for index, tile in enumerate(snake))
    return weighted * (1 + 0.1 * snake.count(0))
