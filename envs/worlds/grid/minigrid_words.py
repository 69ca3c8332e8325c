"""What a player of MiniGrid sees, in words.

MiniGrid shows the cells before the player as numbers: kind, colour and state of each (its `README`,
"Observation encoding"). The player stands in the middle of the last row and looks up the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

KINDS = (
    *("unseen", "empty", "wall", "floor", "door", "key"),
    *("ball", "box", "goal", "lava", "agent"),
)
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOORS = ("open", "closed", "locked")
_FACING = ("east", "south", "west", "north")
_BARE = frozenset({"unseen", "empty", "wall", "floor", "agent"})


def words_of(value: Any) -> str | None:
    """An observation of MiniGrid in words; None for one of another world.

    Args:
        value: a mapping with "image" (columns, rows, 3), "direction" and "mission".
    """
    if not isinstance(value, Mapping) or not {"image", "direction", "mission"} <= value.keys():
        return None
    image = np.asarray(value["image"])
    if image.ndim != 3 or image.shape[2] != 3 or int(image[..., 0].max()) >= len(KINDS):
        return None
    column, row = image.shape[0] // 2, image.shape[1] - 1
    cells = {
        (x - column, row - y): _name(*map(int, image[x, y]))
        for x in range(image.shape[0])
        for y in range(image.shape[1])
    }
    near = ", ".join(
        f"{word} {cells.get(position, 'unseen')}"
        for word, position in (("ahead", (0, 1)), ("left", (-1, 0)), ("right", (1, 0)))
    )
    carried = cells[0, 0]
    things = [
        f"{name} {_where(*position)}"
        for position, name in sorted(cells.items(), key=lambda c: (sum(map(abs, c[0])), c[0]))
        if name not in _BARE and position != (0, 0)
    ]
    parts = [
        f"Mission: {value['mission']}.",
        f"You face {_FACING[int(value['direction']) % 4]}.",
        f"Near: {near}.",
        f"You see: {'; '.join(things) or 'nothing else'}.",
        f"You carry: {'nothing' if carried in _BARE else carried}.",
    ]
    return " ".join(parts)


def _name(kind: int, colour: int, state: int) -> str:
    name = KINDS[kind]
    if name in _BARE or name in ("goal", "lava"):
        return name
    colour_name = COLOURS[colour] if colour < len(COLOURS) else ""
    door = DOORS[state] if name == "door" and state < len(DOORS) else ""
    return " ".join(word for word in (door, colour_name, name) if word)


def _where(across: int, ahead: int) -> str:
    """A place as steps from the player.

    >>> _where(-2, 3), _where(0, 1), _where(1, 0)
    ('3 ahead 2 left', '1 ahead', '1 right')
    """
    side = f"{abs(across)} {'left' if across < 0 else 'right'}" if across else ""
    return " ".join(word for word in (f"{ahead} ahead" if ahead else "", side) if word)
