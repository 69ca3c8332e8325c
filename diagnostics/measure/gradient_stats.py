"""Gradient statistics from inner products: buckets, signal, noise, layer names. No torch.

Legend: **P** groups. A group's gradient g_p is its part of the step's: they sum to the gradient of
the step's loss. The group is the sampling unit, since siblings share a baseline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from echoscope.store.records import FloatArray64

from ..config import GradientConfig
from ..selection.rules import is_zero

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Signal and noise of a gradient, unbiased (McCandlish et al. 2018, appendix A.1).

    With h_p = P g_p, so that the step's gradient is the mean of h_p, batches of 1 and of P give

        |G|^2     = (P |mean h|^2 - mean |h|^2) / (P - 1)
        tr(Sigma) = (mean |h|^2 - |mean h|^2) P / (P - 1)
    """

    signal_squared: float
    """|G|^2 of the expected gradient; may come out negative."""
    trace: float
    """tr(Sigma), the total variance of one group's h_p."""
    num_groups: int
    """P."""
    reason: str = ""
    """Why there is no noise scale; empty if there is one."""

    @property
    def snr(self) -> float:
        """P |G|^2 / tr(Sigma): at 1 the step's gradient is half signal, in squares.

        NaN where groups do not differ: there is no noise to compare with.
        """
        if not self.trace > 0:
            return math.nan
        return self.num_groups * self.signal_squared / self.trace

    @property
    def noise_scale(self) -> float:
        """tr(Sigma) / |G|^2, in groups: the batch at which signal and noise are equal.

        NaN where |G|^2 is not positive. To average over steps, average `trace` and
        `signal_squared` apart and divide then.
        """
        return math.nan if self.reason else self.trace / self.signal_squared


def estimate_noise(norms_squared_P: FloatArray64, total_squared: float) -> Noise:
    """From |g_p|^2 of every group and |sum of g_p|^2.

    Groups without a trained token count: they are draws that gave nothing.
    """
    size = len(norms_squared_P)
    if size < 2:
        reason = f"noise needs two groups; there {'is one' if size else 'are none'}"
        return Noise(signal_squared=math.nan, trace=math.nan, num_groups=size, reason=reason)
    mean_of_squares = size * float(norms_squared_P.sum())
    signal = (size * total_squared - mean_of_squares) / (size - 1)
    # Rounding may leave it a little below 0; NaN stays NaN.
    trace = float(np.maximum((mean_of_squares - total_squared) * size / (size - 1), 0.0))
    reason = ""
    if not (math.isfinite(signal) and math.isfinite(trace)):
        reason = "the gradient is not finite"
    elif signal <= 0:
        reason = "the gradient is not distinguishable from zero"
    return Noise(signal_squared=signal, trace=trace, num_groups=size, reason=reason)


def signal_share(norms_squared_p: FloatArray64, sum_squared: float) -> float:
    """Share of a bucket's squared norm that is signal: below 0 as often as above where none is.

    |sum|^2 minus the sum of |g_p|^2 is the sum of g_p . g_q over pairs of different groups: the
    average over all ways to cut the bucket into halves of their inner product, up to its scale.
    NaN with fewer than two groups, or without a gradient.
    """
    size = len(norms_squared_p)
    if size < 2 or not sum_squared > 0:
        return math.nan
    return (sum_squared - float(norms_squared_p.sum())) * size / (size - 1) / sum_squared


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Groups of like reward std."""

    name: str
    members: tuple[int, ...]
    """Indices of its groups."""


def make_buckets(reward_std_P: Sequence[float], config: GradientConfig) -> list[Bucket]:
    """Every group in exactly one bucket; empty ones are left out.

    `zero` holds groups without spread, `undefined` those whose std is NaN; the others go to
    `bucket_1` (least spread), `bucket_2`, ... by `config.edges`, or in equal numbers of at least
    two groups.
    """
    std_P = np.asarray(reward_std_P, dtype=np.float64)
    undefined, zero = np.isnan(std_P), is_zero(std_P)
    spread = np.flatnonzero(~undefined & ~zero)
    ranked = spread[np.argsort(std_P[spread], kind="stable")]
    if config.edges is not None:
        at = np.searchsorted(config.edges, std_P[ranked], side="right")
        parts = [ranked[at == k] for k in range(len(config.edges) + 1)]
    else:
        parts = np.array_split(ranked, max(1, min(config.buckets, len(ranked) // 2)))
    named = [("zero", np.flatnonzero(zero))]
    named += [(f"bucket_{k}", part) for k, part in enumerate(parts, 1)]
    named += [("undefined", np.flatnonzero(undefined))]
    return [
        Bucket(name=name, members=tuple(sorted(part.tolist()))) for name, part in named if part.size
    ]


def layer_groups(names: Iterable[str], bands: int) -> dict[str, str]:
    """Parameter name to the group its norm is reported under.

    `embedding`, `head`, `value`, `other`, and `layers_0_5`-like bands of consecutive layers.
    """
    names = list(names)
    numbers = {name: int(found[1]) for name in names if (found := _LAYER.search(name))}
    num_layers = max(numbers.values(), default=-1) + 1
    cuts = np.array_split(np.arange(num_layers), max(1, min(bands, num_layers)))
    band_of = {
        layer: f"layers_{cut[0]}_{cut[-1]}" for cut in cuts for layer in cut.tolist() if cut.size
    }
    out = {}
    for name in names:
        if name.startswith("critic"):
            out[name] = "value"
        elif name in numbers:
            out[name] = band_of[numbers[name]]
        elif "embed" in name or "wte" in name or "wpe" in name:
            out[name] = "embedding"
        else:
            out[name] = "head" if "lm_head" in name else "other"
    return out


def cosine(dot: float, squared_a: float, squared_b: float) -> float:
    """NaN where one of the two is zero or not finite."""
    scale = math.sqrt(squared_a) * math.sqrt(squared_b) if min(squared_a, squared_b) >= 0 else 0.0
    return dot / scale if scale > 0 and math.isfinite(scale) else math.nan
