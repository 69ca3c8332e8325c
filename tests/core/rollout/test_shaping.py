"""Shaping terms: what the built-in ones say, and how a wrong one is refused."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import ShapingTerm
from echoscope.core.rollout.shaping import (
    Shaping,
    ShapingError,
    apply,
    penalize_length,
    resolve,
    reward_agreement,
    reward_format,
)
from echoscope.store.records import Turn


def turn(reasoning: str = "", *, num_tokens: int = 4, index: int = 0, **fields) -> Turn:
    response = f"<think>{reasoning}</think><answer>x</answer>"
    start = len("<think>")
    return Turn(
        index=index,
        observation="",
        response=response,
        reasoning_chars=(start, start + len(reasoning)),
        **{"answer_chars": (len(response) - 10, len(response) - 9)} | fields,
        prompt_tokens=np.array([1]),
        response_tokens=np.zeros(num_tokens),
    )


def term(function: str, **changes) -> ShapingTerm:
    return ShapingTerm(**{"name": "term", "function": function} | changes)


class TestFormat:
    def test_a_complete_valid_reply_gets_1(self):
        assert reward_format(turn("up")) == 1

    def test_a_missing_part_or_an_invalid_action_gets_0(self):
        assert reward_format(turn(answer_chars=None)) == 0
        assert reward_format(turn(is_valid=False)) == 0
        bare = Turn(index=0, observation="", response="<answer>x</answer>", answer_chars=(8, 9))
        assert reward_format(bare) == 0
        assert reward_format(bare, reasoning=False) == 1


class TestLength:
    @pytest.mark.parametrize(
        ("num_tokens", "expected"), [(0, 0), (100, 0), (150, -0.5), (200, -1), (900, -1)]
    )
    def test_falls_from_soft_to_hard(self, num_tokens, expected):
        assert penalize_length(turn(num_tokens=num_tokens), soft=100, hard=200) == expected

    def test_of_the_reasoning(self):
        long = turn(num_tokens=20, reasoning_span=(2, 8))
        assert penalize_length(long, soft=4, hard=8, part="reasoning") == -0.5
        assert penalize_length(turn(num_tokens=20), soft=4, hard=8, part="reasoning") == 0


class TestAgreement:
    def test_the_last_named_move_counts(self):
        assert reward_agreement(turn("left is a hole, so go UP.", actions=("Up",))) == 1
        assert reward_agreement(turn("go up, then left", actions=("Up",))) == 0

    def test_several_actions_are_judged_by_the_last(self):
        assert reward_agreement(turn("first up and then right", actions=("Up", "Right"))) == 1

    def test_naming_no_move_or_doing_nothing_gets_0(self):
        assert reward_agreement(turn("let me see", actions=("Up",))) == 0
        assert reward_agreement(turn("go up")) == 0

    def test_whole_words_only(self):
        assert reward_agreement(turn("an uplifting upright look", actions=("Up",))) == 0

    def test_other_moves_taken_literally(self):
        move = turn("pull a.b", actions=("a.b",))
        assert reward_agreement(move, moves=["a.b", "a"]) == 1
        assert reward_agreement(turn("pull axb", actions=("axb",)), moves=["a.b"]) == 0


class TestResolve:
    def test_no_terms_no_shaping(self):
        assert resolve([]) is None

    def test_values_are_weighted_and_named(self):
        shaping = resolve(
            [
                term("format", name="well_formed", weight=0.5),
                term("length", name="overlong", weight=2.0, params={"soft": 0, "hard": 8}),
            ]
        )
        assert shaping(turn("up")) == {"well_formed": 0.5, "overlong": -1.0}

    def test_an_own_function(self, monkeypatch):
        module = ModuleType("my_rewards")
        module.words = lambda turn, scale=1: scale * len(turn.reasoning.split())
        monkeypatch.setitem(sys.modules, "my_rewards", module)
        shaping = resolve([term("my_rewards:words", params={"scale": 10})])
        assert shaping(turn("two words")) == {"term": 20.0}
        with pytest.raises(ConfigError, match=r"no function 'word'; did you mean 'words'\?"):
            resolve([term("my_rewards:word")])

    @pytest.mark.parametrize("value", [math.nan, math.inf, "1", None])
    def test_a_result_that_is_no_finite_number_is_an_error(self, monkeypatch, value):
        module = ModuleType("my_rewards")
        module.bad = lambda turn: value
        monkeypatch.setitem(sys.modules, "my_rewards", module)
        with pytest.raises(ShapingError, match=r"'term' \(my_rewards:bad\) returned .* turn 3"):
            resolve([term("my_rewards:bad")])(turn(index=3))

    def test_unknown_functions(self):
        with pytest.raises(
            ConfigError, match=r"'lenght'; did you mean 'length'\?.*module:function"
        ):
            resolve([term("lenght")])
        with pytest.raises(ConfigError, match="cannot import 'no_such_module'"):
            resolve([term("no_such_module:f")])
        with pytest.raises(ConfigError, match="module:function"):
            resolve([term("math:")])

    def test_wrong_parameters_are_found_before_the_first_rollout(self):
        with pytest.raises(ConfigError, match=r"do not fit length.*missing a required"):
            resolve([term("length")])
        with pytest.raises(ConfigError, match="unexpected keyword argument 'target'"):
            resolve([term("format", params={"target": 3})])
        with pytest.raises(ConfigError, match="0 <= soft < hard must hold"):
            resolve([term("length", params={"soft": 9, "hard": 3})])
        with pytest.raises(ConfigError, match="'term'"):
            resolve([term("length", params={"soft": "a", "hard": 3})])
        with pytest.raises(ConfigError, match="'response' or 'reasoning'"):
            resolve([term("length", params={"soft": 1, "hard": 3, "part": "answer"})])
        with pytest.raises(ConfigError, match="moves must name at least one move"):
            resolve([term("agreement", params={"moves": []})])

    def test_names_must_be_free(self):
        with pytest.raises(ConfigError, match=r"the format penalty.*'format_bonus'"):
            resolve([term("format", name="format")])
        with pytest.raises(ConfigError, match="two terms named 'term'"):
            resolve([term("format"), term("format")])


def test_apply_fills_every_turn_and_leaves_the_rest():
    trajectory = make_trajectory(
        turn("up", reward=1.0),
        turn(index=1, is_valid=False, format_penalty=-0.1),
        tag="bandit",
        prompt_key="0" * 16,
    )
    shaped = apply(trajectory, resolve([term("format", name="bonus", weight=0.5)]))
    assert [dict(each.shaping) for each in shaped.turns] == [{"bonus": 0.5}, {"bonus": 0.0}]
    assert shaped.env_return == 1.0
    assert shaped.episode_return == pytest.approx(1.4)
    assert shaped.reward_terms == pytest.approx({"env": 1.0, "format": -0.1, "bonus": 0.5})
    assert [dict(each.shaping) for each in apply(shaped, None).turns] == [{}, {}]


def test_a_shaping_function_that_exits_is_an_error_of_one_line() -> None:
    """`sys.exit(0)` in somebody's function ended the run without a word."""
    leaving = Shaping(terms=((term("format", name="bonus"), lambda turn: sys.exit(0)),))
    with pytest.raises(ShapingError, match="failed on turn 0: SystemExit: 0"):
        leaving(turn("up"))
