"""MiniGrid's numbers as words: by hand, and on its own worlds where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from echoscope.envs.checks.check_env import check_env
from echoscope.envs.registry import make
from echoscope.envs.worlds.grid.minigrid_words import words_of

PARAMS = {"env": "minigrid:MiniGrid-DoorKey-5x5-v0", "success_reward": 0.01}
EMPTY, WALL = (1, 0, 0), (2, 5, 0)


def view(**cells: tuple[int, int, int]) -> np.ndarray:
    """A view of 3 columns and 3 rows; the player stands at x1y2."""
    image = np.full((3, 3, 3), EMPTY, np.uint8)
    for position, cell in cells.items():
        image[int(position[1]), int(position[3])] = cell
    return image


def test_what_lies_where_by_hand() -> None:
    image = view(x1y1=(4, 4, 2), x0y0=(5, 4, 0), x2y2=WALL, x2y0=(8, 1, 0))
    assert words_of({"image": image, "direction": 0, "mission": "use the key"}) == (
        "Mission: use the key. You face east. Near: ahead locked yellow door, left empty, right "
        "wall. You see: locked yellow door 1 ahead; yellow key 2 ahead 1 left; goal 2 ahead 1 "
        "right. You carry: nothing."
    )


def test_what_is_carried_lies_where_the_player_stands() -> None:
    text = words_of({"image": view(x1y2=(6, 2, 0)), "direction": 3, "mission": "put it down"})
    assert text is not None
    assert text.endswith("You see: nothing else. You carry: blue ball.")
    assert "You face north." in text


@pytest.mark.parametrize(
    "value",
    [
        3,
        {"image": view(), "direction": 0},
        {"image": np.zeros((3, 3)), "direction": 0, "mission": "x"},
        {"image": np.full((3, 3, 3), 200), "direction": 0, "mission": "x"},
    ],
)
def test_other_worlds_are_left_alone(value: object) -> None:
    assert words_of(value) is None


def test_minigrids_own_worlds_are_told_in_words() -> None:
    pytest.importorskip("minigrid", reason="needs MiniGrid: make test-worlds")
    world = make("gymnasium", **PARAMS)
    first = world.reset(3, 0).text
    assert first.startswith("Mission: use the key to open the door and then get to the goal.")
    assert "forward" in world.legal_actions()
    assert world.reset(3, 0).text == first
    assert check_env("gymnasium", PARAMS).failed == {}
