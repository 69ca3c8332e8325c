"""The numbers of a step against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.core.update.metrics import mean, rollout_metrics
from echoscope.diagnostics.measure.rates import mean_of_arrays
from echoscope.store.records import FinishReason, RolloutBatch, Split, StopReason, Trajectory, Turn


def turn(index: int = 0, **fields: Any) -> Turn:
    defaults: dict[str, Any] = {
        "observation": "o",
        "response": "a",
        "prompt_tokens": np.array([1], np.int32),
        "response_tokens": np.array([1, 2], np.int32),
        "logprobs": np.array([-1.0, -2.0], np.float32),
        "entropies": np.array([0.5, 1.5], np.float32),
        "is_valid": True,
        "is_effective": True,
    }
    return Turn(index=index, **(defaults | fields))


def trajectory(p: int, g: int, *turns: Turn, **fields: Any) -> Trajectory:
    defaults: dict[str, Any] = {
        "step": 1,
        "split": Split.TRAIN,
        "index": 2 * p + g,
        "group_index": p,
        "sibling_index": g,
        "env_id": "world",
        "tag": "world",
        "env_seed": 0,
        "noise_seed": 0,
        "prompt_key": "k",
        "turns": turns,
        "final_observation": "end",
        "stop_reason": StopReason.TERMINATED,
        "is_success": True,
        "duration_s": 0.0,
    }
    return make_trajectory(**(defaults | fields))


def test_means_of_nothing_are_nan() -> None:
    assert math.isnan(mean([]))
    assert math.isnan(mean_of_arrays([]))
    assert math.isnan(mean_of_arrays([np.zeros(0, np.float32)]))


def test_a_mean_over_arrays_counts_every_entry_once() -> None:
    # (1 + 2 + 3 + 10) / 4, not the mean of the arrays' means
    arrays = [np.array([1, 2, 3], np.float32), np.array([10], np.float32)]
    assert mean_of_arrays(arrays) == 4.0


def test_rollout_metrics_by_hand() -> None:
    """Two groups of two: returns (1, 0) and (2, 2)."""
    long = turn(
        1,
        response_tokens=np.array([1, 2, 3, 4], np.int32),
        logprobs=np.array([-3, -3, -3, -3], np.float32),
        entropies=np.array([2, 2, 2, 2], np.float32),
        finish_reason=FinishReason.LENGTH,
        is_valid=False,
        is_effective=False,
        reward=0.25,
        format_penalty=-0.25,
    )
    batch = RolloutBatch(
        groups=(
            (
                trajectory(0, 0, turn(reward=1.0, actions=("up",))),
                trajectory(0, 1, turn(), long, is_success=False, stop_reason=StopReason.MAX_TURNS),
            ),
            (
                trajectory(1, 0, turn(reward=2.0, actions=("up", "up"))),
                trajectory(1, 1, turn(reward=1.5, shaping={"bonus": 0.5}), is_success=None),
            ),
        )
    )
    metrics = rollout_metrics(batch)
    expected = {
        "reward/return_mean": 1.25,  # (1 + 0 + 2 + 2) / 4
        "reward/return_min": 0.0,
        "reward/return_max": 2.0,
        "reward/return_std": math.sqrt(2.75 / 3),  # deviations -.25 -1.25 .75 .75
        "reward/env_return_mean": 4.75 / 4,  # 1, .25, 2, 1.5
        "reward/group_std_mean": math.sqrt(0.5) / 2,  # groups: sqrt(.5) and 0
        "reward/group_std_std": math.sqrt(0.5) / math.sqrt(2),  # of (sqrt(.5), 0), unbiased
        "reward/term/bonus": 0.125,  # .5 over four trajectories
        "reward/term/format": -0.0625,
        "rollout/success_rate": 2 / 3,  # one world could not tell
        "rollout/num_trajectories": 4.0,
        "rollout/num_turns_mean": 1.25,
        "rollout/num_sampled_tokens": 12.0,  # 2, 2 + 4, 2, 2
        "rollout/num_sampled_tokens_mean": 3.0,
        "rollout/response_length_mean": 2.4,  # 12 tokens in 5 turns
        "rollout/response_length_max": 4.0,
        "rollout/length_limited_frac": 0.2,
        "rollout/action_valid_frac": 0.8,
        "rollout/action_effective_frac": 0.8,
        "rollout/num_actions_mean": 0.6,  # 3 actions in 5 turns
        "rollout/stop_terminated_frac": 0.75,
        "rollout/stop_max_turns_frac": 0.25,
        "rollout/stop_timeout_frac": 0.0,
        "policy/entropy": (4 * 2.0 + 4 * 2.0) / 12,  # four turns of .5 + 1.5, one of 4 * 2
        "policy/behaviour_logprob": -(4 * 3.0 + 12.0) / 12,
    }
    assert {key: metrics[key] for key in expected} == pytest.approx(expected)
    assert math.isnan(metrics["rollout/reasoning_length_mean"])  # no reply had any


def test_lone_siblings_have_no_spread() -> None:
    metrics = rollout_metrics(RolloutBatch(groups=((trajectory(0, 0, turn()),),)))
    assert math.isnan(metrics["reward/group_std_mean"])
    assert math.isnan(metrics["reward/return_std"])


def test_imported_text_has_no_token_numbers() -> None:
    text = turn(prompt_tokens=None, response_tokens=None, logprobs=None, entropies=None)
    batch = RolloutBatch(groups=((trajectory(0, 0, text), trajectory(0, 1, text)),))
    metrics = rollout_metrics(batch)
    assert math.isnan(metrics["policy/entropy"])
    assert math.isnan(metrics["rollout/response_length_mean"])
    assert metrics["rollout/num_sampled_tokens"] == 0.0


def test_several_tags_are_told_apart() -> None:
    spread_free = tuple(trajectory(0, g, turn(reward=1.0)) for g in (0, 1))
    other = tuple(trajectory(1, g, turn(), tag="b", is_success=False) for g in (0, 1))
    metrics = rollout_metrics(RolloutBatch(groups=(spread_free, other)))
    assert (metrics["rollout/world/success_rate"], metrics["rollout/b/success_rate"]) == (1.0, 0.0)
    assert (metrics["reward/world/return_mean"], metrics["reward/b/return_mean"]) == (1.0, 0.0)
    assert "rollout/world/success_rate" not in rollout_metrics(RolloutBatch(groups=(spread_free,)))


FAILURES = (StopReason.ENV_ERROR, StopReason.TIMEOUT, StopReason.ABORTED)


@pytest.mark.parametrize("reason", FAILURES)
def test_failed_siblings_are_in_no_reward_statistic(reason: StopReason) -> None:
    def sibling(p: int, g: int, reward: float, **fields: Any) -> Trajectory:
        return trajectory(p, g, turn(reward=reward), **fields)

    failed = {"stop_reason": reason, "is_success": None}
    batch = RolloutBatch(
        groups=(
            (sibling(0, 0, 1.0), sibling(0, 1, 1.0), sibling(0, 2, -9.0, **failed)),
            (sibling(1, 0, 0.0), sibling(1, 1, 2.0), sibling(1, 2, 7.0, **failed)),
            (sibling(2, 0, 4.0), sibling(2, 1, 9.0, **failed), sibling(2, 2, 9.0, **failed)),
        )
    )
    values = rollout_metrics(batch)
    # Spreads 0 and sqrt(2); the third group has one survivor, and so no spread.
    assert values["reward/group_std_mean"] == pytest.approx(math.sqrt(2) / 2)
    assert values["reward/return_mean"] == pytest.approx((1 + 1 + 0 + 2 + 4) / 5)
    assert (values["reward/return_min"], values["reward/return_max"]) == (0.0, 4.0)
    assert values["reward/env_return_mean"] == pytest.approx(8 / 5)
    assert values["reward/term/env"] == pytest.approx(8 / 5)
    assert values["rollout/success_rate"] == 1.0
    assert not batch.trainable_PG[:, 2].any()


def test_a_step_of_failures_has_no_return() -> None:
    failed = trajectory(0, 0, turn(), stop_reason=StopReason.TIMEOUT, is_success=None)
    values = rollout_metrics(RolloutBatch(groups=((failed, failed),)))
    assert math.isnan(values["reward/return_mean"])
    assert math.isnan(values["reward/group_std_mean"])
