"""Evaluation numbers: success with an interval over tasks, and pass@G."""

from __future__ import annotations

import math

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.core.rollout.evaluate import evaluation_metrics
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
    found = evaluation_metrics(batch, Split.PROBE)
    assert {key.replace("probe/", "eval/"): value for key, value in found.items()} == (
        evaluation_metrics(batch)
    )


def test_tags_are_told_apart_and_added_up() -> None:
    groups = ((trajectory(0, 0, True),), (trajectory(1, 0, False, "cave"),))
    found = evaluation_metrics(RolloutBatch(groups=groups))
    assert found["eval/lake/success_rate"] == 1.0
    assert found["eval/cave/success_rate"] == 0.0
    assert found["eval/all/success_rate"] == 0.5
    assert found["eval/all/num_tasks"] == 2.0


def test_a_world_that_cannot_tell_gives_no_number() -> None:
    found = evaluation_metrics(RolloutBatch(groups=((trajectory(0, 0, None),),)))
    assert math.isnan(found["eval/lake/success_rate"])
    assert math.isnan(found["eval/lake/success_rate_low"])
    assert math.isnan(found["eval/lake/pass_at_1"])
    assert found["eval/lake/num_tasks"] == 0.0


def test_a_task_nobody_could_judge_does_not_spoil_the_others() -> None:
    groups = ((trajectory(0, 0, True),), (trajectory(1, 0, None),))
    found = evaluation_metrics(RolloutBatch(groups=groups))
    low, high = wilson_interval(1, 1)
    assert found["eval/lake/success_rate"] == 1.0
    assert (found["eval/lake/success_rate_low"], found["eval/lake/success_rate_high"]) == (
        low,
        high,
    )
    assert found["eval/lake/num_tasks"] == 1.0
