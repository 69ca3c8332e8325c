"""Fewer points, the same picture: curves of any length drawn from a bounded number of points."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Values = NDArray[np.float64]


def downsample(values: Values, max_points: int) -> NDArray[np.intp]:
    """Which points of a curve to draw, at most about `max_points`, in order.

    The curve is cut into buckets of equal count; of each the smallest and the largest value stay,
    and one NaN if there is any, so that a gap stays a gap. The first and the last point stay.

    Args:
        values: (N,), in the order of drawing.
        max_points: at least 8; a bucket takes up to three of them, the ends two.

    Returns:
        Indices into `values`, increasing.
    """
    count = len(values)
    if max_points < 8:
        raise ValueError(f"max_points is {max_points}, but must be at least 8")
    if count <= max_points:
        return np.arange(count)
    buckets = (max_points - 2) // 3
    size = -(-count // buckets)
    padded = np.full(buckets * size, np.nan)
    padded[:count] = values
    table = padded.reshape(buckets, size)
    starts = np.arange(buckets) * size
    is_nan = np.isnan(table)
    has_value = ~is_nan.all(axis=1)
    smallest = np.where(is_nan, np.inf, table).argmin(axis=1)
    largest = np.where(is_nan, -np.inf, table).argmax(axis=1)
    inside = np.arange(buckets * size).reshape(buckets, size) < count
    gap = is_nan & inside
    chosen = [
        (starts + smallest)[has_value],
        (starts + largest)[has_value],
        (starts + gap.argmax(axis=1))[gap.any(axis=1)],
        np.array([0, count - 1]),
    ]
    return np.unique(np.concatenate(chosen))


def smoothed(values: Values, weight: float) -> Values:
    """Exponential moving average with the start corrected, as Adam does: no pull towards zero.

    `s_t = w s_(t-1) + (1 - w) y_t`, divided by `1 - w^t`. A NaN leaves a gap and is left out.

    Args:
        values: (N,)
        weight: 0 (as it is) to 0.99.

    Raises:
        ValueError: a weight outside [0, 1).
    """
    if not 0 <= weight < 1:
        raise ValueError(f"the smoothing weight is {weight}, but must lie in [0, 1)")
    if weight == 0:
        return values
    series = pd.Series(np.where(np.isfinite(values), values, np.nan))
    means = series.ewm(alpha=1 - weight, adjust=True, ignore_na=True).mean().to_numpy(np.float64)
    return np.where(np.isfinite(values), means, np.nan)


def clipped_range(values: Values, *, log_y: bool) -> tuple[float, float] | None:
    """A range of the y axis that leaves outliers out: the middle 96 % and a tenth around it.

    In logarithms of ten where `log_y`. None where there is nothing to range over.
    """
    return _range(values, (0.02, 0.98), 0.1, log_y=log_y)


def full_range(values: Values, *, log_y: bool) -> tuple[float, float] | None:
    """As `clipped_range`, with every value and a twentieth around them."""
    return _range(values, (0.0, 1.0), 0.05, log_y=log_y)


def _range(
    values: Values, quantiles: tuple[float, float], margin: float, *, log_y: bool
) -> tuple[float, float] | None:
    known = values[np.isfinite(values)]
    if log_y:
        known = np.log10(known[known > 0])
    if len(known) < 2:
        return None
    low, high = (float(value) for value in np.quantile(known, quantiles))
    if not low < high:
        return None
    around = margin * (high - low)
    return low - around, high + around
