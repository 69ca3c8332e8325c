"""Treasure: mazes that are long by construction, keys before doors, rewards by hand."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pytest

from echoscope.envs.base import EnvParamsError
from echoscope.envs.registry import make
from echoscope.envs.worlds.grid.geometry import MOVES
from echoscope.envs.worlds.grid.treasure import Treasure, TreasureConfig


def fewest_moves(drawing: list[str]) -> int:
    """Breadth first over the drawn maze; two cells are one move."""
    cells = {(r, c): char for r, line in enumerate(drawing) for c, char in enumerate(line)}
    (start,) = [cell for cell, char in cells.items() if char == "P"]
    queue = deque([(start, frozenset[str](), 0)])
    reached = {queue[0][:2]}
    while queue:
        (row, col), keys, steps = queue.popleft()
        if cells[row, col] == "$":
            return steps // 2
        for down, right in MOVES.values():
            there = (row + down, col + right)
            char = cells[there]
            if char == "#" or (char.isupper() and char != "P" and char.lower() not in keys):
                continue
            after = (there, keys | {char} if char.islower() else keys)
            if after not in reached:
                reached.add(after)
                queue.append((*after, steps + 1))
    raise AssertionError("no way to the treasure")


@pytest.mark.parametrize("keys", [0, 2, 4])
def test_the_expert_needs_as_few_moves_as_a_search_over_the_drawing(keys: int) -> None:
    world = Treasure(TreasureConfig(observation="grid", keys=keys, size=(5, 7), min_solution=12))
    for seed in range(12):
        drawing = world.reset(seed, 0).text.splitlines()
        assert len(world.solve() or []) == fewest_moves(drawing)


@pytest.mark.long
def test_by_default_every_task_takes_thirty_moves_and_fits_the_limits() -> None:
    world = Treasure()
    for seed in range(200):
        world.reset(seed, 0)
        way = world.solve() or []
        assert 30 <= len(way) <= Treasure.spec.max_turns * Treasure.spec.max_actions_per_turn
        results = [world.step(move) for move in way]
        assert [result.terminated for result in results].index(True) == len(way) - 1
        assert results[-1].success
        # Two keys, two doors, the treasure, and 0.1 a move.
        total = sum(result.reward for result in results)
        assert total == pytest.approx(2 + 2 + 10 - 0.1 * len(way))


def test_a_locked_door_holds_and_its_key_opens_it() -> None:
    world = Treasure(TreasureConfig(keys=1))
    for seed in range(40):
        text = world.reset(seed, 0).text
        while "locked red door" not in text and "Holding: nothing" in text:
            text = world.step((world.solve() or [])[0]).observation.text
        if "locked red door" in text:
            break
    sides = dict(part.split(" ", 1) for part in text.split("Near: ")[1].split(". ")[0].split(", "))
    move = next(move for move, what in sides.items() if what == "locked red door")
    result = world.step(move)
    assert (result.is_valid, result.is_effective, result.reward) == (True, False, -0.1)
    way = world.solve() or []
    rewards = [world.step(step).reward for step in way]
    assert sum(rewards) == pytest.approx(1 + 1 + 10 - 0.1 * len(way))
    assert sum(reward > 0 for reward in rewards) in (2, 3)  # the treasure may lie behind the door


def reluctance(side: str) -> float:
    """Doors first, then new rooms, then those entered least."""
    if side == "wall" or side.startswith("locked"):
        return float("inf")
    return float(side.split()[1]) if side.startswith("seen") else -float("door" in side)


def test_one_observation_is_enough_to_go_on() -> None:
    """A player without memory who reads the last line only (least visited side first) arrives."""
    steps = []
    for seed in range(20):
        world = Treasure()
        text, result = world.reset(seed, 0).text, None
        for step in range(600):  # noqa: B007 - the number of moves is kept
            near = text.split("Near: ")[1].split(". Holding")[0]
            sides = dict(part.split(" ", 1) for part in near.split(", "))
            move = min(sides, key=lambda move: reluctance(sides[move]))
            result = world.step(move)
            text = result.observation.text
            if result.terminated:
                break
        assert result is not None
        assert result.success
        steps.append(step)
    assert sum(steps) / len(steps) < 200


def test_the_frame_draws_what_the_text_says() -> None:
    world = Treasure(TreasureConfig(observation="grid"))
    seen = world.reset(3, 0)
    frame: dict[str, Any] = json.loads(seen.frame or "")
    marks = {
        "player": "P", "treasure": "$", "red key": "a", "blue key": "b", "red door": "A",
        "blue door": "B",
    }  # fmt: skip
    for overlay in frame["overlays"]:
        row, col = overlay["at"]
        assert seen.text.splitlines()[row][col] == marks[overlay["is"]]
    assert frame["size"] == [13, 13]


def test_the_task_is_the_maze_and_not_its_observation() -> None:
    keys = set()
    for observation in ("grid", "relative"):
        world = make("treasure", observation=observation)
        world.reset(5, 0)
        keys.add(world.task_key())
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"size": 2}, "each side must be at least"),
        ({"size": [3, 11]}, "each side must be at least"),
        ({"keys": 5}, "keys is 5, but must be at least"),
        ({"min_solution": 50}, "min_solution is 50, but must be at least"),
        ({"size": 3, "min_solution": 40}, "treasure drew no maze of 3x3 rooms with 2 keys"),
    ],
)
def test_wrong_parameters(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EnvParamsError, match=sentence):
        make("treasure", **params)
