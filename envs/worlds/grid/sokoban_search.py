"""Sokoban as a graph: the expert, exact distances, and positions that cannot be won.

A state is one integer: bit i of `boxes` stands for a box on floor cell i, and
`key = boxes * 2**16 + player cell`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .geometry import MOVES, Position, distances, shift, shortest_way

_PLAYER_BITS = 16
_PLAYER_MASK = 2**_PLAYER_BITS - 1
_NAMES = tuple(MOVES)
_BACK = (1, 0, 3, 2)
"""Index of the opposite direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Floor cells and targets, with the tables the searches need.

    `neighbours[d][i]` is the cell next to cell i in direction d (order of `MOVES`), -1 for a wall.
    `pushes_to[t][i]` is the number of pushes that bring a lone box from cell i to target t (the
    t-th of `targets`), -1 if none do.
    """

    cells: tuple[Position, ...]
    index: dict[Position, int]
    neighbours: tuple[tuple[int, ...], ...]
    targets: tuple[Position, ...]
    target_bits: int
    pushes_to: tuple[tuple[int, ...], ...]

    def bits(self, boxes: Iterable[Position]) -> int:
        """The boxes as a bit set."""
        out = 0
        for box in boxes:
            out |= 1 << self.index[box]
        return out

    def is_live(self, cell: int) -> bool:
        """Whether a lone box on `cell` could still reach some target."""
        return any(pushes[cell] >= 0 for pushes in self.pushes_to)


def build_maze(floor: Iterable[Position], targets: Iterable[Position]) -> Floor:
    """The tables of a room whose floor (targets included) is given."""
    cells = tuple(sorted(floor))
    index = {cell: i for i, cell in enumerate(cells)}
    neighbours = tuple(tuple(index.get(shift(cell, move), -1) for cell in cells) for move in _NAMES)
    ordered = tuple(sorted(targets))
    bits = 0
    for target in ordered:
        bits |= 1 << index[target]
    return Floor(
        cells=cells,
        index=index,
        neighbours=neighbours,
        targets=ordered,
        target_bits=bits,
        pushes_to=tuple(_push_distances(index[t], neighbours, len(cells)) for t in ordered),
    )


def _push_distances(
    target: int, neighbours: Sequence[Sequence[int]], num_cells: int
) -> tuple[int, ...]:
    """Pushes from each cell to `target` for a lone box, ignoring how the player gets there."""

    def pulls(cell: int) -> Iterator[tuple[str, int]]:
        for move, before in zip(_NAMES, neighbours, strict=True):
            origin = before[cell]
            # The player stood behind the box, on the far side of where it came from.
            if origin >= 0 and before[origin] >= 0:
                yield move, origin

    pushes = distances(target, pulls)
    return tuple(pushes.get(cell, -1) for cell in range(num_cells))


def solve(
    maze: Floor, player: Position, boxes: Iterable[Position], max_states: int
) -> list[str] | None:
    """Fewest moves that put every box on a target (breadth-first search).

    None if there is no solution, or none was found within `max_states` states.
    """
    start = maze.bits(boxes) << _PLAYER_BITS | maze.index[player]
    live = [maze.is_live(cell) for cell in range(len(maze.cells))]

    def steps(key: int) -> Iterator[tuple[str, int]]:
        player_cell, bits = key & _PLAYER_MASK, key >> _PLAYER_BITS
        for move, neighbours in zip(_NAMES, maze.neighbours, strict=True):
            to = neighbours[player_cell]
            if to < 0:
                continue
            after = bits
            if bits >> to & 1:
                beyond = neighbours[to]
                if beyond < 0 or bits >> beyond & 1 or not live[beyond]:
                    continue
                after = bits ^ (1 << to) ^ (1 << beyond)
            yield move, after << _PLAYER_BITS | to

    return shortest_way(
        start, lambda key: key >> _PLAYER_BITS == maze.target_bits, steps, max_states
    )


def states_by_distance(maze: Floor, max_distance: int, max_states: int) -> list[list[int]]:
    """Reverse play: all states from which the solution takes exactly d moves, for d = 0, 1, ...

    Breadth-first from every solved state at once, pulling instead of pushing, so each distance is
    the true optimum. Stops after `max_distance`, or before the first distance that would exceed
    `max_states` states in all (that distance is left out, since it would be incomplete).
    """
    bits = maze.target_bits
    layer = [bits << _PLAYER_BITS | cell for cell in range(len(maze.cells)) if not bits >> cell & 1]
    seen = set(layer)
    layers = [layer]
    while layer and len(layers) <= max_distance:
        previous: list[int] = []
        for key in layer:
            for new in _predecessors(maze, key):
                if new not in seen:
                    seen.add(new)
                    previous.append(new)
            if len(seen) > max_states:
                return layers
        if previous:
            layers.append(previous)
        layer = previous
    return layers


def _predecessors(maze: Floor, key: int) -> Iterable[int]:
    """States with a move into `key`: the player steps back, alone or pulling a box along."""
    player, bits = key & _PLAYER_MASK, key >> _PLAYER_BITS
    for d in range(4):
        origin = maze.neighbours[_BACK[d]][player]
        if origin < 0 or bits >> origin & 1:
            continue
        yield bits << _PLAYER_BITS | origin
        ahead = maze.neighbours[d][player]
        if ahead >= 0 and bits >> ahead & 1:
            yield (bits ^ (1 << ahead) ^ (1 << player)) << _PLAYER_BITS | origin


def unpack(maze: Floor, key: int) -> tuple[Position, tuple[Position, ...]]:
    """(player, boxes in reading order) of a state."""
    bits = key >> _PLAYER_BITS
    boxes = tuple(cell for i, cell in enumerate(maze.cells) if bits >> i & 1)
    return maze.cells[key & _PLAYER_MASK], boxes


def is_deadlocked(maze: Floor, boxes: Iterable[Position]) -> bool:
    """Whether some box can provably never be brought home.

    True if a box stands where even alone it could reach no target, or is frozen in a 2x2 block of
    walls and boxes that is not all on targets. False proves nothing.
    """
    standing = set(boxes)
    targets = set(maze.targets)
    for box in standing:
        if not maze.is_live(maze.index[box]):
            return True
        for vertical in ("up", "down"):
            for horizontal in ("left", "right"):
                side = shift(box, vertical)
                block = [box, side, shift(box, horizontal), shift(side, horizontal)]
                blocked = all(cell in standing or cell not in maze.index for cell in block)
                if blocked and any(cell in standing and cell not in targets for cell in block):
                    return True
    return False
