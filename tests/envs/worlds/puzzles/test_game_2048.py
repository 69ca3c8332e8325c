"""2048: rows slide as the game says, the noise draws the tiles, the expert reaches the goal."""

from __future__ import annotations

import math

import pytest

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds.puzzles.game_2048 import (
    MOVES,
    Game2048,
    Game2048Config,
    Row,
    slide,
    slide_row,
)


@pytest.mark.parametrize(
    ("row", "after", "points"),
    [
        ((2, 2, 0, 0), (4, 0, 0, 0), 4),
        ((2, 0, 2, 2), (4, 2, 0, 0), 4),
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),
        ((2, 4, 8, 16), (2, 4, 8, 16), 0),
        ((0, 0, 0, 8), (8, 0, 0, 0), 0),
    ],
)
def test_a_row_slides_to_the_left(row: Row, after: Row, points: int) -> None:
    assert slide_row(row) == (after, points)


def test_a_board_slides_to_every_side() -> None:
    tiles = ((2, 0), (2, 4))
    assert {move: slide(tiles, move) for move in MOVES} == {
        "up": (((4, 4), (0, 0)), 4),
        "down": (((0, 0), (4, 4)), 4),
        "left": (((2, 0), (2, 4)), 0),
        "right": (((0, 2), (2, 4)), 0),
    }


def test_rewards_and_info_of_a_merge() -> None:
    for form, reward in (("progress", 0.5), ("log", 0.1 * math.log2(5)), ("points", 4.0)):
        world = Game2048(Game2048Config(two_probability=1.0, reward=form))
        world.reset(0, 0)
        rewards = []
        while not rewards or rewards[-1] == 0:
            rewards.append(world.step(MOVES[len(rewards) % 4]).reward)
        assert rewards[-1] == pytest.approx(reward)


def test_a_late_win_earns_what_an_early_one_does() -> None:
    early = Game2048(Game2048Config(side=3, goal=16, two_probability=1.0))
    late = Game2048(Game2048Config(side=3, goal=16, two_probability=1.0))
    early._tiles = ((8, 8, 0), (0, 0, 0), (0, 0, 0))
    late._tiles = ((8, 8, 0), (8, 4, 4), (4, 4, 0))
    assert early.step("left").reward == late.step("left").reward == 0.5 + 10


def test_merges_that_beat_no_tile_earn_nothing() -> None:
    world = Game2048(Game2048Config(two_probability=1.0))
    world._tiles = ((64, 4, 4, 0),) + ((0, 0, 0, 0),) * 3
    assert world.step("left").reward == 0.0


def test_a_move_that_changes_nothing_draws_no_tile() -> None:
    world = Game2048()
    world.reset(1, 1)
    world.step("left")
    before = world.step("up")
    while before.is_effective:
        before = world.step("up")
    again = world.step("up")
    assert (again.is_valid, again.is_effective, again.reward) == (True, False, 0.0)
    assert again.observation == before.observation


def test_siblings_share_the_first_board_and_draw_their_own_tiles() -> None:
    world = Game2048()
    first = {world.reset(5, noise).text for noise in range(8)}
    after = set()
    for noise in range(8):
        world.reset(5, noise)
        after.add(max((world.step(move).observation.text for move in MOVES), key=len))
    assert len(first) == 1 < len(after)


def test_a_full_board_without_equal_neighbours_ends_the_game() -> None:
    world = Game2048(Game2048Config(side=2, goal=16, two_probability=1.0))
    for seed in range(20):
        world.reset(seed, seed)
        result = world.step("left")
        for number in range(200):
            if result.terminated:
                break
            result = world.step(MOVES[number % 4])
        assert result.terminated
        assert result.success == (result.info["largest"] >= 16)
        assert not world.step("left").is_valid


@pytest.mark.long
def test_the_expert_reaches_the_goal_within_the_shipped_budget() -> None:
    world = Game2048()
    solved = 0
    for seed in range(40):
        world.reset(seed, seed)
        moves = world.solve()
        solved += moves is not None and len(moves) <= world.spec.max_turns
    assert solved >= 38


def test_the_default_has_boards_enough_to_keep_some_for_evaluation() -> None:
    with EnvPool([EnvGroup(env="game_2048")], group_size=1, seed=0, split="eval") as pool:
        assert pool.varieties()[0][1].is_enough


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"goal": 100}, "power of two"),
        ({"side": 2, "goal": 32}, "from 8 to 16"),
        ({"side": 9}, "side"),
        ({"start_tiles": 16}, r"start_tiles is 16, but must be at least 1 and at most 15"),
        ({"goal_reward": -1.0}, "goal_reward is -1"),
    ],
)
def test_bad_parameters(params: dict[str, object], message: str) -> None:
    with pytest.raises(EnvParamsError, match=message):
        registry.make("game_2048", **params)


def test_the_relative_observation_says_what_each_move_gives() -> None:
    world = Game2048(Game2048Config(side=2, goal=16, observation="relative"))
    world.reset(0, 0)
    world._tiles = ((4, 4), (2, 0))
    assert world.observe().text == "Largest 4 of 16. up none, right 8, down 0, left 8."
    assert world.step("jump").observation.text.startswith("Invalid. Largest 4 of 16. ")
