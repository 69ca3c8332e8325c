"""Reasoning about puzzles: every step that it shows is right, and it leads to the action."""

from __future__ import annotations

import re

import numpy as np
import pytest

from echoscope.core.warm_start.demonstrations import Lesson, demonstrate
from echoscope.core.warm_start.run import BARE_CONTEXT
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds.tools.calculator import calculate
from examples.narrators import narrator_of
from examples.narrators.puzzles import simple_expressions, steps_of

RNG = np.random.default_rng(0)
GROUPS = [
    EnvGroup(env="countdown", max_turns=1, params={"numbers": 3, "operations": "+-"}),
    EnvGroup(env="countdown", max_turns=1, params={"numbers": 2}),
    EnvGroup(
        env="sudoku", max_turns=4, params={"side": 4, "empties": 4, "observation": "relative"}
    ),
    EnvGroup(env="rubiks", max_turns=2, max_actions_per_turn=1, params={"depth": 2}),
    EnvGroup(env="static_qa", max_turns=1, params={"kinds": ["gift", "boxes", "shares", "ages"]}),
]


def teach(group: EnvGroup, careful: float) -> list[bool]:
    lesson = Lesson(group=group, context=BARE_CONTEXT, episodes=30, careful=careful, nonsense=0.0)
    episodes = demonstrate(lesson, seed=3, narrator_of=narrator_of)
    return [bool(episode.success) for episode in episodes]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.env)
def test_a_careful_expert_always_succeeds_and_a_careless_one_seldom(group: EnvGroup) -> None:
    assert np.mean(teach(group, 1.0)) == 1.0
    assert np.mean(teach(group, 0.0)) < 0.5


def test_countdown_stops_at_the_target() -> None:
    narrator = narrator_of("countdown")
    reasonings = {
        narrator.careful("Numbers: 3, 5, 9. Target: 7.", ["9-5+3"], RNG)[0] for _ in range(20)
    }
    assert reasonings == {
        "3+5+9 is 17, 5+9-3 is 11, 3+9-5 is 7, yes.",
        "3+5+9 makes 17. 5+9-3 makes 11. 3+9-5 makes 7. That is 7.",
    }


def test_simple_expressions_use_every_number_once() -> None:
    assert list(simple_expressions([5, 7])) == ["5+7", "7-5", "5*7", "7/5"]
    for expression in simple_expressions([2, 3, 4, 9]):
        assert sorted(re.findall(r"\d", expression)) == ["2", "3", "4", "9"]
        calculate(expression)


def test_sudoku_says_what_a_cell_sees() -> None:
    observation = (
        "Empty 1,2: row 1, column 1 3, box 1. Empty 2,2: row 2 3, column 1, box 2. 4 at 3,3."
    )
    reasoning, action = narrator_of("sudoku").careful(observation, ["1,2,2", "2,2,4"], RNG)
    assert action == "2,2,4"
    assert "2,2" in reasoning
    assert "1 2 3" in reasoning


def test_sudoku_corrects_what_is_in_conflict() -> None:
    observation = "3 in conflict at 1,2: row 1 3, column 4, box 1."
    reasoning, action = narrator_of("sudoku").careful(observation, ["1,2,2"], RNG)
    assert action == "1,2,2"
    assert "rong" in reasoning
    assert "1 3 4" in reasoning


@pytest.mark.parametrize(
    ("prospects", "move", "word"),
    [
        ("up none, right 4, down 0, left 8.", "left", "8"),
        ("up none, right 0, down 0, left 0.", "right", "o"),
        ("up 4, right 4, down none, left none.", "up", "4"),
    ],
)
def test_2048_takes_the_most_points(prospects: str, move: str, word: str) -> None:
    observation = f"Largest 4 of 16. {prospects}"
    reasoning, action = narrator_of("game_2048").careful(observation, ["down"], RNG)
    assert action == move
    assert word in reasoning


def test_word_problems_step_by_step() -> None:
    assert steps_of(
        "Ben is 9 years old. Ada is 3 times as old. How old will Ada be in 7 years?"
    ) == [
        "9*3=27",
        "27+7=34",
    ]
    assert steps_of("How many roads must a man walk down?") is None


@pytest.mark.parametrize("env", ["countdown", "sudoku", "rubiks", "game_2048", "static_qa"])
def test_an_observation_that_no_narrator_knows_gets_a_plain_reason(env: str) -> None:
    reasoning, action = narrator_of(env).careful("Invalid.", ["42"], RNG)
    assert action == "42"
    assert "42" in reasoning
