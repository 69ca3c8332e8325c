"""Treasure: a long walk through a maze of rooms with locked doors, from key to door to key, until
the treasure is reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np

from echoscope.text.pictures import grid_frame

from ...base import EnvParamsError, EnvSpec, StepResult, hash_task
from ...params import board_shape, require_within
from ..task_env import one_of, some_of
from .geometry import (
    MOVES,
    Format,
    MoveEnv,
    Position,
    cells_of,
    distances,
    drawn_rows,
    offset_words,
    shift,
    shortest_way,
    with_marks,
)

Passage = frozenset[Position]
"""The two rooms that a passage joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maze:
    """A tree of rooms: between two rooms there is exactly one way.

    Door i bars the way to the treasure after door i - 1, and key i lies between the two, so keys
    are taken and doors are opened in their order.
    """

    shape: tuple[int, int]
    passages: frozenset[Passage]
    keys: tuple[Position, ...]
    doors: tuple[Passage, ...]
    start: Position
    treasure: Position

    def door(self, room: Position, move: str) -> int | None:
        """The number of the door on this side of a room; None without one."""
        passage = frozenset((room, shift(room, move)))
        return self.doors.index(passage) if passage in self.doors else None

    def is_open(self, room: Position, move: str) -> bool:
        """Whether there is no wall on this side of a room. A door is no wall."""
        return frozenset((room, shift(room, move))) in self.passages


def way_to_treasure(maze: Maze, room: Position, held: frozenset[int]) -> list[str] | None:
    """The fewest moves to the treasure for a player who stands in `room` and holds some keys."""
    return shortest_way(
        (room, held), lambda state: state[0] == maze.treasure, partial(_steps, maze)
    )


_State = tuple[Position, frozenset[int]]
"""The player's room and the keys in hand."""


def _steps(maze: Maze, state: _State) -> Iterator[tuple[str, _State]]:
    """The moves that neither a wall nor a locked door is in the way of, and where they lead."""
    room, held = state
    for move, there in _walks(maze.passages, room):
        door = maze.door(room, move)
        if door is None or door in held:
            yield move, (there, held | {maze.keys.index(there)} if there in maze.keys else held)


def draw_maze(shape: tuple[int, int], num_keys: int, rng: np.random.Generator) -> Maze | None:
    """A random maze; None where the way from start to treasure is too short for its doors."""
    passages = _draw_tree(shape, rng)
    start, treasure = some_of(rng, cells_of(shape), 2)
    moves = shortest_way(start, treasure.__eq__, partial(_walks, passages)) or ()
    way = list(accumulate(moves, shift, initial=start))
    if len(way) - 1 < num_keys + 1:
        return None
    # A door after at least one free passage, and at most one door a passage.
    places = sorted(int(n) for n in rng.choice(len(way) - 2, size=num_keys, replace=False) + 1)
    doors = tuple(frozenset(way[door : door + 2]) for door in places)
    keys: list[Position] = []
    for door in places:
        region = distances(way[door], partial(_walks, passages - set(doors))).keys()
        free = sorted(region - {start, treasure, *keys})
        if not free:
            return None
        keys.append(one_of(rng, free))
    return Maze(
        shape=shape,
        passages=frozenset(passages),
        keys=tuple(keys),
        doors=doors,
        start=start,
        treasure=treasure,
    )


def _draw_tree(shape: tuple[int, int], rng: np.random.Generator) -> set[Passage]:
    """A random spanning tree of all rooms, with long corridors (depth first)."""
    first = (int(rng.integers(shape[0])), int(rng.integers(shape[1])))
    walked, seen = [first], {first}
    passages: set[Passage] = set()
    while walked:
        here = walked[-1]
        options = [
            there
            for there in (shift(here, move) for move in MOVES)
            if 0 <= there[0] < shape[0] and 0 <= there[1] < shape[1] and there not in seen
        ]
        if not options:
            walked.pop()
            continue
        there = one_of(rng, options)
        passages.add(frozenset((here, there)))
        seen.add(there)
        walked.append(there)
    return passages


def _walks(passages: Collection[Passage], room: Position) -> Iterator[tuple[str, Position]]:
    """The moves through passages, whatever doors they have, and where they lead."""
    for move in MOVES:
        there = shift(room, move)
        if frozenset((room, there)) in passages:
            yield move, there


MOVE_REWARD = -0.1
KEY_REWARD = 1.0
DOOR_REWARD = 1.0
TREASURE_REWARD = 10.0
_COLOURS = ("red", "blue", "green", "yellow")
_LEGEND = {"#": "wall", "_": "floor"}
_MARKS = {
    "treasure": "$",
    "player": "P",
    **{f"{colour} key": letter for colour, letter in zip(_COLOURS, "abcd", strict=True)},
    **{f"{colour} door": letter for colour, letter in zip(_COLOURS, "ABCD", strict=True)},
}
"""How the drawing shows what stands on a cell."""
_DRAWS = 2000
"""Random mazes tried before a configuration is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreasureConfig:
    """Maze, length and observation format of `treasure`.

    `size`: rooms on a side, or [rows, columns], each 3 to 10. `keys`: locked doors and their keys,
    0 to 4. `min_solution`, `max_solution`: moves of the shortest solution.
    """

    size: int | tuple[int, int] = 6
    keys: int = 2
    min_solution: int = 30
    max_solution: int = 48
    observation: Format = "relative"

    def __post_init__(self) -> None:
        board_shape(self.size, 3, 10)
        require_within(self, keys=(0, len(_COLOURS)))
        require_within(self, " (max_solution)", min_solution=(1, self.max_solution))

    @property
    def shape(self) -> tuple[int, int]:
        return board_shape(self.size, 3, 10)


class Treasure(MoveEnv[TreasureConfig]):
    """A maze with locked doors; keys lie on the way, and a treasure at its end.

    Description:
        The maze is a tree of rooms. Locked doors bar the way to the treasure; the key to each lies
        somewhere before its door. By default every task takes 30 moves or more, so this is the
        world for long episodes: set `context.history_turns`, and prompts forget the oldest turns.
        What matters is in every observation, so a player who sees only the last one can act.
    Observation:
        `relative` is one line: the next thing to reach (key, door or treasure) as the crow flies,
        what lies on each side, and the keys in hand. A side is a wall, a "red door" that is locked
        or can be opened now, "new", or "seen 2": a room entered twice already. `grid` draws the
        whole maze.
    Actions:
        up, down, left, right. A move against a wall or a locked door is valid and changes nothing.
        Walking into a room takes its key; walking through a door whose key is in hand opens it.
    Rewards:
        -0.1 a move, +1 a key, +1 a door the first time, +10 the treasure.
    Episode end:
        The treasure is reached.
    Success:
        The treasure is reached.
    Seeds:
        `seed` draws the maze, the doors, the keys, the start and the treasure; `noise_seed` is not
        used.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> world = Treasure(TreasureConfig())
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> way = world.solve()
        >>> 30 <= len(way) <= 48, [world.step(move).success for move in way][-1]
        (True, True)
    """

    spec = EnvSpec(
        id="treasure",
        config_type=TreasureConfig,
        max_turns=80,
        description="Take keys, open doors and find the treasure: 30 moves or more.",
    )

    def begin(self, seed: int, noise_seed: int) -> None:
        self._maze = draw_task(self._config, seed)
        self._player: Position = self._maze.start
        self._held: set[int] = set()
        self._opened: set[int] = set()
        self._visits: Counter[Position] = Counter([self._player])

    def move(self, move: str) -> StepResult:
        reward, before = MOVE_REWARD, self._player
        door = self._maze.door(before, move)
        is_locked = door is not None and door not in self._held
        if self._maze.is_open(before, move) and not is_locked:
            self._player = shift(before, move)
            self._visits[self._player] += 1
            reward += self._collect(door)
        return self.result(reward, is_effective=self._player != before)

    def instructions(self) -> str:
        text = (
            "Find the treasure in a maze. A locked door opens if you hold its key; you take a key "
            "by walking into its room. A move costs 0.1, a key and a door give 1, the treasure 10."
        )
        text += {
            "grid": " # is a wall, _ floor, P you, $ the treasure; small letters are keys, capital "
            "letters their doors.",
            "relative": " You are told the direction of the next thing to reach, and what lies on "
            "each side: wall, a door, new, or seen and how often you were there.",
        }[self._config.observation]
        return f"{text} Actions: {', '.join(MOVES)}."

    def solve(self) -> list[str] | None:
        """A shortest way to the treasure, by way of the keys that are still needed."""
        return way_to_treasure(self._maze, self._player, frozenset(self._held))

    def task_key(self) -> str:
        maze = self._maze
        return hash_task(
            self.spec.id,
            maze.shape,
            sorted(sorted(passage) for passage in maze.passages),
            maze.keys,
            [sorted(door) for door in maze.doors],
            maze.start,
            maze.treasure,
        )

    @property
    def is_solved(self) -> bool:
        return self._player == self._maze.treasure

    def info(self) -> dict[str, float]:
        return {"keys": float(len(self._held)), "doors": float(len(self._opened))}

    def _collect(self, door: int | None) -> float:
        """What the door just passed and the room just entered are worth."""
        reward = 0.0
        if door is not None and door not in self._opened:
            self._opened.add(door)
            reward += DOOR_REWARD
        if self._player in self._maze.keys:
            key = self._maze.keys.index(self._player)
            reward += 0.0 if key in self._held else KEY_REWARD
            self._held.add(key)
        return reward + (TREASURE_REWARD if self.is_over else 0.0)

    def frame(self) -> str:
        return grid_frame(self._cells(), _LEGEND, self._overlays())

    def in_one_line(self) -> str:
        name, target = self._next()
        sides = ", ".join(f"{move} {self._side(move)}" for move in MOVES)
        way = offset_words(self._player, target)
        held = ", ".join(f"{_COLOURS[key]} key" for key in sorted(self._held)) or "nothing"
        return f"Next: {name} {way}. Near: {sides}. Holding: {held}."

    def _next(self) -> tuple[str, Position]:
        """The next thing to reach. Of a door, the room before it."""
        for number, key in enumerate(self._maze.keys):
            if number not in self._held:
                return f"{_COLOURS[number]} key", key
            if number not in self._opened:
                visited = [room for room in self._maze.doors[number] if self._visits[room]]
                rooms = visited or sorted(self._maze.doors[number])
                return f"{_COLOURS[number]} door", rooms[0]
        return "treasure", self._maze.treasure

    def _side(self, move: str) -> str:
        if not self._maze.is_open(self._player, move):
            return "wall"
        door = self._maze.door(self._player, move)
        if door is not None and door not in self._opened:
            return f"{'' if door in self._held else 'locked '}{_COLOURS[door]} door"
        times = self._visits[shift(self._player, move)]
        return f"seen {times}" if times else "new"

    def _cells(self) -> tuple[str, ...]:
        """Walls and floor: room (r, c) is the cell (2r + 1, 2c + 1), passages lie between."""
        rows, cols = self._maze.shape
        rooms = {_cell(room) for passage in self._maze.passages for room in passage}
        floor = rooms.union(map(_between, self._maze.passages))
        return drawn_rows((2 * rows + 1, 2 * cols + 1), lambda cell: "_" if cell in floor else "#")

    def _overlays(self) -> list[tuple[str, Position]]:
        maze = self._maze
        things = [("treasure", _cell(maze.treasure))]
        for number, colour in enumerate(_COLOURS[: len(maze.keys)]):
            if number not in self._held:
                things.append((f"{colour} key", _cell(maze.keys[number])))
            if number not in self._opened:
                things.append((f"{colour} door", _between(maze.doors[number])))
        return [*things, ("player", _cell(self._player))]

    def drawn(self) -> str:
        return with_marks(self._cells(), {cell: _MARKS[name] for name, cell in self._overlays()})


def _cell(room: Position) -> Position:
    return 2 * room[0] + 1, 2 * room[1] + 1


def _between(passage: frozenset[Position]) -> Position:
    (row, col), (other_row, other_col) = passage
    return row + other_row + 1, col + other_col + 1


@lru_cache(maxsize=1024)
def draw_task(config: TreasureConfig, seed: int) -> Maze:
    """The maze of a task: one whose shortest solution is as long as configured."""
    rng = np.random.default_rng(seed)
    for _ in range(_DRAWS):
        maze = draw_maze(config.shape, config.keys, rng)
        if maze is None:
            continue
        way = way_to_treasure(maze, maze.start, frozenset())
        if way is not None and config.min_solution <= len(way) <= config.max_solution:
            return maze
    rows, cols = config.shape
    raise EnvParamsError(
        f"treasure drew no maze of {rows}x{cols} rooms with {config.keys} keys whose shortest "
        f"solution has {config.min_solution} to {config.max_solution} moves in {_DRAWS} tries: "
        "change size, min_solution or max_solution"
    )
