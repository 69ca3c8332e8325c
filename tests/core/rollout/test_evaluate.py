"""Evaluation numbers: success with an interval over tasks, and pass@G."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.rollout.evaluate import evaluation_metrics
from echoscope.diagnostics.measure.outcomes import pass_at_k
from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.store.records import RolloutBatch, Split, Trajectory, Turn


def trajectory(p: int, g: int, success: bool | None, tag: str = "lake") -> Trajectory:
    turn = Turn(
        index=0,
        observation="o",
        response="r",
        prompt_tokens=np.array([1], np.int32),
        response_tokens=np.array([1], np.int32),
        logprobs=np.array([-1.0], np.float32),
        entropies=np.array([1.0], np.float32),
        reward=float(bool(success)),
        is_valid=True,
        is_effective=True,
    )
    return make_trajectory(
        turn,
        step=0,
        split=Split.EVAL,
        index=10 * p + g,
        group_index=p,
        sibling_index=g,
        env_id="lake",
        tag=tag,
        env_seed=p,
        noise_seed=g,
        prompt_key="k",
        final_observation="end",
        is_success=success,
    )


def test_siblings_are_not_independent_trials() -> None:
    # Task 0: both, task 1: one of two, task 2: none. Rates 1, .5, 0 over three tasks.
    table = [[True, True], [True, False], [False, False]]
    batch = RolloutBatch(
        groups=tuple(
            tuple(trajectory(p, g, success) for g, success in enumerate(row))
            for p, row in enumerate(table)
        )
    )
    low, high = wilson_interval(0.5, 3)
    assert evaluation_metrics(batch) == pytest.approx(
        {
            "eval/lake/success_rate": 0.5,
            "eval/lake/success_rate_low": low,
            "eval/lake/success_rate_high": high,
            "eval/lake/pass_at_2": 2 / 3,
            "eval/lake/return_mean": 0.5,
            "eval/lake/action_valid_frac": 1.0,
            "eval/lake/num_turns_mean": 1.0,
            "eval/lake/num_tasks": 3.0,
        }
    )


def test_a_probe_has_the_same_numbers_under_its_own_name() -> None:
    batch = RolloutBatch(groups=((trajectory(0, 0, True),),))
    metrics = evaluation_metrics(batch, Split.PROBE)
    assert {key.replace("probe/", "eval/"): value for key, value in metrics.items()} == (
        evaluation_metrics(batch)
    )


def test_tags_are_told_apart_and_added_up() -> None:
    groups = ((trajectory(0, 0, True),), (trajectory(1, 0, False, "cave"),))
    metrics = evaluation_metrics(RolloutBatch(groups=groups))
    assert metrics["eval/lake/success_rate"] == 1.0
    assert metrics["eval/cave/success_rate"] == 0.0
    assert metrics["eval/all/success_rate"] == 0.5
    assert metrics["eval/all/num_tasks"] == 2.0


def test_a_world_that_cannot_tell_gives_no_number() -> None:
    metrics = evaluation_metrics(RolloutBatch(groups=((trajectory(0, 0, None),),)))
    assert math.isnan(metrics["eval/lake/success_rate"])
    assert math.isnan(metrics["eval/lake/success_rate_low"])
    assert math.isnan(metrics["eval/lake/pass_at_1"])
    assert metrics["eval/lake/num_tasks"] == 0.0


def test_a_task_nobody_could_judge_does_not_spoil_the_others() -> None:
    groups = ((trajectory(0, 0, True),), (trajectory(1, 0, None),))
    metrics = evaluation_metrics(RolloutBatch(groups=groups))
    low, high = wilson_interval(1, 1)
    assert metrics["eval/lake/success_rate"] == 1.0
    assert (metrics["eval/lake/success_rate_low"], metrics["eval/lake/success_rate_high"]) == (
        low,
        high,
    )
    assert metrics["eval/lake/num_tasks"] == 1.0


@pytest.mark.parametrize("num_samples", [1, 4, 7])
def test_pass_at_k_is_the_share_of_draws_of_k_that_hold_a_success(num_samples: int) -> None:
    """Chen et al. 2021: counted over all subsets."""
    for num_correct in range(num_samples + 1):
        results = [True] * num_correct + [False] * (num_samples - num_correct)
        for k in range(1, num_samples + 1):
            draws = [any(draw) for draw in itertools.combinations(results, k)]
            expected = sum(draws) / len(draws)
            assert pass_at_k(num_samples, num_correct, k) == pytest.approx(expected)


def test_pass_at_k_in_an_evaluation() -> None:
    # Of task 1 one sibling's world failed, so it has three samples and no pass@4.
    table = [[True, False, False, False], [True, True, False, None], [False] * 4]
    batch = RolloutBatch(
        groups=tuple(
            tuple(trajectory(p, g, success) for g, success in enumerate(row))
            for p, row in enumerate(table)
        )
    )
    metrics = evaluation_metrics(batch, pass_at=(1, 2, 4))
    assert metrics["eval/lake/pass_at_1"] == pytest.approx((1 / 4 + 2 / 3 + 0) / 3)
    assert metrics["eval/lake/pass_at_1"] == pytest.approx(metrics["eval/lake/success_rate"])
    assert metrics["eval/lake/pass_at_2"] == pytest.approx((2 / 4 + 1 + 0) / 3)
    assert metrics["eval/lake/pass_at_4"] == pytest.approx((1 + 0) / 2)
    low, high = wilson_interval(0.5, 2)
    assert (metrics["eval/lake/pass_at_4_low"], metrics["eval/lake/pass_at_4_high"]) == (low, high)


def test_pass_at_k_needs_as_many_samples(make_config: Callable[..., RunConfig]) -> None:
    config = make_config("envs.eval_group_size=4", "eval.pass_at_k=[1, 4]")
    assert config.eval.pass_at_k == [1, 4]
    with pytest.raises(ConfigError, match=r"has 8, which needs 8 samples .*eval_group_size=8"):
        make_config("envs.eval_group_size=4", "eval.pass_at_k=[1, 8]")
