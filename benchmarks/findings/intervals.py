"""Intervals over seeds, and what they say about a claim.

The unit is the seed: what happened within one run is one number. Two arms are compared seed by
seed, because a seed draws the same tasks and the same first steps for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, t, ttest_ind

CONFIDENCE = 0.95
FEWEST = 2
"""Seeds that an interval needs."""
DRAWS = 2000

Expected = Literal["above", "below", "near"]
Verdict = Literal["agrees", "disagrees", "not told apart", "not measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean, or another statistic, with its 95 % interval over so many runs or seeds."""

    middle: float
    low: float
    high: float
    num_seeds: int


def over_seeds(values: Sequence[float]) -> Interval | None:
    """Mean with Student's t interval; None with fewer than two values.

    Values that are all equal have an interval of no width.
    """
    numbers = np.array(values, dtype=np.float64)
    if len(numbers) < FEWEST:
        return None
    middle = float(numbers.mean())
    error = float(numbers.std(ddof=1)) / len(numbers) ** 0.5
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(numbers) - 1)) * error
    return Interval(middle=middle, low=middle - half, high=middle + half, num_seeds=len(numbers))


def between(ones: Sequence[float], others: Sequence[float]) -> Interval | None:
    """Difference of two means with Welch's interval; None with fewer than two values of either."""
    if min(len(ones), len(others)) < FEWEST:
        return None
    test = ttest_ind(ones, others, equal_var=False)
    low, high = test.confidence_interval(CONFIDENCE)
    middle = float(np.mean(ones) - np.mean(others))
    count = len(ones) + len(others)
    return Interval(middle=middle, low=float(low), high=float(high), num_seeds=count)


def verdict(interval: Interval | None, expected: Expected, border: float) -> Verdict:
    """What an interval says of a claim.

    Args:
        expected: `above`: the claim says that the number is larger than the border. `below`:
            smaller. `near`: not farther from 0 than the border; to disagree, the whole interval
            must be farther.
    """
    if interval is None:
        return "not measured"
    if interval.low == interval.high:
        return "not told apart"  # values that are all equal say nothing of how much seeds differ
    if expected == "near":
        if -border <= interval.low and interval.high <= border:
            return "agrees"
        is_away = interval.low > border or interval.high < -border
        return "disagrees" if is_away else "not told apart"
    is_above, is_below = interval.low > border, interval.high < border
    if not (is_above or is_below):
        return "not told apart"
    return "agrees" if is_above == (expected == "above") else "disagrees"


def seeds_to_decide(interval: Interval, expected: Expected, border: float, most: int) -> int | None:
    """How many seeds would tell, if mean and spread over seeds stay; None if more than `most`.

    Args:
        interval: of `over_seeds`.
        expected, border: as `verdict` takes them.
    """
    num = interval.num_seeds
    error = (interval.high - interval.low) / 2 / float(t.ppf((1 + CONFIDENCE) / 2, num - 1))
    spread = error * num**0.5
    reach = abs(interval.middle)
    gap = abs(reach - border) if expected == "near" else abs(interval.middle - border)
    for seeds in range(num + 1, most + 1):
        if float(t.ppf((1 + CONFIDENCE) / 2, seeds - 1)) * spread / seeds**0.5 < gap:
            return seeds
    return None


def spearman(first: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Rank correlation; 0 where one of both does not vary."""
    ranks = [rankdata(values) for values in (first, other)]
    if min(float(np.std(values)) for values in ranks) == 0:
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def over_arms(
    statistic: Callable[[NDArray[np.int64]], float], clusters: Sequence[str], *, seed: int = 0
) -> Interval | None:
    """Percentile interval of a statistic of runs, by drawing whole arms with replacement.

    Seeds of one arm resemble each other, so runs are not drawn one by one.

    Args:
        statistic: of the indices of drawn runs.
        clusters: the arm of each run.
    """
    arms = sorted(set(clusters))
    if len(arms) <= FEWEST:
        return None
    members = {arm: np.flatnonzero(np.array(clusters) == arm) for arm in arms}
    rng = np.random.default_rng(seed)
    drawn = [
        statistic(
            np.concatenate([members[arms[i]] for i in rng.integers(len(arms), size=len(arms))])
        )
        for _ in range(DRAWS)
    ]
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    middle = statistic(np.arange(len(clusters)))
    return Interval(middle=middle, low=float(low), high=float(high), num_seeds=len(clusters))
