"""Reward statistics, worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.diagnostics.measure.rewards import reward_metrics, term_agreement, term_shares
from echoscope.store.records import RolloutBatch, StopReason, Trajectory, Turn


def trajectory(
    p: int, g: int, reward: float, success: bool | None, text: str, stop: StopReason
) -> Trajectory:
    turn = Turn(
        index=0,
        observation="",
        response=text,
        prompt_tokens=np.array([1]),
        response_tokens=np.array([2, 3]),
        reward=reward,
    )
    return make_trajectory(
        turn,
        step=0,
        index=p * 10 + g,
        group_index=p,
        sibling_index=g,
        tag="lake",
        env_seed=p,
        noise_seed=g,
        prompt_key=str(p),
        stop_reason=stop,
        is_success=success,
    )


def batch_of(*groups: list[float], success: bool | None = None, text: str = "") -> RolloutBatch:
    """Success is the sign of the reward unless said otherwise; texts differ unless given."""
    return RolloutBatch(
        groups=tuple(
            tuple(
                trajectory(
                    p,
                    g,
                    reward,
                    reward > 0 if success is None else success,
                    text or f"{p}/{g}",
                    StopReason.TERMINATED,
                )
                for g, reward in enumerate(group)
            )
            for p, group in enumerate(groups)
        )
    )


def test_groups_without_spread_are_solved_or_hopeless() -> None:
    metrics = reward_metrics(batch_of([1, 1], [-1, -1], [1, -1], [2, 2]))
    assert metrics["reward/zero_std_frac"] == 0.75
    assert metrics["reward/solved_frac"] == 0.5
    assert metrics["reward/hopeless_frac"] == 0.25


def test_equal_returns_with_mixed_success_are_neither() -> None:
    mixed = RolloutBatch(
        groups=(
            (
                trajectory(0, 0, 1.0, True, "a", StopReason.TERMINATED),
                trajectory(0, 1, 1.0, False, "b", StopReason.TERMINATED),
            ),
        )
    )
    metrics = reward_metrics(mixed)
    assert metrics["reward/zero_std_frac"] == 1
    assert metrics["reward/solved_frac"] == metrics["reward/hopeless_frac"] == 0


def test_failed_siblings_count_in_nothing() -> None:
    group = (
        trajectory(0, 0, 1.0, True, "a", StopReason.TERMINATED),
        trajectory(0, 1, 1.0, True, "b", StopReason.TERMINATED),
        trajectory(0, 2, -9.0, None, "c", StopReason.ENV_ERROR),
    )
    assert reward_metrics(RolloutBatch(groups=(group,)))["reward/solved_frac"] == 1


@pytest.mark.parametrize(
    "batch", [RolloutBatch(groups=()), batch_of([1.0]), batch_of([2.0], [3.0])]
)
def test_nothing_to_compare_is_not_a_number(batch: RolloutBatch) -> None:
    metrics = reward_metrics(batch)
    assert math.isnan(metrics["reward/zero_std_frac"])
    assert math.isnan(metrics["reward/luck_frac"])


def shaped(p: int, g: int, reward: float, brief: float) -> Trajectory:
    bare = trajectory(p, g, reward, True, "a", StopReason.TERMINATED)
    return replace(bare, turns=(replace(bare.turns[0], shaping={"brief": brief}),))


def test_the_share_of_a_term_in_the_differences_between_siblings() -> None:
    """Variances within the first group: env 1, brief 3 x 3 = 9; in the second nothing differs."""

    groups = (
        (shaped(0, 0, 1.0, 3.0), shaped(0, 1, -1.0, -3.0)),
        (shaped(1, 0, 5.0, 7.0), shaped(1, 1, 5.0, 7.0)),
    )
    shares = {"env": pytest.approx(0.1), "format": 0.0, "brief": pytest.approx(0.9)}
    assert term_shares(RolloutBatch(groups=groups)) == shares
    assert term_shares(RolloutBatch(groups=groups[1:])) == {}
    assert term_agreement(RolloutBatch(groups=groups)) == {"brief": pytest.approx(1.0)}
    assert term_agreement(RolloutBatch(groups=groups[1:])) == {}
    metrics = reward_metrics(RolloutBatch(groups=groups))
    assert metrics["reward/share/brief"] == shares["brief"]
    assert metrics["reward/agreement/brief"] == pytest.approx(1.0)


def test_a_term_that_pays_the_others_does_not_agree_with_the_environment() -> None:
    """Deviations of both groups: env 1, -1, 1, -1; brief -1, 1, 3, -3 : (-2 + 6) / sqrt(4 x 20)."""

    batch = RolloutBatch(
        groups=(
            (shaped(0, 0, 1.0, 4.0), shaped(0, 1, -1.0, 6.0)),
            (shaped(1, 0, 3.0, 3.0), shaped(1, 1, 1.0, -3.0)),
        )
    )
    assert term_agreement(batch) == {"brief": pytest.approx(4 / math.sqrt(80))}


def test_huge_rewards_do_not_overflow() -> None:
    batch = RolloutBatch(groups=((shaped(0, 0, 1e200, 1e250), shaped(0, 1, -1e200, -1e250)),))
    assert term_agreement(batch) == {"brief": pytest.approx(1.0)}


def test_a_run_that_adds_nothing_to_the_reward_has_no_shares() -> None:
    assert not [name for name in reward_metrics(batch_of([1, -1])) if "share" in name]
