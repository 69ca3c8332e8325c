"""FrozenLake: rules by hand, maps by property."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import begin

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds.grid.frozen_lake import FrozenLake, FrozenLakeConfig, Lake, draw_lake
from echoscope.envs.worlds.grid.geometry import Position, distances, shift, walk_over


def lake_at(monkeypatch: pytest.MonkeyPatch, rows: list[str], **config: Any) -> FrozenLake:
    """A lake with the board `rows`: P start, G goal, O holes."""
    cells = {(r, c): char for r, row in enumerate(rows) for c, char in enumerate(row)}
    holes = frozenset(position for position, char in cells.items() if char == "O")
    where = {char: position for position, char in cells.items()}
    lake = Lake(
        shape=(len(rows), len(rows[0])),
        start=where["P"],
        goal=where["G"],
        holes=holes,
        to_goal=distances(where["G"], walk_over(set(cells) - holes)),
    )
    monkeypatch.setattr(
        "echoscope.envs.worlds.grid.frozen_lake.draw_lake", lambda config, seed: lake
    )
    env = FrozenLake(FrozenLakeConfig(**{"slip": 0.0, **config}))
    env.reset(0, 0)
    return env


BOARD = ["_G__", "____", "_PO_", "____"]


def test_the_relative_observation_is_short_and_regular(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake_at(monkeypatch, BOARD, observation="relative")
    assert env.reset(0, 0).text == "Goal 2 up. Near: up ice, down ice, left ice, right hole."
    assert env.step("left").observation.text == (
        "Goal 2 up 1 right. Near: up ice, down ice, left wall, right ice."
    )
    assert env.step("jump").observation.text == (
        "Invalid. Goal 2 up 1 right. Near: up ice, down ice, left wall, right ice."
    )


def test_the_grid_and_the_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake_at(monkeypatch, BOARD, observation="both")
    assert env.reset(0, 0).text == (
        "Board 4x4. Goal (0, 1). Player (2, 1). Holes (2, 2).\n_G__\n____\n_PO_\n____"
    )
    assert env.step("right").observation.text.splitlines()[-2] == "__X_"
    env.reset(0, 0)
    env.step("up")
    assert env.step("up").observation.text.splitlines()[1] == "_*__"


def test_the_goal_pays_one_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake_at(monkeypatch, BOARD)
    first = env.step("up")
    assert (first.reward, first.terminated, first.success) == (0.0, False, False)
    assert first.info == {"slipped": 0.0, "distance": 1.0}
    last = env.step("up")
    assert (last.reward, last.terminated, last.success) == (1.0, True, True)
    after = env.step("up")
    assert (after.reward, after.is_valid, after.terminated) == (0.0, False, True)


def test_a_hole_ends_without_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake_at(monkeypatch, BOARD, observation="relative")
    result = env.step("right")
    assert (result.reward, result.terminated, result.success) == (0.0, True, False)
    assert result.observation.text.startswith("In a hole. ")
    assert env.solve() is None


def test_the_edge_stops_a_move_that_is_still_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake_at(monkeypatch, ["PG", "__"])
    result = env.step("left")
    assert (result.is_valid, result.is_effective) == (True, False)


def test_the_expert_takes_a_shortest_safe_path(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake_at(monkeypatch, ["PO_", "_OG", "___"])
    assert env.solve() == ["down", "down", "right", "right", "up"]


def test_the_frame_is_json_with_the_player_as_an_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake_at(monkeypatch, BOARD)
    assert json.loads(env.reset(0, 0).frame or "") == {
        "kind": "grid",
        "size": [4, 4],
        "cells": ["_G__", "____", "__O_", "____"],
        "legend": {"_": "ice", "O": "hole", "G": "goal"},
        "overlays": [{"is": "player", "at": [2, 1]}],
    }


def test_slip_goes_to_each_side_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lake_at(monkeypatch, ["____", "_P__", "___G"], slip=0.5)
    count = {"Player (0, 1)": 0, "Player (1, 0)": 0, "Player (1, 2)": 0}
    for noise_seed in range(2000):
        env.reset(0, noise_seed)
        result = env.step("up")
        cell = json.loads(result.observation.frame or "")["overlays"][0]["at"]
        count[f"Player ({cell[0]}, {cell[1]})"] += 1
        assert result.info["slipped"] == float(cell != [0, 1])
    # 1000, 500 and 500 expected; five standard deviations are 112 and 97.
    assert abs(count["Player (0, 1)"] - 1000) < 112
    assert abs(count["Player (1, 0)"] - 500) < 97
    assert abs(count["Player (1, 2)"] - 500) < 97


def test_a_slip_sweep_compares_the_same_luck() -> None:
    # Whoever slips at 0.2 slips at 0.6 too, since the same draws are compared with both.
    for noise_seed in range(50):
        slipped = []
        for slip in (0.2, 0.6):
            env = FrozenLake(FrozenLakeConfig(slip=slip, holes=0, size=16))
            env.reset(1, noise_seed)
            slipped.append([env.step("up").info["slipped"] for _ in range(5)])
        assert all(low <= high for low, high in zip(*slipped, strict=True))


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(2, 16),
    cols=st.integers(2, 16),
    seed=st.integers(0, 2**63 - 1),
    data=st.data(),
)
def test_every_map_is_solvable_within_its_limits(
    rows: int, cols: int, seed: int, data: st.DataObject
) -> None:
    min_distance = data.draw(st.integers(1, rows + cols - 2))
    holes = data.draw(st.none() | st.integers(0, rows * cols - min_distance - 1))
    config = FrozenLakeConfig(
        size=(rows, cols),
        holes=holes,
        hole_probability=data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        min_distance=min_distance,
        max_distance=data.draw(st.none() | st.integers(min_distance, 300)),
    )
    lake = draw_lake(config, seed)
    assert holes is None or len(lake.holes) == holes
    assert lake.start not in lake.holes
    assert lake.goal not in lake.holes
    length = lake.to_goal[lake.start]
    assert min_distance <= length
    assert config.max_distance is None or length <= config.max_distance


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"size": 1}, r"each side must be at least 2 and at most 16"),
        ({"size": [4, 17]}, r"each side must be at least 2 and at most 16"),
        ({"slip": 1.5}, "slip is 1.5"),
        ({"hole_probability": -0.1}, "hole_probability is -0.1"),
        ({"holes": 15}, "room for at most 14"),
        ({"holes": 2.0}, "holes is 2.0, but must be an integer or null"),
        ({"min_distance": 7}, r"must be at least 1 and at most 6 on a 4x4 board"),
        ({"min_distance": 3, "max_distance": 2}, "at least min_distance"),
        ({"observation": "image"}, "must be one of 'grid', 'coord', 'both', 'relative'"),
    ],
)
def test_bad_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvParamsError, match=message):
        registry.make("frozen_lake", **params)


def test_instructions_follow_the_configuration() -> None:
    plain = registry.make("frozen_lake", slip=0.0, observation="relative").instructions()
    assert plain == (
        "Walk over the ice to the goal. Do not step into a hole. Actions: up, down, left, right."
    )
    full = registry.make("frozen_lake", slip=0.25, observation="both").instructions()
    assert "slip sideways with probability 0.25" in full
    assert "P is you" in full
    assert "(row, column)" in full


def best_chance(lake: Lake, slip: float, num_actions: int) -> float:
    """Probability to reach the goal in `num_actions` actions, each the best one: from the end."""
    rows, cols = lake.shape

    def after(position: Position, move: str) -> Position:
        to = shift(position, move)
        return to if 0 <= to[0] < rows and 0 <= to[1] < cols else position

    sideways = {"up": "left right", "down": "left right", "left": "up down", "right": "up down"}
    chance = {(row, col): 0.0 for row in range(rows) for col in range(cols)} | {lake.goal: 1.0}
    for _ in range(num_actions):
        moved = {
            position: max(
                (1 - slip) * chance[after(position, move)]
                + slip / 2 * sum(chance[after(position, side)] for side in sideways[move].split())
                for move in sideways
            )
            for position in chance
        }
        chance = {
            position: 1.0
            if position == lake.goal
            else 0.0
            if position in lake.holes
            else moved[position]
            for position in chance
        }
    return chance[lake.start]


def test_the_slippery_lake_can_be_crossed_within_the_shipped_limits() -> None:
    config, spec = FrozenLakeConfig(), FrozenLake.spec
    budget = spec.max_turns * spec.max_actions_per_turn
    chances = [best_chance(draw_lake(config, seed), config.slip, budget) for seed in range(200)]
    assert config.slip == 0.2
    assert sum(chances) / len(chances) >= 0.95


def test_the_careful_expert_keeps_away_from_holes_that_a_slip_would_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = ["____", "P__G", "OOOO"]
    shortest = lake_at(monkeypatch, rows, slip=0.2, expert="shortest")
    assert shortest.solve() == ["right", "right", "right"]
    careful = lake_at(monkeypatch, rows, slip=0.2)
    assert (careful.solve() or [""])[0] == "up"


def test_both_experts_walk_the_same_path_where_nothing_slips() -> None:
    for seed in range(50):
        paths = set()
        for expert in ("careful", "shortest"):
            lake = FrozenLake(FrozenLakeConfig(slip=0.0, expert=expert))
            lake.reset(seed, 0)
            paths.add(tuple(lake.solve() or ()))
        assert len(paths) == 1


def test_the_careful_expert_comes_close_to_the_best_possible_play() -> None:
    # Asked after each move, on many draws of the slips, against backward induction.
    config = FrozenLakeConfig(slip=0.3, hole_probability=0.2)
    seeds, draws, budget = range(12), 100, 20
    arrived = 0
    for seed, noise in itertools.product(seeds, range(draws)):
        lake = FrozenLake(config)
        lake.reset(seed, noise)
        for _ in range(budget):
            result = lake.step((lake.solve() or [""])[0])
            if result.terminated:
                arrived += result.success is True
                break
    best = sum(best_chance(draw_lake(config, seed), config.slip, budget) for seed in seeds)
    assert best - 1 < arrived / draws <= best + 0.5  # four standard deviations of 1,200 draws


def test_siblings_slip_each_on_its_own() -> None:
    group = EnvGroup(env="frozen_lake", groups=1, params={"slip": 0.5})
    with EnvPool([group], group_size=8, seed=0, split="train") as pool:
        seen = {slot.index: [slot.observation.text] for slot in begin(pool, 0)}
        running = list(seen)
        while running:
            results = {slot: pool.step_one(slot, ["down", "right"], True) for slot in running}
            for i, result in results.items():
                seen[i].append(result.observation.text)
            running = [i for i in running if results[i].stop_reason is None]
    assert len({texts[0] for texts in seen.values()}) == 1
    assert len({tuple(texts) for texts in seen.values()}) >= 4
