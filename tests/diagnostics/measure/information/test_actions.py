"""I(X;A) of counts: corrected for chance, with an exact ceiling and a permutation test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.diagnostics.measure.information.actions import estimate_actions, first_actions
from echoscope.store.records import Trajectory, Turn


def trajectory(prompt: str, *actions: str) -> Trajectory:
    return make_trajectory(
        Turn(index=0, observation="", response="", actions=actions),
        step=0,
        tag="lake",
        prompt_key=prompt,
    )


def test_one_action_per_prompt_reaches_the_ceiling() -> None:
    one = estimate_actions(list("aaaabbbbcccc"), [0] * 4 + [1] * 4 + [2] * 4)
    assert one.mutual_information == pytest.approx(math.log(3))
    assert one.ceiling == pytest.approx(math.log(3))
    assert one.plug_in == pytest.approx(math.log(3))
    # 12! / (4!)^3 deals, 3! of which are as good: far below 1 / 1001.
    assert one.p_value == pytest.approx(1 / 1001)


def test_everyone_plays_the_same() -> None:
    one = estimate_actions(["up"] * 12, [0] * 4 + [1] * 4 + [2] * 4)
    assert one.is_available
    assert one.mutual_information == 0
    assert one.action_entropy == 0
    assert one.p_value == 1


@pytest.mark.parametrize(("siblings", "kinds"), [(16, 4), (8, 4), (8, 12), (4, 4)])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_bias_is_small_where_the_plug_in_s_is_not(siblings: int, kinds: int, spread: float) -> None:
    rng = np.random.default_rng(5)
    corrected, plain = [], []
    for _ in range(150):
        logits = rng.normal(size=(8, kinds)) * spread
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        truth = (p * np.log(p / p.mean(axis=0))).sum(axis=1).mean()
        actions = np.concatenate([rng.choice(kinds, siblings, p=row) for row in p])
        one = estimate_actions(
            actions.tolist(), np.repeat(np.arange(8), siblings).tolist(), num_permutations=1
        )
        corrected.append(one.mutual_information - truth)
        plain.append(one.plug_in - truth)
    assert abs(np.mean(corrected)) < 0.04
    assert np.mean(plain) > 0.06


def test_p_values_of_independent_actions_are_uniform() -> None:
    rng = np.random.default_rng(1)
    prompts = np.repeat(np.arange(8), 8).tolist()
    found = [
        estimate_actions(rng.integers(0, 4, 64).tolist(), prompts, num_permutations=99, seed=s)
        for s in range(100)
    ]
    p_values = np.array([one.p_value for one in found])
    assert 0.0 <= (p_values <= 0.05).mean() <= 0.11
    assert 0.4 < p_values.mean() < 0.6
    assert np.mean([one.interval.contains(0.0) for one in found]) >= 0.92


@pytest.mark.parametrize(
    ("actions", "prompts"),
    [([], []), (["a", "b"], [0, 0]), (["a", "b"], [0, 1]), (["a", "b", "a"], [0, 0, 1])],
)
def test_too_little_is_said_and_not_zero(actions: list[str], prompts: list[int]) -> None:
    one = estimate_actions(actions, prompts)
    assert math.isnan(one.mutual_information)
    assert "needs two such prompts" in one.problem
    assert all(math.isnan(value) for key, value in one.metrics().items() if "/num_" not in key)


def test_metrics_have_the_same_keys_with_and_without_a_value() -> None:
    some = estimate_actions(list("aabb"), [0, 0, 1, 1]).metrics()
    assert some.keys() == estimate_actions([], []).metrics().keys()
    assert some["info/actions/mutual_information"] == pytest.approx(math.log(2))


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 actions for 1 prompts"):
        estimate_actions(["a", "b"], [0])


def test_first_executed_actions_and_their_prompts() -> None:
    played = [trajectory("x", "Up", "Left"), trajectory("y"), trajectory("z", "Down")]
    assert first_actions(played) == (["Up", "Down"], ["x", "z"])
