"""Gradient statistics from inner products: buckets, signal, noise. No torch.

Legend: **P** groups. A group's gradient g_p is its part of the step's: they sum to the gradient of
the step's loss. The group is the sampling unit, since siblings share a baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from echoscope.store.records import FloatArray64

from ..selection.rules import is_zero

BUCKETS = 4


def signal_and_trace(norms_squared_P: FloatArray64, total_squared: float) -> tuple[float, float]:
    """Signal and noise of a gradient, unbiased (McCandlish et al. 2018, appendix A.1).

    With h_p = P g_p, so that the step's gradient is the mean of h_p, batches of 1 and of P give

        |G|^2     = (P |mean h|^2 - mean |h|^2) / (P - 1)
        tr(Sigma) = (mean |h|^2 - |mean h|^2) P / (P - 1)

    |G|^2 of the expected gradient may come out negative; tr(Sigma) is the total variance of one
    group's h_p. Groups without a trained token count: they are draws that gave nothing. NaN with
    fewer than two groups.

    Args:
        norms_squared_P: |g_p|^2 of every group.
        total_squared: |sum of g_p|^2.
    """
    size = len(norms_squared_P)
    if size < 2:
        return math.nan, math.nan
    mean_of_squares = size * float(norms_squared_P.sum())
    signal = (size * total_squared - mean_of_squares) / (size - 1)
    # Rounding may leave it a little below 0; NaN stays NaN.
    trace = float(np.maximum((mean_of_squares - total_squared) * size / (size - 1), 0.0))
    return signal, trace


def noise(norms_squared_P: FloatArray64, total_squared: float) -> tuple[float, float]:
    """Signal-to-noise ratio of the step, and the noise scale in groups.

    The ratio is P |G|^2 / tr(Sigma): at 1 the step's gradient is half signal, in squares. NaN where
    groups do not differ. The noise scale is tr(Sigma) / |G|^2: the number of groups at which signal
    and noise are equal. NaN where |G|^2 is not positive: not distinguishable from zero.
    """
    signal, trace = signal_and_trace(norms_squared_P, total_squared)
    ratio = len(norms_squared_P) * signal / trace if trace > 0 else math.nan
    return ratio, trace / signal if signal > 0 else math.nan


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


def make_buckets(reward_std_P: Sequence[float]) -> dict[str, tuple[int, ...]]:
    """Groups of like reward std: name to their indices, every group in exactly one bucket.

    `zero` holds groups without spread, `undefined` those whose std is NaN; the others go to
    `bucket_1` (least spread), `bucket_2`, ... in equal numbers of at least two groups.
    """
    std_P = np.asarray(reward_std_P, dtype=np.float64)
    undefined, zero = np.isnan(std_P), is_zero(std_P)
    spread = np.flatnonzero(~undefined & ~zero)
    ranked = spread[np.argsort(std_P[spread], kind="stable")]
    parts = np.array_split(ranked, max(1, min(BUCKETS, len(ranked) // 2)))
    named = {
        "zero": np.flatnonzero(zero),
        **{f"bucket_{number}": part for number, part in enumerate(parts, 1)},
        "undefined": np.flatnonzero(undefined),
    }
    return {name: tuple(sorted(part.tolist())) for name, part in named.items() if part.size}


def cosine(dot: float, squared_a: float, squared_b: float) -> float:
    """NaN where one of the two is zero or not finite."""
    scale = math.sqrt(squared_a) * math.sqrt(squared_b) if min(squared_a, squared_b) >= 0 else 0.0
    return dot / scale if scale > 0 and math.isfinite(scale) else math.nan
