"""The numbers of a step: of its rollouts, and of its loss from the sums of microbatches.

NaN where a number is not defined.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from torch import Tensor

from echoscope.diagnostics.measure.rates import mean_of_arrays
from echoscope.store.query import metric_keys
from echoscope.store.records import (
    RolloutBatch,
    StopReason,
    Trajectory,
    Turn,
    num_outcomes,
)

from .batch import TokenBatch
from .learners.world import World
from .losses import LossTerms


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
        metric_keys.RETURN_MEAN: mean(returns),
        "reward/return_std": _spread(returns),
        "reward/return_min": min(returns, default=math.nan),
        "reward/return_max": max(returns, default=math.nan),
        "reward/env_return_mean": mean(
            [t.env_return for t in trajectories if not t.stop_reason.is_failure]
        ),
        metric_keys.GROUP_STD: mean(stds),
        "reward/group_std_std": _spread(stds),
        metric_keys.SUCCESS_RATE: success_rate(trajectories),
        "rollout/num_trajectories": float(len(trajectories)),
        **num_outcomes(trajectories),
        "rollout/num_turns_mean": mean([float(t.num_turns) for t in trajectories]),
        "rollout/num_sampled_tokens": float(sum(t.num_sampled_tokens for t in trajectories)),
        metric_keys.SAMPLED_TOKENS: mean([float(t.num_sampled_tokens) for t in trajectories]),
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
        metric_keys.ENTROPY: mean_of_arrays(entropies),
        "policy/behaviour_logprob": mean_of_arrays(logprobs),
        metric_keys.RESPONSE_LENGTH: mean(lengths),
        "rollout/response_length_max": max(lengths, default=math.nan),
        "rollout/reasoning_length_mean": mean(reasoning),
        "rollout/length_limited_frac": mean([float(t.finish_reason.is_cut) for t in turns]),
        "rollout/reasoning_closed_frac": mean([float(t.is_reasoning_closed) for t in turns]),
        "rollout/format_valid_frac": mean([float(t.answer_chars is not None) for t in turns]),
        metric_keys.ACTION_VALID: mean([float(bool(t.is_valid)) for t in turns]),
        "rollout/action_effective_frac": mean([float(bool(t.is_effective)) for t in turns]),
        "rollout/num_actions_mean": mean([float(len(t.actions)) for t in turns]),
    }


def staleness_metrics(batch: RolloutBatch, version: int) -> dict[str, float]:
    """`rollout/staleness_*`: updates of the policy that the weights behind each turn lack.

    Args:
        version: Of the policy that is about to learn from the batch.
    """
    lags = [
        float(version - (turn.policy_version or 0))
        for trajectory in batch.trajectories
        for turn in trajectory.turns
        if turn.num_sampled_tokens
    ]
    return {
        "rollout/staleness_mean": mean(lags),
        "rollout/staleness_max": max(lags, default=math.nan),
    }


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


_PER_TOKEN = {
    "ratio": "policy/ratio_mean",
    "clip_low": "policy/clip_low_frac",
    "clip_high": "policy/clip_high_frac",
    "clip_dual": "policy/clip_dual_frac",
    "approx_kl": "policy/approx_kl",
    "entropy": "policy/update_entropy",
    "ref_kl": metric_keys.REF_KL,
    "value": "critic/value_mean",
    "return": "critic/return_mean",
}
_LOSSES = ("policy", "kl", "entropy", "value")
_OF_EVERY_STEP = ("ratio", "clip_low", "clip_high", "clip_dual", "approx_kl", "entropy")
_ALWAYS = dict.fromkeys(
    (*_OF_EVERY_STEP, "num_tokens", "advantage", "advantage_squared", "loss_policy"), 0.0
)


@dataclass(slots=True)
class MetricTotals:
    """Adds up the loss terms of every microbatch of one or more optimizer steps.

    Losses keep the unit of `loss.aggregation`; everything else is per sampled token, whatever the
    aggregation. Nothing waits for the device before `result`.

    Tokens without a gradient need no pass: their advantage is zero, and they count in the metrics
    of advantages only.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)
    num_idle: int = 0
    """Sampled tokens that needed no pass."""
    num_forwarded: int = 0
    """Tokens that went through the model with a gradient, padding included."""
    num_row_tokens: int = 0
    """Tokens of the rows that they stand for."""

    def copy(self) -> MetricTotals:
        """What is added up so far."""
        return replace(self, sums=dict(self.sums), maxima=dict(self.maxima))

    def take_back(self, before: MetricTotals) -> None:
        """Be what `copy` gave."""
        for item in fields(self):
            setattr(self, item.name, getattr(before, item.name))

    def add(self, terms: LossTerms) -> None:
        for name, value in terms.metrics.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        for name, value in terms.maxima.items():
            before = self.maxima.get(name, value)
            self.maxima[name] = torch.maximum(before, value)

    def add_forwarded(self, num_forwarded: int, rows: TokenBatch) -> None:
        """Count a pass over `rows`, each of which ends before its last sampled token."""
        self.num_forwarded += num_forwarded
        columns = torch.arange(rows.width, device=rows.loss_mask.device)
        self.num_row_tokens += int((columns * rows.loss_mask).amax(1).sum())

    def sum_over(self, world: World) -> None:
        """Take in what the other ranks have added up; all ranks have the same terms."""
        if world.is_alone or not self.sums:
            return
        names, largest = sorted(self.sums), sorted(self.maxima)
        counts = [float(self.num_forwarded), float(self.num_row_tokens)]
        sums = torch.stack([self.sums[name].double() for name in names])
        sums = world.sum_(torch.cat([sums, torch.tensor(counts).to(sums)]))
        self.sums = dict(zip(names, sums[: len(names)], strict=True))
        self.num_forwarded, self.num_row_tokens = (int(count) for count in sums[len(names) :])
        if largest:
            maxima = world.max_(torch.stack([self.maxima[name].double() for name in largest]))
            self.maxima = dict(zip(largest, maxima, strict=True))

    def result(self, *, num_updates: int = 1) -> dict[str, float]:
        """Metrics of the step; NaN where there were no tokens.

        Terms that were absent have no metric, but after a step without any microbatch the metrics
        that every step has are NaN.

        Args:
            num_updates: Optimizer steps that were added up; losses are averaged over them.
        """
        sums = _ALWAYS | {name: float(value) for name, value in self.sums.items()}
        count = sums["num_tokens"]
        count_all = count + self.num_idle
        out = {key: _ratio(sums[name], count) for name, key in _PER_TOKEN.items() if name in sums}
        losses = {f"loss/{n}": sums[f"loss_{n}"] for n in _LOSSES if f"loss_{n}" in sums}
        losses["loss/total"] = sum(losses.values())
        updates = num_updates if count_all else 0
        out |= {key: _ratio(value, updates) for key, value in losses.items()}
        out["policy/ratio_max"] = float(self.maxima["ratio"]) if count else math.nan
        out["policy/advantage_mean"] = _ratio(sums["advantage"], count_all)
        out["policy/advantage_std"] = math.sqrt(_variance(sums, "advantage", count_all))
        out["optim/idle_token_frac"] = _ratio(float(self.num_idle), count_all)
        out["optim/forwarded_frac"] = _ratio(self.num_forwarded, self.num_row_tokens)
        out |= _off_policy(sums, self.maxima)
        if "residual" in sums:
            out["critic/explained_variance"] = explained_variance(sums, count)
        return out


def _off_policy(sums: Mapping[str, float], maxima: Mapping[str, Tensor]) -> dict[str, float]:
    """`off_policy/*`: weights by token, and by trajectory where one weight serves a whole one.

    `effective_frac` is Kish's effective sample size over the number of samples: 1 for equal
    weights, 1/n where one sample has all the weight.
    """
    out = {}
    for prefix, start in (("off_policy", ""), ("off_policy_sequence", "sequence_")):
        count = sums.get(f"{prefix}_count")
        if count is None:
            continue
        weight, squares = sums[f"{prefix}_weight"], sums[f"{prefix}_weight_squared"]
        out[f"off_policy/{start}weight_mean"] = _ratio(weight, count)
        out[f"off_policy/{start}effective_frac"] = _ratio(weight * weight, count * squares)
        for cut in ("truncated", "masked"):
            if f"{prefix}_{cut}" in sums:
                out[f"off_policy/{start}{cut}_frac"] = _ratio(sums[f"{prefix}_{cut}"], count)
    if "off_policy_weight" in maxima:
        out["off_policy/weight_max"] = float(maxima["off_policy_weight"])
    return out


def explained_variance(sums: Mapping[str, float], count: float) -> float:
    """1 - Var(return - value) / Var(return); NaN where all returns are equal."""
    variance = _variance(sums, "return", count)
    if not variance > 1e-12 * max(_ratio(sums["return_squared"], count), 1e-300):
        return math.nan
    return 1 - _variance(sums, "residual", count) / variance


def _variance(sums: Mapping[str, float], name: str, count: float) -> float:
    """Population variance, never negative; NaN without tokens."""
    if not count:
        return math.nan
    mean = sums[name] / count
    return max(sums[f"{name}_squared"] / count - mean * mean, 0.0)


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan
