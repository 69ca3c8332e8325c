"""How high a metric is in groups of runs, and how far two groups differ, with 95 % intervals. Pure.

The unit is the run: what happens within one run is one number. A group of one run has no spread
between runs, so there the unit is a stretch of its steps, and the interval is of this very run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.measure.outcomes import (
    Estimate,
    mean_estimate,
    paired_estimate,
    unpaired_estimate,
)
from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.diagnostics.metric_entry import POINTS, SHARE
from echoscope.store.records import FloatArray64
from echoscope.text.amounts import counted, percent, points

from ...words import number_words

NUM_STRETCHES = 4
"""Of the window of a single run: neighbouring steps are alike, stretches of several hardly are.
With 8 the interval misses the truth three times as often as it says (tests/dashboard/data)."""
LEAST_STEPS = 2
"""Of a window: one step is noise."""
LEAST_PAIRS = 4
"""Seeds that two groups share, from which on they are compared seed by seed."""
_MOST_T = 12.7
_RATIO_UNITS = ("s", "tokens", "tokens/s", "per second", "bytes")
"""Of amounts: twice as much means something, which it does not for a share or for nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLevel:
    """One metric of one run in a window of steps."""

    run: str
    seed: str | None
    stretches: tuple[float, ...]
    """Means of the finite values in each of `NUM_STRETCHES` equal stretches, without empty ones."""
    mean: float
    """Of all finite values in the window; NaN without one."""
    num_points: int
    num_episodes: int = 0
    """Behind a success rate; 0 where that is not known."""
    num_tasks: int = 0
    """Fixed tasks that an evaluation played, the same every time; 0 for any other metric."""
    played: str | None = None
    """Equal where two runs of a seed met the same tasks; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLevel:
    """One metric of a group in a window of steps."""

    key: str
    estimate: Estimate
    runs: tuple[RunLevel, ...]
    """Those with a value."""

    @property
    def num_points(self) -> int:
        return sum(run.num_points for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A group's level minus that of the baseline."""

    key: str
    difference: Estimate
    ratio: Estimate | None
    """Of amounts: this level over the baseline's, of geometric means over runs."""
    is_paired: bool
    """Seed by seed."""

    @property
    def is_apart(self) -> bool:
        return not self.difference.low <= 0 <= self.difference.high and self.has_interval

    @property
    def has_interval(self) -> bool:
        return bool(self.difference.low <= self.difference.high)


def level_of(key: str, runs: Sequence[RunLevel]) -> GroupLevel:
    """The level of a group from its runs; those without a value are left out."""
    measured_runs = tuple(run for run in runs if run.num_points)
    is_share = metric(key).unit == SHARE
    if measured_runs and is_share and all(run.num_tasks for run in measured_runs):
        estimate = evaluated_estimate(
            [run.mean for run in measured_runs], [run.num_tasks for run in measured_runs]
        )
    elif is_share:
        estimate = share_estimate(_units(measured_runs), _trials(measured_runs))
    else:
        estimate = mean_estimate(_units(measured_runs))
    if len(measured_runs) == 1:  # stretches without a value weigh nothing
        estimate = replace(estimate, value=measured_runs[0].mean)
    return GroupLevel(key=key, estimate=estimate, runs=measured_runs)


def _trials(runs: Sequence[RunLevel]) -> Trials:
    nums = [run.num_tasks or run.num_episodes for run in runs]
    is_known = bool(nums) and all(nums)
    return Trials(num=sum(nums) if is_known else sum(r.num_points for r in runs), is_known=is_known)


def gap_between(level: GroupLevel, baseline: GroupLevel) -> Gap:
    """How far a group is from the baseline.

    Groups with the same seeds, at least `LEAST_PAIRS`, are compared seed by seed where a seed means
    the same tasks in both. Of other tasks a seed says nothing: then the two intervals are joined.
    """
    pairs = _pairs(level, baseline)
    if pairs and metric(level.key).unit == SHARE:
        difference = paired_estimate([a - b for a, b in pairs])
    elif pairs:
        difference = mean_estimate([a - b for a, b in pairs])
    else:
        difference = unpaired_estimate(level.estimate, baseline.estimate)
    return Gap(
        key=level.key,
        difference=difference,
        ratio=_ratio(level, baseline, pairs),
        is_paired=bool(pairs),
    )


def _pairs(level: GroupLevel, baseline: GroupLevel) -> list[tuple[float, float]]:
    """Means of the runs with the same seed; none unless both groups have each seed once, and played
    the same tasks."""
    played = {run.played for of in (level, baseline) for run in of.runs}
    if len(played) > 1 or None in played:
        return []
    first, second = ({run.seed: run.mean for run in of.runs} for of in (level, baseline))
    sizes = {len(level.runs), len(baseline.runs), len(first), len(second)}
    if None in first or first.keys() != second.keys() or len(sizes) > 1 or len(first) < LEAST_PAIRS:
        return []
    return [(first[seed], second[seed]) for seed in first]


def _ratio(
    level: GroupLevel, baseline: GroupLevel, pairs: Sequence[tuple[float, float]]
) -> Estimate | None:
    units = [_units(of.runs) for of in (level, baseline)]
    is_amount = metric(level.key).unit in _RATIO_UNITS
    if not is_amount or any(min(of, default=0.0) <= 0 for of in units):
        return None
    logs = [mean_estimate([math.log(value) for value in of]) for of in units]
    if pairs:
        apart = mean_estimate([math.log(a / b) for a, b in pairs])
    else:
        apart = unpaired_estimate(*logs)
    return Estimate(value=math.exp(apart.value), low=math.exp(apart.low), high=math.exp(apart.high))


def _units(runs: Sequence[RunLevel]) -> tuple[float, ...]:
    """What an interval is over: means of runs, or of the stretches of a single one."""
    return runs[0].stretches if len(runs) == 1 else tuple(run.mean for run in runs)


def evaluated_estimate(shares: Sequence[float], num_tasks: Sequence[float]) -> Estimate:
    """Mean success of runs on fixed tasks, with an interval that is never narrower than so many
    tasks allow; of one run it is over its tasks alone.

    >>> evaluated_estimate([0.25], [32]).as_rate()
    '25.0 % (13.3 to 42.1)'
    """
    if len(shares) > 1:
        return share_estimate(shares, Trials(num=sum(num_tasks), is_known=True))
    low, high = wilson_interval(shares[0], num_tasks[0])
    return Estimate(value=shares[0], low=float(low), high=float(high))


def share_estimate(shares: Sequence[float], trials: Trials) -> Estimate:
    """Mean of the runs' shares with an interval inside 0 to 1: `share_bands` of one step.

    >>> estimate = share_estimate([0.9, 1.0, 1.0], Trials(num=300, is_known=True))
    >>> round(estimate.value, 3), estimate.high <= 1
    (0.967, True)
    """
    means = np.asarray(shares, np.float64).reshape(-1, 1)
    mean, low, high = share_bands(means, trials)
    return Estimate(value=float(mean[0]), low=float(low[0]), high=float(high[0]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trials:
    """What shares were counted from, all runs together."""

    num: FloatArray64 | float
    """(S,) or of all steps."""
    is_known: bool
    """Episodes or tasks; otherwise only measured values, each of which is one trial at least."""


Bands = tuple[FloatArray64, FloatArray64, FloatArray64]
"""Mean, lower end and upper end at each step, all (S,)."""


def share_bands(shares_RS: FloatArray64, trials: Trials) -> Bands:
    """Means over runs of a share, with Wilson's interval for clustered trials.

    The episodes of a run go together, so they count for fewer: for as many independent ones as have
    the variance that is seen between runs, at least one a run and at most all of them. Runs without
    any spread count with all of their trials.

    Args:
        shares_RS: (runs, steps), NaN where a run has no value.
    """
    mean, variance, num = _moments(shares_RS)
    mean = np.clip(mean, 0, 1)
    between = variance / np.maximum(num, 1)
    most = np.maximum(trials.num, num)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.where(between > 0, mean * (1 - mean) / between, most)
    effective = np.clip(effective, num, most if trials.is_known else np.inf)
    low, high = wilson_interval(mean, effective, z=_t(num))
    alone = num < 2
    return mean, np.where(alone, np.nan, low), np.where(alone, np.nan, high)


def mean_bands(values_RS: FloatArray64) -> Bands:
    """Means over runs with Student's interval; no interval where only one run has a value."""
    mean, variance, num = _moments(values_RS)
    half = np.where(num > 1, _t(num) * np.sqrt(variance / np.maximum(num, 1)), np.nan)
    return mean, mean - half, mean + half


def _moments(values_RS: FloatArray64) -> tuple[FloatArray64, FloatArray64, NDArray[np.int64]]:
    """Mean and variance over runs, NaN without a value; how many runs have one."""
    values = np.ma.masked_invalid(values_RS)
    mean, variance = values.mean(axis=0), values.var(axis=0, ddof=1)
    return mean.filled(np.nan), variance.filled(0.0), values.count(axis=0)


def _t(num: NDArray[np.int64]) -> FloatArray64:
    """Student's 97.5 % quantile for so many values."""
    from scipy.special import stdtrit  # takes a while: not for a page without groups

    quantiles: FloatArray64 = stdtrit(np.maximum(num - 1, 1), 0.975)
    return np.minimum(quantiles, _MOST_T)


# --- in words


def level_words(level: GroupLevel) -> str:
    """`81.2 % (75.0 to 86.6)`; `0.42 (0.38 to 0.46) nats`; the mean alone without an interval."""
    if math.isnan(level.estimate.value):
        return "not measured"
    return _estimate_words(level.estimate, metric(level.key).unit)


def _estimate_words(estimate: Estimate, unit: str, *, is_difference: bool = False) -> str:
    """A value with its interval, if it has one, and its unit."""
    has_interval = estimate.low <= estimate.high
    if unit == SHARE and not is_difference:
        return estimate.as_rate() if has_interval else percent(estimate.value, 1)
    if unit in (SHARE, POINTS):
        return estimate.as_points() if has_interval else points(estimate.value, 1)
    value, low, high = (
        number_words(number, is_signed=is_difference)
        for number in (estimate.value, estimate.low, estimate.high)
    )
    ends = f" ({low} to {high})" if has_interval else ""
    return f"{value}{ends} {unit}".strip()


def gap_words(gap: Gap) -> str:
    """How far a group is from the baseline, and whether they can be told apart."""
    if math.isnan(gap.difference.value):
        return "not measured in both"
    return f"{_standing(gap)}: {_difference_words(gap)}"


def _standing(gap: Gap) -> str:
    """How a group stands to the baseline: both were measured."""
    if not gap.has_interval:
        return "too few values to tell"
    if not gap.is_apart:
        return "cannot be told apart"
    return "higher" if gap.difference.value > 0 else "lower"


def _difference_words(gap: Gap) -> str:
    """The difference, and the ratio of groups that can be told apart."""
    difference = _estimate_words(gap.difference, metric(gap.key).unit, is_difference=True)
    ratio = gap.ratio if gap.is_apart else None
    if ratio is None or not ratio.low <= ratio.high:
        return difference
    return f"{difference}; {ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"


def _pair_words(name: str, gap: Gap, baseline: str) -> str:
    """How a group stands to the baseline, in a sentence."""
    if math.isnan(gap.difference.value):
        return f"It was not measured in both {name} and {baseline}."
    if not gap.has_interval:
        sentence = f"There are too few values to tell {name} from {baseline}"
    elif not gap.is_apart:
        sentence = f"{name} and {baseline} cannot be told apart"
    else:
        sentence = f"{name} is {_standing(gap)} than {baseline}"
    return f"{sentence}: {_difference_words(gap)}."


def count_words(level: GroupLevel) -> str:
    """`5 runs, 50 values`: what an interval rests on."""
    tasks = max((run.num_tasks for run in level.runs), default=0)
    counts = [counted(len(level.runs), "run"), counted(level.num_points, "value")]
    return ", ".join([*counts, *([counted(tasks, "task")] if tasks else [])])


def summary(
    key: str, levels: Mapping[str, GroupLevel], gaps: Mapping[str, Gap], baseline: str
) -> str:
    """The comparison in two sentences: which group is highest, and who differs from the baseline.

    Args:
        levels: name of the group -> its level.
        gaps: name of the group -> how far it is from the baseline, without the baseline.
    """
    measured = {name: of for name, of in levels.items() if not math.isnan(of.estimate.value)}
    if not measured:
        return f"{metric(key).name} was not measured in these steps."
    best = max(measured, key=lambda name: measured[name].estimate.value)
    first = f"{metric(key).name} is highest for {best}: {level_words(measured[best])}."
    if len(gaps) == 1:
        (other,) = gaps
        return f"{first} {_pair_words(other, gaps[other], baseline)}"
    standings = [_standing(gap) for gap in gaps.values()]
    counts = []
    for side in ("higher", "lower"):
        if num := standings.count(side):
            counts.append(f"{counted(num, 'group')} {'is' if num == 1 else 'are'} {side}")
    if num := standings.count("cannot be told apart"):
        counts.append(f"{counted(num, 'group')} cannot be told apart from it")
    return first + (f" Against {baseline}: {', '.join(counts)}." if counts else "")
