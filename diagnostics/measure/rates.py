"""Means of arrays, and how sure a rate is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from echoscope.store.records import FloatArray


def mean_of_arrays(arrays: Sequence[FloatArray]) -> float:
    """Mean over all entries of all arrays, in float64; NaN of none."""
    total = sum(len(array) for array in arrays)
    return sum(float(a.sum(dtype=np.float64)) for a in arrays) / total if total else math.nan


def wilson_interval(
    rates: ArrayLike, counts: ArrayLike, z: float | NDArray[np.float64] = 1.96
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % score intervals of rates over `counts` trials each (Wilson 1927): low and high ends.

    NaN where there is no trial or no rate.

    >>> low, high = wilson_interval(0.43, 100)
    >>> round(float(low), 3), round(float(high), 3)
    (0.337, 0.528)
    """
    rates, counts = np.asarray(rates, np.float64), np.asarray(counts, np.float64)
    trials = np.where(counts > 0, counts, np.nan)
    scale = 1 + z * z / trials
    centre = (rates + z * z / (2 * trials)) / scale
    half = z / scale * np.sqrt(rates * (1 - rates) / trials + z * z / (4 * trials**2))
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)
