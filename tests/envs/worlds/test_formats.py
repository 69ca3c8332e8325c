"""Observation formats: one family, the same in every world with a board."""

from __future__ import annotations

import pytest

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError
from echoscope.envs.params import choices

BOARDS = {
    "frozen_lake": ("grid", "coord", "both", "relative"),
    "sokoban": ("grid", "coord", "both", "relative"),
    "treasure": ("grid", "coord", "both", "relative"),
    "sudoku": ("grid", "coord", "both", "relative"),
    "game_2048": ("grid", "coord", "both", "relative"),
    "rubiks": ("grid", "coord", "both"),
}


@pytest.mark.parametrize("env_id", BOARDS)
def test_the_formats_of_a_board_show_one_task(env_id: str) -> None:
    assert choices(registry.spec(env_id).config_type, "observation") == BOARDS[env_id]
    worlds = {form: registry.make(env_id, observation=form) for form in BOARDS[env_id]}
    for seed in range(20):
        first = {form: world.reset(seed, 0) for form, world in worlds.items()}
        assert len({world.task_key() for world in worlds.values()}) == 1
        assert len({observation.frame for observation in first.values()}) == 1
        assert len({observation.text for observation in first.values()}) == len(worlds)
        assert first["both"].text == f"{first['coord'].text}\n{first['grid'].text}"
        assert "\n" not in first["coord"].text
        moves = worlds["grid"].solve()
        assert moves
        for move in moves[:3]:
            results = [world.step(move) for world in worlds.values()]
            assert len({(r.reward, r.success, r.observation.frame) for r in results}) == 1


def test_coordinates_by_hand() -> None:
    texts = {
        "sudoku": "Given: 4 at 1,1; 3 at 1,2; 1 at 1,4; 2 at 2,2; 4 at 2,4; 2 at 3,1; 4 at 3,2; "
        "3 at 3,4; 4 at 4,3; 2 at 4,4. Placed: none. In conflict: none. "
        "Empty: 1,3; 2,1; 2,3; 3,3; 4,1; 4,2.",
        "game_2048": "Tiles: 2 at 1,2; 2 at 3,2; 2 at 4,2. Empty: 13. Largest: 2. Goal: 256.",
        "rubiks": "Stickers (face, row, column): W U21, L11, L21, F22; Y D11, R11, R12, B21; "
        "O D21, L12, L22, B11; R U11, R21, R22, F12; G D12, D22, F11, F21; B U12, U22, B12, B22.",
    }
    for env_id, text in texts.items():
        params = {"depth": 2} if env_id == "rubiks" else {}
        assert registry.make(env_id, observation="coord", **params).reset(0, 0).text == text
    sudoku = registry.make("sudoku", observation="coord")
    sudoku.reset(0, 0)
    shown = sudoku.step("1,3,1").observation.text
    assert "Placed: 1 at 1,3. In conflict: 1,3." in shown


def test_a_world_with_one_format_says_so() -> None:
    with pytest.raises(EnvParamsError, match="bandit shows its observations in one format only"):
        registry.make("bandit", observation="coord")
    with pytest.raises(EnvParamsError, match="observation is 'map', but must be one of 'grid'"):
        registry.make("sokoban", observation="map")
