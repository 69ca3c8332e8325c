"""The numbers of a step, from its rollouts. NaN where a number is not defined."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from echoscope.store.records import (
    FinishReason,
    FloatArray,
    RolloutBatch,
    StopReason,
    Trajectory,
    Turn,
)


def mean(values: list[float]) -> float:
    """The mean, or NaN of nothing."""
    return float(np.mean(values)) if values else math.nan


def _spread(values: list[float]) -> float:
    """Standard deviation (n - 1), or NaN of fewer than two."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def success_rate(trajectories: list[Trajectory] | tuple[Trajectory, ...]) -> float:
    return mean([float(t.is_success) for t in trajectories if t.is_success is not None])


def rollout_metrics(batch: RolloutBatch) -> dict[str, float]:
    """`reward/*`, `rollout/*` and `policy/entropy` of all groups, before selection.

    Returns are those of trajectories that could train: what a failed world paid says nothing.
    """
    trajectories = batch.trajectories
    returns_PG, trainable_PG = batch.returns_PG, batch.trainable_PG
    returns = returns_PG[trainable_PG].tolist()
    stds = [
        float(row[good].std(ddof=1))
        for row, good in zip(returns_PG, trainable_PG, strict=True)
        if good.sum() > 1
    ]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    out = {
        "reward/return_mean": mean(returns),
        "reward/return_std": _spread(returns),
        "reward/return_min": min(returns, default=math.nan),
        "reward/return_max": max(returns, default=math.nan),
        "reward/env_return_mean": mean(
            [t.env_return for t in trajectories if not t.stop_reason.is_failure]
        ),
        "reward/group_std_mean": mean(stds),
        "reward/group_std_std": _spread(stds),
        "rollout/success_rate": success_rate(trajectories),
        "rollout/num_trajectories": float(len(trajectories)),
        "rollout/num_turns_mean": mean([float(t.num_turns) for t in trajectories]),
        "rollout/num_sampled_tokens": float(sum(t.num_sampled_tokens for t in trajectories)),
        "rollout/num_sampled_tokens_mean": mean(
            [float(t.num_sampled_tokens) for t in trajectories]
        ),
    }
    out |= _turn_metrics(turns) | _stop_metrics(trajectories) | _term_metrics(trajectories)
    return out | _by_tag(trajectories)


def _turn_metrics(turns: list[Turn]) -> dict[str, float]:
    entropies = [turn.entropies for turn in turns if turn.entropies is not None]
    lengths = [float(len(t.response_tokens)) for t in turns if t.response_tokens is not None]
    reasoning = [
        float(t.reasoning_span[1] - t.reasoning_span[0]) for t in turns if t.reasoning_span
    ]
    logprobs = [turn.logprobs for turn in turns if turn.logprobs is not None]
    return {
        "policy/entropy": mean_of_arrays(entropies),
        "policy/behaviour_logprob": mean_of_arrays(logprobs),
        "rollout/response_length_mean": mean(lengths),
        "rollout/response_length_max": max(lengths, default=math.nan),
        "rollout/reasoning_length_mean": mean(reasoning),
        "rollout/length_limited_frac": mean(
            [float(t.finish_reason is FinishReason.LENGTH) for t in turns]
        ),
        "rollout/format_valid_frac": mean([float(t.answer_chars is not None) for t in turns]),
        "rollout/action_valid_frac": mean([float(t.is_valid) for t in turns]),
        "rollout/action_effective_frac": mean([float(t.is_effective) for t in turns]),
        "rollout/num_actions_mean": mean([float(len(t.actions)) for t in turns]),
    }


def mean_of_arrays(arrays: list[FloatArray]) -> float:
    """Mean over all entries of all arrays, in float64."""
    total = sum(len(array) for array in arrays)
    return sum(float(a.sum(dtype=np.float64)) for a in arrays) / total if total else math.nan


def _stop_metrics(trajectories: tuple[Trajectory, ...]) -> dict[str, float]:
    counts = Counter(trajectory.stop_reason for trajectory in trajectories)
    return {
        f"rollout/stop_{reason}_frac": counts[reason] / len(trajectories) for reason in StopReason
    }


def _term_metrics(trajectories: tuple[Trajectory, ...]) -> dict[str, float]:
    names = {name for trajectory in trajectories for name in trajectory.reward_terms}
    return {
        f"reward/term/{name}": mean(
            [t.reward_terms.get(name, 0.0) for t in trajectories if not t.stop_reason.is_failure]
        )
        for name in sorted(names)
    }


def _by_tag(trajectories: tuple[Trajectory, ...]) -> dict[str, float]:
    tags = sorted({trajectory.tag for trajectory in trajectories})
    if len(tags) < 2:
        return {}
    out = {}
    for tag in tags:
        members = [t for t in trajectories if t.tag == tag]
        out[f"rollout/{tag}/success_rate"] = success_rate(members)
        out[f"reward/{tag}/return_mean"] = mean(
            [t.episode_return for t in members if not t.stop_reason.is_failure]
        )
    return out
