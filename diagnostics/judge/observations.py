"""Reading a metric out of a step's values, and robust statistics of short lists of them."""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Mapping, Sequence

MAD_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, for normal noise."""


def robust_scale(values: Sequence[float]) -> float:
    """Standard deviation of normal noise with the same median absolute deviation; 0 of nothing.

    >>> round(robust_scale([1.0, 2.0, 3.0, 4.0, 1000.0]), 4)
    1.4826
    """
    if not len(values):
        return 0.0
    centre = median(values)
    return MAD_TO_SIGMA * median([abs(value - centre) for value in values])


@functools.lru_cache(maxsize=65_536)
def matches(name: str, pattern: str) -> bool:
    """`fnmatch.fnmatchcase`, remembered: the same names come at every step."""
    return fnmatch.fnmatchcase(name, pattern)


def median(values: Sequence[float]) -> float:
    """The median of a short list, without numpy's overhead.

    >>> median([3.0, 1.0, 2.0, 10.0])
    2.5
    """
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def observed(values: Mapping[str, float], keys: Sequence[str]) -> dict[str, float]:
    """Finite values of the first of `keys` that has any, by name; several only for a `*`."""
    for key in keys:
        if "*" not in key:
            value = values.get(key, math.nan)
            if math.isfinite(value):
                return {key: value}
            continue
        found = {
            name: value
            for name, value in values.items()
            if matches(name, key) and math.isfinite(value)
        }
        if found:
            return found
    return {}
