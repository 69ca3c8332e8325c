"""From the sums of microbatches to the metrics of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .losses import LossTerms

_PER_TOKEN = {
    "ratio": "policy/ratio_mean",
    "clip_low": "policy/clip_low_frac",
    "clip_high": "policy/clip_high_frac",
    "clip_dual": "policy/clip_dual_frac",
    "approx_kl": "policy/approx_kl",
    "entropy": "policy/update_entropy",
    "ref_kl": "policy/ref_kl",
    "value": "critic/value_mean",
    "return": "critic/return_mean",
}
_LOSSES = {
    "loss_policy": "loss/policy",
    "loss_kl": "loss/kl",
    "loss_entropy": "loss/entropy",
    "loss_value": "loss/value",
}
_ALWAYS = dict.fromkeys(
    (
        "num_tokens",
        "ratio",
        "clip_low",
        "clip_high",
        "clip_dual",
        "approx_kl",
        "entropy",
        "advantage",
        "advantage_squared",
        "loss_policy",
    ),
    0.0,
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

    def add(self, terms: LossTerms) -> None:
        for name, value in terms.metrics.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        for name, value in terms.maxima.items():
            known = self.maxima.get(name, value)
            self.maxima[name] = torch.maximum(known, value)

    def add_idle(self, num_tokens: int) -> None:
        """Count tokens that needed no pass."""
        self.num_idle += num_tokens

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
        losses = {key: sums[name] for name, key in _LOSSES.items() if name in sums}
        losses["loss/total"] = sum(losses.values())
        updates = num_updates if count_all else 0
        out |= {key: _ratio(value, updates) for key, value in losses.items()}
        out["policy/ratio_max"] = float(self.maxima["ratio"]) if count else math.nan
        out["policy/advantage_mean"] = _ratio(sums["advantage"], count_all)
        out["policy/advantage_std"] = math.sqrt(_variance(sums, "advantage", count_all))
        out["optim/idle_token_frac"] = _ratio(float(self.num_idle), count_all)
        if "residual" in sums:
            out["critic/explained_variance"] = explained_variance(sums, count)
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
