"""Sokoban: push every box onto a target. Levels are drawn by reverse play, or read from XSB and
Boxoban files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from string import ascii_uppercase

import numpy as np

from echoscope.text.pictures import grid_frame

from ...base import EnvParamsError, EnvSpec, EnvUnavailableError, StepResult, hash_task
from ...params import board_shape, require, require_within
from ..rows import cached_by_files
from ..task_env import drawn, one_of, some_of
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
    walk_over,
)
from .sokoban_search import Floor, build_maze, is_deadlocked, solve, states_by_distance, unpack

MAX_SIDE = 64
MAX_FILE_BYTES = 64 * 2**20
_DRAWS = 100
_XSB_FLOOR = " -_"
_XSB = set("#.$*@+" + _XSB_FLOOR)


LEGEND = {"#": "wall", "_": "floor", "O": "target"}


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """A room and where an episode begins. `boxes` are in reading order."""

    shape: tuple[int, int]
    maze: Floor
    player: Position
    boxes: tuple[Position, ...]

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """One character of `LEGEND` a cell, without player and boxes."""
        floor = dict.fromkeys(self.maze.cells, "_") | dict.fromkeys(self.maze.targets, "O")
        return drawn_rows(self.shape, lambda cell: floor.get(cell, "#"))


@lru_cache(maxsize=1024)
def draw_level(config: SokobanConfig, seed: int) -> Puzzle:
    """A level whose shortest solution takes `min_solution` to `max_solution` moves.

    A random room with the boxes on their targets is played backwards, exhaustively; the length is
    drawn evenly among those that occur, then a state of that length. Cached: siblings share it.
    Raises `EnvParamsError` if a hundred rooms have no such state.
    """
    rng = np.random.default_rng(seed)
    for draw in range(_DRAWS):
        # Open rooms have the most states: they are the last resort of a tight configuration.
        walls = config.walls if draw < _DRAWS // 2 else 0.0
        floor = _draw_room(config.shape, walls, rng)
        if len(floor) < config.boxes + 2:
            continue
        maze = build_maze(floor, some_of(rng, floor, config.boxes))
        layers = states_by_distance(maze, config.max_solution, config.max_states)
        fitting = [layer for layer in layers[config.min_solution :] if layer]
        if fitting:
            player, boxes = unpack(maze, one_of(rng, one_of(rng, fitting)))
            return Puzzle(shape=config.shape, maze=maze, player=player, boxes=boxes)
    rows, cols = config.shape
    raise EnvParamsError(
        f"no {rows}x{cols} level with {config.boxes} boxes and a solution of "
        f"{config.min_solution} to {config.max_solution} moves in {_DRAWS} rooms; enlarge the "
        "room or max_states, or shorten the solution"
    )


def _draw_room(shape: tuple[int, int], walls: float, rng: np.random.Generator) -> list[Position]:
    """Floor cells of the largest connected part of a random room, in reading order."""
    inner = cells_of(shape, margin=1)
    is_wall = rng.random(len(inner)) < walls
    left = {cell for cell, wall in zip(inner, is_wall, strict=True) if not wall}
    best: Collection[Position] = ()
    while left:
        part = distances(min(left), walk_over(left)).keys()
        left -= part
        best = part if len(part) > len(best) else best
    return sorted(best)


def read_levels(path: str) -> tuple[Puzzle, ...]:
    """All levels of an XSB or Boxoban text file, or of the *.txt and *.xsb files of a folder.

    Raises `EnvUnavailableError` if nothing can be read there, and `EnvParamsError` naming file and
    line for a level that cannot be played.
    """
    root = Path(path).expanduser()
    files = [root]
    if root.is_dir():
        files = sorted(file for file in root.rglob("*") if file.suffix in (".txt", ".xsb"))
    levels: list[Puzzle] = []
    for file in files:
        levels += _read_file(str(file))
    if not levels:
        raise EnvUnavailableError(f"{path} holds no Sokoban levels (*.txt or *.xsb)")
    return tuple(levels)


@cached_by_files(64)
def _read_file(path: str) -> tuple[Puzzle, ...]:
    try:
        size = Path(path).stat().st_size
        if size > MAX_FILE_BYTES:
            raise EnvUnavailableError(f"{path} has {size} bytes; at most {MAX_FILE_BYTES} are read")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EnvUnavailableError(f"cannot read levels from {path}: {error}") from None
    return tuple(
        parse_level(rows, f"{path}, line {line}") for line, rows in _boards(text.splitlines())
    )


def _boards(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """(line number, rows) of each run of board lines; comments and titles separate them."""
    numbered = enumerate((line.rstrip() for line in lines), start=1)
    for is_board, run in groupby(numbered, lambda row: "#" in row[1] and set(row[1]) <= _XSB):
        if is_board:
            numbers, rows = zip(*run, strict=True)
            yield numbers[0], list(rows)


def parse_level(rows: list[str], where: str) -> Puzzle:
    """One XSB board as a level; `where` begins the message of the `EnvParamsError`."""
    height, width = len(rows), max(len(row) for row in rows)
    if height > MAX_SIDE or width > MAX_SIDE:
        raise EnvParamsError(
            f"{where}: the level has {height}x{width} cells, at most {MAX_SIDE}x{MAX_SIDE} work"
        )
    cells = {(r, c): char for r, row in enumerate(rows) for c, char in enumerate(row)}
    players = [position for position, char in cells.items() if char in "@+"]
    boxes = sorted(position for position, char in cells.items() if char in "$*")
    targets = sorted(position for position, char in cells.items() if char in ".*+")
    if len(players) != 1 or not boxes or len(boxes) != len(targets):
        raise EnvParamsError(
            f"{where}: a level has one player and as many boxes as targets (at least one), not "
            f"{len(players)} players, {len(boxes)} boxes and {len(targets)} targets"
        )
    inside = {position for position, char in cells.items() if char != "#"}
    floor = distances(players[0], walk_over(inside)).keys()
    # Within ragged rows a missing cell would be a hole in the wall.
    is_enclosed = all(shift(cell, move) in cells for cell in floor for move in MOVES)
    require(is_enclosed, f"{where}: the room is not enclosed by walls")
    outside = [position for position in (*boxes, *targets) if position not in floor]
    if outside:
        raise EnvParamsError(f"{where}: the box or target at {outside[0]} is out of reach")
    return Puzzle(
        shape=(height, width),
        maze=build_maze(floor, targets),
        player=players[0],
        boxes=tuple(boxes),
    )


_KINDS = ("wall", "floor", "target", "box", "player", "box on target", "player on target")
"""What stands on a cell."""

MOVE_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SokobanConfig:
    """Room, difficulty and observation format of `sokoban`.

    `size`: one side, or [rows, columns], with the outer walls, each 3 to 16. `walls`: share of
    inner cells that are wall (0: an open room). `min_solution`, `max_solution`: moves of the
    shortest solution.
    `symbols`: the characters of a drawn room, for wall, floor, target, box, player, box on target
    and player on target.
    `levels`: an XSB or Boxoban file, or a folder of them, instead of the generator (`size`,
    `boxes`, `walls` and the solution limits then do not apply). `max_states`: where generator and
    expert give up.
    """

    size: int | tuple[int, int] = (6, 6)
    boxes: int = 1
    walls: float = 0.15
    min_solution: int = 2
    max_solution: int = 8
    levels: str | None = None
    observation: BoardFormat = "grid"
    symbols: str = "#_OXP*S"
    max_states: int = 200_000

    def __post_init__(self) -> None:
        rows, cols = self.shape
        require(max(rows, cols) >= 5, f"size is {self.size}, but one side must be at least 5")
        most = min(8, (rows - 2) * (cols - 2) - 2)
        require_within(self, f" in a {rows}x{cols} room", boxes=(1, most))
        require_within(self, walls=(0, 0.5), max_states=(100, 5_000_000))
        require(
            1 <= self.min_solution <= self.max_solution <= 200,
            f"min_solution is {self.min_solution} and max_solution {self.max_solution}, but "
            "1 <= min_solution <= max_solution <= 200 must hold",
        )
        require(
            len(set(self.symbols)) == len(self.symbols) == len(_KINDS)
            and not any(char.isspace() for char in self.symbols),
            f"symbols is {self.symbols!r}, but it must be {len(_KINDS)} different characters "
            f"other than spaces, for {', '.join(_KINDS)}",
        )

    @property
    def symbol_of(self) -> dict[str, str]:
        """What stands on a cell -> its character."""
        return dict(zip(_KINDS, self.symbols, strict=True))

    @property
    def shape(self) -> tuple[int, int]:
        return board_shape(self.size, 3, 16)


class Sokoban(MoveEnv[SokobanConfig]):
    """A warehouse: the player pushes boxes, never pulls, one at a time.

    Description:
        Levels are drawn by exhaustive reverse play, so each is solvable and its shortest solution
        has a known length; or they are read from XSB or Boxoban files.
    Observation:
        `grid` draws the room in `symbols`, `coord` lists coordinates, `both` does both, and
        `relative` says in one short line where the box lies from the player, where its target lies
        from the box, what the four neighbours are, and which pushes are possible:
        "Box 1 up 2 right. Target 1 left of box. Near: up floor, down wall, left floor, right
        floor. Push: none." Several boxes are named A, B, ... in order.
    Actions:
        up, down, left, right. A blocked move is valid and changes nothing.
    Rewards:
        -0.1 a move, +1 for a box that comes onto a target, -1 for one that leaves it, +10 when all
        boxes are on targets.
    Episode end:
        All boxes are on targets.
    Success:
        All boxes are on targets.
    Seeds:
        `seed` draws the level. `noise_seed` is not used: moves are certain.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> sokoban = Sokoban(SokobanConfig(min_solution=3, max_solution=3))
        >>> first = sokoban.reset(seed=7, noise_seed=0)
        >>> round(sum(sokoban.step(move).reward for move in sokoban.solve()), 6)
        10.7
    """

    spec = EnvSpec(
        id="sokoban",
        config_type=SokobanConfig,
        max_turns=5,
        max_actions_per_turn=2,
        description="Push every box onto a target; boxes cannot be pulled.",
    )

    @cached_property
    def _levels(self) -> tuple[Puzzle, ...] | None:
        return None if self._config.levels is None else read_levels(self._config.levels)

    def begin(self, seed: int, noise_seed: int) -> None:
        if self._levels is None:
            self._level = draw_level(self._config, seed)
        else:
            self._level = self._levels[drawn(seed, len(self._levels))]
        self._player, self._boxes = self._level.player, self._level.boxes

    def move(self, move: str) -> StepResult:
        before, home_before = self._player, self._num_home
        to = shift(self._player, move)
        if self._can_push(move):
            self._boxes = tuple(shift(b, move) if b == to else b for b in self._boxes)
        if self._is_floor(to) and to not in self._boxes:
            self._player = to
        reward = MOVE_REWARD + BOX_REWARD * (self._num_home - home_before)
        if self.is_solved:
            reward += SOLVED_REWARD
        return self.result(reward, is_effective=self._player != before)

    def instructions(self) -> str:
        form = self._config.observation
        text = "Push every box onto a target. You push a box by walking into it, one at a time."
        if form in ("coord", "both"):
            text += " Positions are (row, column), from 0 at the top left."
        if form in ("grid", "both"):
            drawn_as = self._config.symbol_of.items()
            text += " " + ", ".join(f"{char} {kind}" for kind, char in drawn_as) + "."
        return f"{text} Actions: {', '.join(MOVES)}."

    def solve(self) -> list[str] | None:
        """Fewest moves from here; None if lost, or not found within `max_states` states."""
        return solve(self._level.maze, self._player, self._boxes, self._config.max_states)

    def task_key(self) -> str:
        """The room, its targets, the player and the boxes: the format plays no part."""
        return _level_key(self._level)

    @property
    def num_tasks(self) -> int | None:
        """The number of different levels in the files; unknown for the generator."""
        return None if self._levels is None else len({_level_key(level) for level in self._levels})

    @property
    def _num_home(self) -> int:
        targets = self._level.maze.targets
        return len([box for box in self._boxes if box in targets])

    @property
    def is_solved(self) -> bool:
        return self._num_home == len(self._boxes)

    def info(self) -> dict[str, float]:
        return {
            "boxes_on_target": float(self._num_home),
            "deadlock": float(is_deadlocked(self._level.maze, self._boxes)),
        }

    def _can_push(self, move: str) -> bool:
        box = shift(self._player, move)
        beyond = shift(box, move)
        return box in self._boxes and self._is_floor(beyond) and beyond not in self._boxes

    def _is_floor(self, position: Position) -> bool:
        return position in self._level.maze.index

    def _kind(self, position: Position) -> str:
        if not self._is_floor(position):
            return "wall"
        is_target = position in self._level.maze.targets
        if position in self._boxes:
            return "box on target" if is_target else "box"
        if position == self._player:
            return "player on target" if is_target else "player"
        return "target" if is_target else "floor"

    def frame(self) -> str:
        overlays = [("box", box) for box in self._boxes] + [("player", self._player)]
        return grid_frame(self._level.cells, LEGEND, overlays)

    def drawn(self) -> str:
        symbol_of = self._config.symbol_of
        return "\n".join(drawn_rows(self._level.shape, lambda cell: symbol_of[self._kind(cell)]))

    def listed(self) -> str:
        rows, cols = self._level.shape
        inner = [cell for cell in cells_of((rows, cols), margin=1) if not self._is_floor(cell)]
        return (
            f"Board {rows}x{cols}. Player {point(self._player)}. Boxes {points(self._boxes)}. "
            f"Targets {points(self._level.maze.targets)}. Inner walls {points(inner)}."
        )

    def in_one_line(self) -> str:
        goals = self._assign_targets()
        parts = []
        for i, (box, goal) in enumerate(zip(self._boxes, goals, strict=True)):
            name = "" if len(self._boxes) == 1 else " " + ascii_uppercase[i % 26] * (i // 26 + 1)
            where = "under box" if box == goal else f"{offset_words(box, goal)} of box"
            parts.append(f"Box{name} {offset_words(self._player, box)}. Target{name} {where}.")
        near = ", ".join(
            f"{move} {self._kind(shift(self._player, move)).split(' ')[0]}" for move in MOVES
        )
        pushes = " ".join(move for move in MOVES if self._can_push(move))
        return f"{' '.join(parts)} Near: {near}. Push: {pushes or 'none'}."

    def _assign_targets(self) -> list[Position]:
        """For each box the target it should go to: nearest pairs first, by number of pushes."""
        maze = self._level.maze
        far = len(maze.cells)
        pairs = sorted(
            (pushes[maze.index[box]] if pushes[maze.index[box]] >= 0 else far, b, t)
            for b, box in enumerate(self._boxes)
            for t, pushes in enumerate(maze.pushes_to)
        )
        target_of: dict[int, int] = {}
        for _, b, t in pairs:
            if b not in target_of and t not in target_of.values():
                target_of[b] = t
        return [maze.targets[target_of[b]] for b in range(len(self._boxes))]


def _level_key(level: Puzzle) -> str:
    maze = level.maze
    room = [level.shape, sorted(maze.cells), sorted(maze.targets)]
    return hash_task(Sokoban.spec.id, room, level.player, sorted(level.boxes))
