"""Mazes of rooms with locked doors: how they are drawn, and the shortest way through."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .geometry import MOVES, Position, shift

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


def shortest_way(maze: Maze, room: Position, held: frozenset[int]) -> list[str] | None:
    """The fewest moves to the treasure for a player who stands in `room` and holds some keys."""
    queue = deque([(room, held)])
    reached_by: dict[_State, tuple[str, _State] | None] = {queue[0]: None}
    while queue:
        state = queue.popleft()
        if state[0] == maze.treasure:
            return _moves_to(state, reached_by)
        for move in MOVES:
            after = _after(maze, state, move)
            if after is not None and after not in reached_by:
                reached_by[after] = (move, state)
                queue.append(after)
    return None


_State = tuple[Position, frozenset[int]]
"""The player's room and the keys in hand."""


def _after(maze: Maze, state: _State, move: str) -> _State | None:
    """Where a move leads; None where a wall or a locked door is in the way."""
    room, held = state
    door = maze.door(room, move)
    if not maze.is_open(room, move) or (door is not None and door not in held):
        return None
    there = shift(room, move)
    return there, held | {maze.keys.index(there)} if there in maze.keys else held


def _moves_to(state: _State, reached_by: Mapping[_State, tuple[str, _State] | None]) -> list[str]:
    moves: list[str] = []
    step = reached_by[state]
    while step is not None:
        moves.append(step[0])
        step = reached_by[step[1]]
    return moves[::-1]


def draw_maze(shape: tuple[int, int], num_keys: int, rng: np.random.Generator) -> Maze | None:
    """A random maze; None where the way from start to treasure is too short for its doors."""
    passages = _draw_tree(shape, rng)
    rooms = [(row, col) for row in range(shape[0]) for col in range(shape[1])]
    start, treasure = (rooms[int(n)] for n in rng.choice(len(rooms), size=2, replace=False))
    way = _way(passages, start, treasure)
    if len(way) - 1 < num_keys + 1:
        return None
    # A door after at least one free passage, and at most one door a passage.
    places = sorted(int(n) for n in rng.choice(len(way) - 2, size=num_keys, replace=False) + 1)
    doors = tuple(frozenset(way[door : door + 2]) for door in places)
    keys: list[Position] = []
    for door in places:
        region = _region(passages - set(doors), way[door])
        free = sorted(region - {start, treasure, *keys})
        if not free:
            return None
        keys.append(free[int(rng.integers(len(free)))])
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
        there = options[int(rng.integers(len(options)))]
        passages.add(frozenset((here, there)))
        seen.add(there)
        walked.append(there)
    return passages


def _neighbours(passages: set[Passage], room: Position) -> list[Position]:
    around = (shift(room, move) for move in MOVES)
    return [there for there in around if frozenset((room, there)) in passages]


def _region(passages: set[Passage], room: Position) -> set[Position]:
    """All rooms that passages join to `room`, itself included."""
    return set(_trail(passages, room))


def _trail(passages: set[Passage], room: Position) -> Mapping[Position, Position | None]:
    """Room -> the room before it on the way from `room`."""
    before: dict[Position, Position | None] = {room: None}
    queue = deque([room])
    while queue:
        here = queue.popleft()
        for there in _neighbours(passages, here):
            if there not in before:
                before[there] = here
                queue.append(there)
    return before


def _way(passages: set[Passage], start: Position, end: Position) -> list[Position]:
    """The rooms from start to end, both included."""
    before = _trail(passages, start)
    way, room = [end], before[end]
    while room is not None:
        way.append(room)
        room = before[room]
    return way[::-1]
