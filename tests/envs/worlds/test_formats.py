"""Observation formats: one family, the same in every world with a board."""

from __future__ import annotations

import pytest

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError
from echoscope.envs.params import described_parameters

BOARDS = {
    "frozen_lake": ("grid", "coord", "both", "relative"),
    "sokoban": ("grid", "coord", "both", "relative"),
    "treasure": ("grid", "relative"),
    "sudoku": ("grid", "relative"),
    "game_2048": ("grid", "relative"),
}


@pytest.mark.parametrize("env_id", BOARDS)
def test_the_formats_of_a_board_show_one_task(env_id: str) -> None:
    listed = described_parameters(registry.spec(env_id).config_type)["observation"]
    assert tuple(listed["values"]) == BOARDS[env_id]
    worlds = {form: registry.make(env_id, observation=form) for form in BOARDS[env_id]}
    for seed in range(20):
        first = {form: world.reset(seed, 0) for form, world in worlds.items()}
        assert len({world.task_key() for world in worlds.values()}) == 1
        assert len({observation.frame for observation in first.values()}) == 1
        assert len({observation.text for observation in first.values()}) == len(worlds)
        if "both" in first:
            assert first["both"].text == f"{first['coord'].text}\n{first['grid'].text}"
        assert "\n" not in first["relative"].text
        moves = worlds["grid"].solve()
        assert moves
        for move in moves[:3]:
            results = [world.step(move) for world in worlds.values()]
            assert len({(r.reward, r.success, r.observation.frame) for r in results}) == 1


def test_a_world_with_one_format_says_so() -> None:
    with pytest.raises(EnvParamsError, match="bandit shows its observations in one format only"):
        registry.make("bandit", observation="coord")
    with pytest.raises(EnvParamsError, match="observation is 'map', but must be one of 'grid'"):
        registry.make("sokoban", observation="map")
