"""FrozenLake: cross a slippery lake to the goal without falling into a hole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from echoscope.text.pictures import grid_frame

from ...base import EnvSpec, StepResult, hash_task
from ...params import board_shape, require, require_within
from ..task_env import one_of, some_of
from .geometry import (
    MOVES,
    BoardFormat,
    MoveEnv,
    Position,
    cells_of,
    distances,
    drawn_rows,
    offset_words,
    point,
    points,
    shift,
    shortest_way,
    walk_over,
    with_marks,
)

_LEGEND = {"_": "ice", "O": "hole", "G": "goal"}
_SIDEWAYS = {
    **dict.fromkeys(("up", "down"), ("left", "right")),
    **dict.fromkeys(("left", "right"), ("up", "down")),
}
_SYMBOLS = {name: char for char, name in _LEGEND.items()}
_PATIENCE = 0.98
"""Worth of a goal one move later: without it the expert would wait in corners for a safe slip."""
_SWEEPS = 500
_LONGEST_PLAN = 2
_LOSS_ALLOWED = 0.01
"""Of the chance to arrive, for making a second move without looking; turns are limited too."""
_DRAWS = 200
"""Random maps tried before one is built around a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenLakeConfig:
    """Board, difficulty and observation format of `frozen_lake`.

    `size`: one side, or [rows, columns], each 2 to 16. `holes`: their exact number; null draws each
    cell with `hole_probability`. `slip`: probability that a move goes sideways (half to each side).
    `min_distance`, `max_distance`: length of the shortest safe path from start to goal (null: any).
    `expert`: `careful` weighs where a move may slip to, `shortest` walks the shortest safe path as
    if nothing slipped. Without slips both walk the same path.
    """

    size: int | tuple[int, int] = 4
    holes: int | None = None
    hole_probability: float = 0.1
    slip: float = 0.2
    min_distance: int = 1
    max_distance: int | None = None
    observation: BoardFormat = "grid"
    expert: Literal["careful", "shortest"] = "careful"

    def __post_init__(self) -> None:
        rows, cols = self.shape
        require_within(self, slip=(0, 1), hole_probability=(0, 1))
        require_within(self, f" on a {rows}x{cols} board", min_distance=(1, rows + cols - 2))
        require(
            self.max_distance is None or self.max_distance >= self.min_distance,
            f"max_distance is {self.max_distance}, but must be at least min_distance "
            f"({self.min_distance})",
        )
        room = rows * cols - self.min_distance - 1
        require(
            self.holes is None or 0 <= self.holes <= room,
            f"holes is {self.holes}, but a {rows}x{cols} board with min_distance "
            f"{self.min_distance} has room for at most {room}",
        )

    @property
    def shape(self) -> tuple[int, int]:
        return board_shape(self.size, 2, 16)


@dataclass(frozen=True, kw_only=True, eq=False)
class SlipOdds:
    """What a player who thinks of slips knows about a map of n cells."""

    cells: tuple[Position, ...]
    goes: NDArray[np.float64]
    """(4, n, n) probability that a move, in the order of `MOVES`, goes from cell to cell."""
    value: NDArray[np.float64]
    """(n,) chance to reach the goal with the best moves; each move costs `1 - _PATIENCE` of it."""

    def plan(self, position: Position) -> list[str]:
        """The best move from a cell, and those after it that lose little by not looking first."""
        where = np.zeros(len(self.cells))
        where[self.cells.index(position)] = 1.0
        moves: list[str] = []
        while len(moves) < _LONGEST_PLAN:
            after = where @ self.goes  # (4, n)
            # Rounded, so that moves of equal worth are chosen in the order in which they stand.
            worth = np.round(_PATIENCE * (after @ self.value), 9)
            best = int(worth.argmax())
            if moves and where @ self.value - worth[best] > _LOSS_ALLOWED:
                break
            moves.append(tuple(MOVES)[best])
            where = after[best]
        return moves


@dataclass(frozen=True, kw_only=True, eq=False)
class Lake:
    """One map."""

    shape: tuple[int, int]
    start: Position
    goal: Position
    holes: frozenset[Position]
    to_goal: dict[Position, int]
    """Safe cell -> length of the shortest safe path to the goal."""

    def kind(self, position: Position) -> str:
        """What is at a place; all around the board is wall."""
        if position in self.holes:
            return "hole"
        rows, cols = self.shape
        if not (0 <= position[0] < rows and 0 <= position[1] < cols):
            return "wall"
        return "goal" if position == self.goal else "ice"

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """One character a cell, without the player."""
        return drawn_rows(self.shape, lambda cell: _SYMBOLS[self.kind(cell)])


class FrozenLake(MoveEnv[FrozenLakeConfig]):
    """A grid of ice with holes; the player slides to the goal or falls in.

    Description:
        Maps of 2x2 to 16x16 cells are drawn at random and always solvable. With probability `slip`
        a move goes to one of the two perpendicular directions instead, half to each.
    Observation:
        `grid` draws the board, `coord` lists coordinates, `both` does both, and `relative` says in
        one short line where the goal lies and what the four neighbours are (what a very small
        policy can read): "Goal 2 up 1 right. Near: up ice, down wall, left ice, right hole."
    Actions:
        up, down, left, right. A move against the edge is valid and leaves the player in place.
    Rewards:
        1 on reaching the goal, else 0.
    Episode end:
        Goal or hole.
    Success:
        The player stands on the goal.
    Seeds:
        `seed` draws the map, the start and the goal; `noise_seed` the slips.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> lake = FrozenLake(FrozenLakeConfig(slip=0.0, observation="relative"))
        >>> first = lake.reset(seed=7, noise_seed=0)
        >>> [lake.step(move).reward for move in lake.solve()][-1]
        1.0
    """

    spec = EnvSpec(
        id="frozen_lake",
        config_type=FrozenLakeConfig,
        max_turns=10,
        max_actions_per_turn=2,
        description="Cross a slippery lake to the goal without falling into a hole.",
    )

    def begin(self, seed: int, noise_seed: int) -> None:
        self._lake = draw_lake(self._config, seed)
        self._rng = np.random.default_rng(noise_seed)
        self._player = self._lake.start
        self._has_slipped = False

    def step(self, action: str) -> StepResult:
        self._has_slipped = False
        return super().step(action)

    def move(self, move: str) -> StepResult:
        # Drawn whatever `slip` is, so that a sweep over it compares the same luck.
        luck = float(self._rng.random())
        self._has_slipped = luck < self._config.slip
        if self._has_slipped:
            move = _SIDEWAYS[move][0 if luck < self._config.slip / 2 else 1]
        before, after = self._player, shift(self._player, move)
        if self._lake.kind(after) != "wall":
            self._player = after
        return self.result(float(self.is_solved), is_effective=self._player != before)

    def instructions(self) -> str:
        text = "Walk over the ice to the goal. Do not step into a hole."
        if self._config.slip > 0:
            text += f" You slip sideways with probability {self._config.slip:g}."
        if self._config.observation in ("coord", "both"):
            text += " Positions are (row, column), from 0 at the top left."
        if self._config.observation in ("grid", "both"):
            text += " P is you, _ ice, O a hole, G the goal, X you in a hole, * you on the goal."
        return f"{text} Actions: {', '.join(MOVES)}."

    def plan(self) -> list[str] | None:
        """The moves that can be made without looking; ask again after them, or after a slip.

        Where nothing slips, or with `expert: shortest`, they are a shortest safe path to the goal.
        """
        lake, player, slip = self._lake, self._player, self._config.slip
        if slip > 0 and self._config.expert == "careful":
            return slip_odds(lake, slip).plan(player)
        return shortest_way(player, lake.goal.__eq__, walk_over(lake.to_goal))

    def task_key(self) -> str:
        """The map, the start and the goal: `slip` and the observation format play no part."""
        lake = self._lake
        return hash_task(self.spec.id, lake.shape, lake.start, lake.goal, sorted(lake.holes))

    @property
    def is_over(self) -> bool:
        return self.is_solved or self._player in self._lake.holes

    @property
    def is_solved(self) -> bool:
        return self._player == self._lake.goal

    def info(self) -> dict[str, float]:
        info = {"slipped": float(self._has_slipped)}
        distance = self._lake.to_goal.get(self._player)
        if distance is not None:
            info["distance"] = float(distance)
        return info

    def frame(self) -> str:
        return grid_frame(self._lake.cells, _LEGEND, [("player", self._player)])

    def drawn(self) -> str:
        mark = {"ice": "P", "hole": "X", "goal": "*"}[self._lake.kind(self._player)]
        return with_marks(self._lake.cells, {self._player: mark})

    def listed(self) -> str:
        rows, cols = self._lake.shape
        return (
            f"Board {rows}x{cols}. Goal {point(self._lake.goal)}. "
            f"Player {point(self._player)}. Holes {points(self._lake.holes)}."
        )

    def in_one_line(self) -> str:
        near = ", ".join(f"{move} {self._lake.kind(shift(self._player, move))}" for move in MOVES)
        fell = "In a hole. " if self._player in self._lake.holes else ""
        return f"{fell}Goal {offset_words(self._player, self._lake.goal)}. Near: {near}."


@lru_cache(maxsize=1024)
def slip_odds(lake: Lake, slip: float) -> SlipOdds:
    """Value iteration over the cells of a map, where each move may slip sideways."""
    cells = cells_of(lake.shape)
    index = {cell: number for number, cell in enumerate(cells)}
    is_end = np.array([cell in lake.holes or cell == lake.goal for cell in cells])
    goes = np.zeros((len(MOVES), len(cells), len(cells)))
    for number, cell in enumerate(cells):
        for which, move in enumerate(MOVES):
            left, right = _SIDEWAYS[move]
            for way, chance in ((move, 1 - slip), (left, slip / 2), (right, slip / 2)):
                after = number if is_end[number] else index.get(shift(cell, way), number)
                goes[which, number, after] += chance
    value = np.zeros(len(cells))
    value[index[lake.goal]] = 1.0
    for _ in range(_SWEEPS):
        better = np.where(is_end, value, _PATIENCE * (goes @ value).max(axis=0))
        if np.abs(better - value).max() < 1e-9:
            break
        value = better
    return SlipOdds(cells=tuple(cells), goes=goes, value=value)


@lru_cache(maxsize=1024)
def draw_lake(config: FrozenLakeConfig, seed: int) -> Lake:
    """The map of a task: a solvable one, with start and goal as far apart as configured.

    Random maps first; if none of them fits (many holes), one built around a path, which always
    exists within the limits that the configuration checks. Cached, because siblings share it.
    """
    rng = np.random.default_rng(seed)
    cells = cells_of(config.shape)
    furthest = len(cells) if config.max_distance is None else config.max_distance
    for _ in range(_DRAWS):
        holes = _draw_holes(config, cells, rng)
        ice = [cell for cell in cells if cell not in holes]
        if len(ice) < 2:
            continue
        goal = one_of(rng, ice)
        to_goal = distances(goal, walk_over(set(ice)))
        starts = [c for c in ice if config.min_distance <= to_goal.get(c, -1) <= furthest]
        if starts:
            return Lake(
                shape=config.shape,
                start=one_of(rng, starts),
                goal=goal,
                holes=frozenset(holes),
                to_goal=to_goal,
            )
    return _lake_around_path(config, cells, rng)


def _draw_holes(
    config: FrozenLakeConfig, cells: list[Position], rng: np.random.Generator
) -> set[Position]:
    if config.holes is None:
        is_hole = rng.random(len(cells)) < config.hole_probability
        return {cell for cell, hole in zip(cells, is_hole, strict=True) if hole}
    return set(some_of(rng, cells, config.holes))


def _lake_around_path(
    config: FrozenLakeConfig, cells: list[Position], rng: np.random.Generator
) -> Lake:
    """A map whose ice is a straight-or-bent path of `min_distance` moves, and the rest by chance.

    The path never turns back, so no detour over other cells can be shorter.
    """
    rows, cols = config.shape
    length = config.min_distance
    down = int(rng.integers(max(0, length - (cols - 1)), min(length, rows - 1) + 1))
    right = length - down
    corner = (int(rng.integers(rows - down)), int(rng.integers(cols - right)))
    moves = rng.permutation(["down"] * down + ["right"] * right)
    path = [corner]
    for move in moves:
        path.append(shift(path[-1], str(move)))
    others = [cell for cell in cells if cell not in path]
    num_holes = (
        int(rng.binomial(len(cells), config.hole_probability))
        if config.holes is None
        else config.holes
    )
    holes = frozenset(some_of(rng, others, min(num_holes, len(others))))
    if rng.random() < 0.5:
        path.reverse()
    to_goal = distances(path[-1], walk_over(set(cells) - holes))
    return Lake(shape=(rows, cols), start=path[0], goal=path[-1], holes=holes, to_goal=to_goal)
