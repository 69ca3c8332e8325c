"""Reward statistics, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from trajectories import make_trajectory

from echoscope.diagnostics.measure.rewards import reward_stats
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


def test_spread_of_each_group() -> None:
    """[1, 3]: mean 2, unbiased std sqrt(2); [2, 2]: 0."""
    stats = reward_stats(batch_of([1, 3], [2, 2]))
    assert stats.std_P == pytest.approx([math.sqrt(2), 0])
    assert stats.mean_P.tolist() == [2, 2]
    assert stats.min_P.tolist() == [1, 2]
    assert stats.max_P.tolist() == [3, 2]
    metrics = stats.metrics()
    assert metrics["reward/zero_std_frac"] == 0.5
    assert metrics["reward/group_std_max"] == pytest.approx(math.sqrt(2))


def test_no_spread_has_three_meanings() -> None:
    stats = reward_stats(batch_of([1, 1], [-1, -1], [1, -1]))
    assert stats.solved_P.tolist() == [True, False, False]
    assert stats.hopeless_P.tolist() == [False, True, False]
    assert stats.constant_P.tolist() == [False, False, False]
    unknown = reward_stats(batch_of([0.5, 0.5]))
    assert unknown.metrics()["reward/solved_frac"] == 1.0


def test_equal_returns_with_mixed_success_are_constant() -> None:
    mixed = RolloutBatch(
        groups=(
            (
                trajectory(0, 0, 1.0, True, "a", StopReason.TERMINATED),
                trajectory(0, 1, 1.0, False, "b", StopReason.TERMINATED),
            ),
        )
    )
    assert reward_stats(mixed).metrics()["reward/constant_frac"] == 1.0


def test_identical_siblings() -> None:
    assert reward_stats(batch_of([1, 1], text="same")).metrics()["reward/identical_frac"] == 1.0
    assert reward_stats(batch_of([1, 1])).metrics()["reward/identical_frac"] == 0.0


def test_advantage_mass_and_effective_groups() -> None:
    """|A| is 2 + 2 and 1 + 1: shares 2/3 and 1/3, so 1 / (4/9 + 1/9) = 1.8 groups."""
    stats = reward_stats(batch_of([-2, 2], [-1, 1], [3, 3]))
    assert stats.advantage_share_P == pytest.approx([2 / 3, 1 / 3, 0])
    assert stats.num_effective_groups == pytest.approx(1.8)
    assert stats.positive_frac == 0.5


def test_given_advantages_are_used() -> None:
    advantages = np.array([[3.0, 1.0], [0.0, np.nan]])
    stats = reward_stats(batch_of([1, 2], [1, 2]), advantages)
    assert stats.advantage_share_P.tolist() == [1.0, 0.0]
    assert stats.positive_frac == 1.0
    with pytest.raises(ValueError, match="have shape"):
        reward_stats(batch_of([1, 2]), np.zeros((2, 2)))


def test_std_over_mean_of_the_spread() -> None:
    """Stds sqrt(2) * [1, 3]: mean 2, std sqrt(2), so the ratio is sqrt(2) / 2."""
    stats = reward_stats(batch_of([-1, 1], [-3, 3]))
    assert stats.std_over_mean == pytest.approx(math.sqrt(2) / 2)


def test_failed_siblings_count_in_nothing() -> None:
    group = (
        trajectory(0, 0, 1.0, True, "a", StopReason.TERMINATED),
        trajectory(0, 1, 1.0, True, "b", StopReason.TERMINATED),
        trajectory(0, 2, -9.0, None, "c", StopReason.ENV_ERROR),
    )
    stats = reward_stats(RolloutBatch(groups=(group,)))
    assert stats.std_P.tolist() == [0.0]
    assert stats.solved_P.tolist() == [True]


@pytest.mark.parametrize(
    "batch", [RolloutBatch(groups=()), batch_of([1.0]), batch_of([2.0], [3.0])]
)
def test_nothing_to_compare_is_not_a_number(batch: RolloutBatch) -> None:
    metrics = reward_stats(batch).metrics()
    assert math.isnan(metrics["reward/zero_std_frac"])
    assert math.isnan(metrics["reward/positive_frac"])
