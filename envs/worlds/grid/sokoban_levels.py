"""Sokoban levels: drawn by reverse play, or read from XSB and Boxoban files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from ...base import EnvParamsError, EnvUnavailableError
from ..rows import cached_by_files
from .geometry import Position, distances
from .sokoban_search import Maze, build_maze, states_by_distance, unpack

MAX_SIDE = 64
MAX_FILE_BYTES = 64 * 2**20
_DRAWS = 100
_XSB_FLOOR = " -_"
_XSB = set("#.$*@+" + _XSB_FLOOR)


LEGEND = {"#": "wall", "_": "floor", "O": "target"}


@dataclass(frozen=True, kw_only=True)
class Level:
    """A room and where an episode begins. `boxes` are in reading order."""

    shape: tuple[int, int]
    maze: Maze
    player: Position
    boxes: tuple[Position, ...]

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """One character of `LEGEND` a cell, without player and boxes."""
        rows, cols = self.shape
        is_target, is_floor = set(self.maze.targets), self.maze.index.keys()
        return tuple(
            "".join(
                "O" if (row, col) in is_target else "_" if (row, col) in is_floor else "#"
                for col in range(cols)
            )
            for row in range(rows)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSettings:
    """What the generator aims at. `walls`: share of inner cells that are wall."""

    shape: tuple[int, int]
    boxes: int
    walls: float
    min_solution: int
    max_solution: int
    max_states: int


@lru_cache(maxsize=1024)
def draw_level(settings: LevelSettings, seed: int) -> Level:
    """A level whose shortest solution takes `min_solution` to `max_solution` moves.

    A random room with the boxes on their targets is played backwards, exhaustively; the length is
    drawn evenly among those that occur, then a state of that length. Cached: siblings share it.
    Raises `EnvParamsError` if a hundred rooms have no such state.
    """
    rng = np.random.default_rng(seed)
    for draw in range(_DRAWS):
        # Open rooms have the most states: they are the last resort of a tight configuration.
        walls = settings.walls if draw < _DRAWS // 2 else 0.0
        floor = _draw_room(settings.shape, walls, rng)
        if len(floor) < settings.boxes + 2:
            continue
        chosen = rng.choice(len(floor), size=settings.boxes, replace=False)
        maze = build_maze(floor, [floor[int(i)] for i in chosen])
        layers = states_by_distance(maze, settings.max_solution, settings.max_states)
        fitting = [layer for layer in layers[settings.min_solution :] if layer]
        if fitting:
            layer = fitting[int(rng.integers(len(fitting)))]
            player, boxes = unpack(maze, layer[int(rng.integers(len(layer)))])
            return Level(shape=settings.shape, maze=maze, player=player, boxes=boxes)
    rows, cols = settings.shape
    raise EnvParamsError(
        f"no {rows}x{cols} level with {settings.boxes} boxes and a solution of "
        f"{settings.min_solution} to {settings.max_solution} moves in {_DRAWS} rooms; enlarge the "
        "room or max_states, or shorten the solution"
    )


def _draw_room(shape: tuple[int, int], walls: float, rng: np.random.Generator) -> list[Position]:
    """Floor cells of the largest connected part of a random room, in reading order."""
    rows, cols = shape
    inner = [(row, col) for row in range(1, rows - 1) for col in range(1, cols - 1)]
    is_wall = rng.random(len(inner)) < walls
    left = {cell for cell, wall in zip(inner, is_wall, strict=True) if not wall}
    best: set[Position] = set()
    while left:
        part = set(distances(min(left), left))
        left -= part
        best = part if len(part) > len(best) else best
    return sorted(best)


def read_levels(path: str) -> tuple[Level, ...]:
    """All levels of an XSB or Boxoban text file, or of the *.txt and *.xsb files of a folder.

    Raises `EnvUnavailableError` if nothing can be read there, and `EnvParamsError` naming file and
    line for a level that cannot be played.
    """
    root = Path(path).expanduser()
    files = [root]
    if root.is_dir():
        files = sorted(file for file in root.rglob("*") if file.suffix in (".txt", ".xsb"))
    levels: list[Level] = []
    for file in files:
        levels += _read_file(str(file))
    if not levels:
        raise EnvUnavailableError(f"{path} holds no Sokoban levels (*.txt or *.xsb)")
    return tuple(levels)


@cached_by_files(64)
def _read_file(path: str) -> tuple[Level, ...]:
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
    rows: list[str] = []
    first = 0
    for number, raw in enumerate([*lines, ""], start=1):
        line = raw.rstrip()
        if "#" in line and set(line) <= _XSB:
            first = first if rows else number
            rows.append(line)
        elif rows:
            yield first, rows
            rows = []


def parse_level(rows: list[str], where: str) -> Level:
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
    floor = set(distances(players[0], inside))
    if any(r in (0, height - 1) or c in (0, width - 1) for r, c in floor):
        raise EnvParamsError(f"{where}: the room is not enclosed by walls")
    # Within ragged rows a missing cell would be a hole in the wall.
    if any(
        position not in cells for r, c in floor for position in ((r - 1, c), (r + 1, c), (r, c + 1))
    ):
        raise EnvParamsError(f"{where}: the room is not enclosed by walls")
    outside = [position for position in (*boxes, *targets) if position not in floor]
    if outside:
        raise EnvParamsError(f"{where}: the box or target at {outside[0]} is out of reach")
    return Level(
        shape=(height, width),
        maze=build_maze(floor, targets),
        player=players[0],
        boxes=tuple(boxes),
    )
