"""Reasoning about worlds: what it says is true of the observation."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.core.warm_start.demonstrations import Demonstration, Lesson, demonstrate
from echoscope.core.warm_start.run import BARE_CONTEXT
from echoscope.envs import registry
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds import bandit
from echoscope.envs.worlds.grid.geometry import offset_words
from echoscope.text.replies import parse_response
from examples.narrators import narrator_of
from examples.narrators.worlds import BOLD, STEADY, first_push, parse_offset

LAKE = EnvGroup(
    env="frozen_lake",
    max_turns=6,
    max_actions_per_turn=1,
    params={"size": 4, "holes": 2, "slip": 0.0, "observation": "relative"},
)
SOKOBAN = EnvGroup(
    env="sokoban", max_turns=8, max_actions_per_turn=1, params={"observation": "relative"}
)
BANDIT = EnvGroup(env="bandit")


def lessons(group: EnvGroup, careful: float, episodes: int = 40) -> list[Demonstration]:
    lesson = Lesson(
        group=group, context=BARE_CONTEXT, episodes=episodes, careful=careful, nonsense=0.0
    )
    return list(demonstrate(lesson, seed=3, narrator_of=narrator_of))


def turns(demo: Demonstration) -> list[tuple[str, str]]:
    return [
        (user.content, assistant.content)
        for user, assistant in zip(demo.messages[::2], demo.messages[1::2], strict=True)
    ]


def test_the_careful_bandit_takes_the_high_arm_every_second_time() -> None:
    # 200 draws at one half: standard deviation 0.035.
    rate = np.mean([bool(demo.success) for demo in lessons(BANDIT, 1.0, 200)])
    assert 0.4 < rate < 0.6


@pytest.mark.parametrize("group", [LAKE, SOKOBAN, BANDIT], ids=lambda group: group.env)
@pytest.mark.parametrize("careful", [0.0, 0.5, 1.0])
def test_every_reply_is_well_formed_and_legal(group: EnvGroup, careful: float) -> None:
    env = registry.make(group.env, **group.params)
    env.reset(0, 0)
    for demo in lessons(group, careful):
        for observation, reply in turns(demo):
            parsed = parse_response(reply, reasoning=True, forced_think=False)
            assert parsed.is_well_formed
            named = {a.lower() for a in env.legal_actions()} | {
                word.lower() for word in re.findall(r"\w+", observation)
            }
            assert {action.lower() for action in parsed.actions} <= named


def test_careful_reasoning_on_the_lake_says_where_the_goal_is_and_what_is_on_the_way() -> None:
    for demo in lessons(LAKE, 1.0):
        for observation, reply in turns(demo):
            where = observation.split("Goal ")[1].split(".")[0]
            assert where in reply
            # Whatever it says about a neighbour is what the observation says.
            for direction, kind in re.findall(r"(up|down|left|right) is (\w+)", reply):
                assert f"{direction} {kind}" in observation


def test_careful_reasoning_in_sokoban_is_about_the_box_and_the_push() -> None:
    for demo in lessons(SOKOBAN, 1.0):
        for observation, reply in turns(demo):
            assert "box" in reply
            for direction, kind in re.findall(r"(up|down|left|right) is (floor|target)", reply):
                assert f"{direction} {kind}" in observation


def test_reasoning_varies_between_samples() -> None:
    rng = np.random.default_rng(0)
    observation = "Goal 2 up 1 right. Near: up ice, down wall, left ice, right hole."
    narrator = narrator_of("frozen_lake")
    reasonings = {narrator.careful(observation, ["up", "up", "right"], rng)[0] for _ in range(60)}
    assert len(reasonings) == 4
    assert "The goal is 2 up 1 right. up is ice, right is hole. I go up." in reasonings


def test_a_detour_is_called_one() -> None:
    rng = np.random.default_rng(0)
    observation = "Goal 2 up. Near: up hole, down wall, left ice, right ice."
    for _ in range(10):
        reasoning, move = narrator_of("frozen_lake").careful(observation, ["left", "up"], rng)
        assert move == "left"
        assert "up is hole" in reasoning
        assert "round" in reasoning


@pytest.mark.parametrize(
    ("env", "observation"),
    [
        ("frozen_lake", "Board 4x4. Goal (0, 1). Player (2, 0). Holes none."),
        ("sokoban", "Box A 1 up. Target A 1 up of box. Box B 1 down. Target B here."),
        ("bandit", "Arms: Alpha, Beta."),
        ("somewhere_else", "A room."),
    ],
)
def test_other_observations_get_plain_reasoning(env: str, observation: str) -> None:
    rng = np.random.default_rng(0)
    reasoning, action = narrator_of(env).careful(observation, ["up"], rng)
    assert action == "up"
    assert "up" in reasoning


def test_every_name_of_the_bandit_has_one_character() -> None:
    pairs = [
        pair
        for which in ("train", "test")
        for pair in bandit.BanditConfig(pairs=which).name_pairs  # type: ignore[arg-type]
    ]
    assert {low for low, _ in pairs} == STEADY
    assert {high for _, high in pairs} == BOLD


@given(st.integers(-20, 20), st.integers(-20, 20))
def test_offsets_read_back(row: int, col: int) -> None:
    assert parse_offset(offset_words((0, 0), (row, col))) == (row, col)


def test_the_first_push_is_the_first_step_into_the_box() -> None:
    # Right, then up brings the player below a box at 2 up 1 right; the next up pushes it.
    assert first_push((-2, 1), ["right", "up", "up", "left"]) == "up"
    assert first_push((0, 1), ["up", "left"]) is None
