"""The observations of one metric: its level, extremes, noise and cadence.

A `Course` takes observations in; `changes.py` decides. The *level* is the median (or mean) of the
last few observations. The *baseline* is the best level so far, the level at the start, the recent
past, or zero. *Noise* is estimated robustly from second differences, so a steady trend is no noise.

A metric that most rows of the log lack is not smoothed. A log with a row at every tenth or fortieth
step is smoothed like one with a row at every step: its rows are as noisy.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .channels import ChannelSpec

LOG_FLOOR = 1e-9
"""What a logarithm sees of zero."""
DATED = 300
HISTORY = 30
"""Differences and recent values that noise and the recent baseline are taken from."""
SPARSE_GAP = 3
"""A metric that is in every third row of the log or fewer is not smoothed; nor is an evaluation at
every third step or fewer."""
BEST_FROM = 5
"""Observations after which a level may be the best; of fewer the best is chance."""
MIN_DIFFERENCES = 8
"""Fewer say more about the trend than about noise."""
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


def levels(
    key: str, spec: ChannelSpec, rows: Iterable[tuple[int, float]], log_steps: Iterable[int]
) -> list[tuple[int, float]]:
    """(step, level) of one metric: what a verdict reads of it.

    Args:
        key: The metric.
        spec: How its channel smooths.
        rows: (step, value) of the metric, by step.
        log_steps: Every step of the log, those without the metric too: a rare one is not smoothed.
    """
    by_step = dict(rows)
    course = Course(spec=spec)
    out = []
    for step in sorted({*by_step, *log_steps}):
        value = by_step.get(step, math.nan)
        course.take(step, {key: value} if math.isfinite(value) else {})
        if math.isfinite(value):
            out.append((step, course.shown_level))
    return out


def observed(values: Mapping[str, float], keys: Sequence[str]) -> dict[str, float]:
    """Finite values of the first of `keys` that has any, by name; several only for a `*`."""
    for key in keys:
        if "*" not in key:
            value = values.get(key, math.nan)
            if math.isfinite(value):
                return {key: value}
            continue
        courses = {
            name: value
            for name, value in values.items()
            if matches(name, key) and math.isfinite(value)
        }
        if courses:
            return courses
    return {}


@dataclass(slots=True)
class Source:
    """Which of several metrics is followed: the best that was ever measured, a mean over tags."""

    key: str = ""
    """Empty before the first measurement; the pattern where it is a mean over tags."""
    members: dict[str, float] = field(default_factory=dict)
    """Last value of every metric that goes into the mean: tags may be measured at odd steps."""

    def measured(self, values: Mapping[str, float], keys: Sequence[str]) -> dict[str, float]:
        """What a row holds of the metric; nothing where it holds only a less trusted one.

        Args:
            keys: Metric keys in order of preference.
        """
        out = observed(values, keys)
        is_worse = bool(out and self.key) and _rank(out, keys) > _rank([self.key], keys)
        return {} if is_worse else out

    def is_better(self, measured: Mapping[str, float], keys: Sequence[str]) -> bool:
        return bool(self.key) and _rank(measured, keys) < _rank([self.key], keys)

    def is_other(self, measured: Mapping[str, float], keys: Sequence[str]) -> bool:
        """Is it another quantity than before: of a better metric, or with one more tag?"""
        has_more = bool(self.members) and not measured.keys() <= self.members.keys()
        return has_more or self.is_better(measured, keys)

    def begin(self, measured: Mapping[str, float], keys: Sequence[str]) -> Source:
        """What is followed from now on; the tags of the same metric stay."""
        return Source(members={} if self.is_better(measured, keys) else dict(self.members))

    def take(self, measured: Mapping[str, float], keys: Sequence[str]) -> float:
        """The value after a row that holds some of it."""
        self.members |= measured
        is_alone = len(self.members) == 1
        self.key = next(iter(measured)) if is_alone else keys[_rank(measured, keys)]
        return math.fsum(self.members.values()) / len(self.members)


def _rank(names: Iterable[str], keys: Sequence[str]) -> int:
    """The place of a metric among keys in order of preference."""
    name = next(iter(names))
    return next((n for n, key in enumerate(keys) if name == key or matches(name, key)), len(keys))


@dataclass(slots=True, kw_only=True)
class Course:
    """The observations of one metric, and what follows from them alone."""

    spec: ChannelSpec
    source: Source = field(default_factory=Source)
    count: int = 0
    first_step: int | None = None
    last_step: int | None = None
    value: float = math.nan
    """Last observation, in the metric's own unit."""
    peak: float = -math.inf
    """Highest single observation, in the metric's own unit."""
    level: float = math.nan
    """Smoothed, and transformed if the spec says so."""
    high: float = math.nan
    low: float = math.nan
    high_step: int | None = None
    low_step: int | None = None
    start: float = math.nan
    gap: float = 1.0
    """Rows of the log from one observation to the next, as a rule: a log with a row at every tenth
    step is as dense as one with a row at every step. Of an evaluation, steps."""
    rows_since: int = 0
    """Rows of the log after the last observation."""
    recent: list[float] = field(default_factory=list)
    """The last observation and `HISTORY` before it, on the channel's scale."""
    differences: list[float] = field(default_factory=list)
    first_values: list[float] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    history: list[tuple[int, float]] = field(default_factory=list)
    """(step, value on the channel's scale) of the last `DATED` observations: they date a change."""

    def take(self, step: int, values: Mapping[str, float]) -> bool:
        """Take in a row of the log. False if the metric is not in it: the row is only counted."""
        self.rows_since += 1
        keys = self.spec.keys
        measured = self.source.measured(values, keys)
        if self.spec.transform == "log" and self.spec.direction == "rise":
            # From nothing, a factor of growth means nothing: a logger wrote no number yet.
            measured = {key: value for key, value in measured.items() if value > 0}
        if not measured:
            return False
        if self.source.is_other(measured, keys):
            source = self.source.begin(measured, keys)
            self.restart()
            self.source = source
        x = self.value = self.source.take(measured, keys)
        self.peak = max(self.peak, x)
        if self.spec.transform == "log":
            x = math.log(max(x, LOG_FLOOR))
        if self.last_step is not None:
            gap = step - self.last_step if self.spec.has_own_schedule else self.rows_since
            _append(self.gaps, gap, 9)
            self.gap = median(self.gaps)
        self.rows_since = 0
        self._add(x, step)
        self.first_step = step if self.first_step is None else self.first_step
        self.last_step = step
        self.count += 1
        return True

    def restart(self) -> None:
        """Forget everything: a better source of the same thing came, or one more of them."""
        type(self).__init__(self, spec=self.spec)

    @property
    def key(self) -> str:
        """The metric that is followed."""
        return self.source.key

    @property
    def is_sparse(self) -> bool:
        """It is rare: one observation is enough to judge by."""
        return self.gap >= SPARSE_GAP

    @property
    def window(self) -> int:
        """Observations that the level is made of: as many rows, whatever the cadence.

        A rare one stands for itself.
        """
        return 1 if self.is_sparse else math.ceil(self.spec.window / max(self.gap, 1.0))

    @property
    def was_ready(self) -> bool:
        return self.count >= (1 if self.is_sparse else self.spec.warmup)

    @property
    def baseline(self) -> float:
        """What the level is compared with, in the metric's own unit."""
        return self._own_unit(self.reference)

    @property
    def shown_level(self) -> float:
        """The level in the metric's own unit."""
        return self._own_unit(self.level)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Two standard errors around the level, in the metric's own unit; None if unknown."""
        error = self.noise
        if not error > 0:
            return None
        low = self._own_unit(self.level - 2 * error)
        high = self._own_unit(self.level + 2 * error)
        if self.key.endswith(("_frac", "_rate", "accuracy", "dependence")):
            return max(low, 0.0), min(high, 1.0)
        return low, high

    @property
    def stands_out(self) -> bool:
        """Is the baseline outside the interval of the level? If not, the level is no evidence."""
        interval, baseline = self.interval, self.baseline
        if interval is None or self.spec.against in ("zero", "recent"):
            return True
        return not interval[0] <= baseline <= interval[1]

    @property
    def noise(self) -> float:
        """Standard error of the level, from second differences: a steady trend is no noise."""
        if len(self.differences) < MIN_DIFFERENCES:
            return 0.0
        sigma = MAD_TO_SIGMA * median([abs(d) for d in self.differences]) / math.sqrt(6)
        width = min(self.window, self.count)
        factor = 1.2533 if self.is_median and width > 1 else 1.0
        return sigma * factor / math.sqrt(width)

    @property
    def reference(self) -> float:
        """The baseline on the channel's scale."""
        against, falls = self.spec.against, self.spec.direction == "fall"
        if against == "zero":
            return 0.0
        if against == "start":
            return self.start
        return self.high if falls else self.low

    @property
    def persist(self) -> int:
        """Observations in a row that it takes: as many steps, whatever the cadence."""
        persist = self.spec.persist
        if self.is_sparse:
            return min(persist, 2)
        if self.gap > 1:
            return min(persist, max(2, math.ceil(persist / self.gap)))
        return persist

    @property
    def is_median(self) -> bool:
        """Whether the level is a median of rows, not their mean."""
        return self.spec.smooth == "median" and not self.is_sparse

    def _add(self, x: float, step: int) -> None:
        if len(self.recent) > 1:
            _append(self.differences, x - 2 * self.recent[-1] + self.recent[-2], HISTORY)
        _append(self.recent, x, HISTORY + 1)
        _append(self.history, (step, x), DATED)
        if len(self.first_values) < 10:
            self.first_values.append(x)
            self.start = median(self.first_values)
        width = 1 if self.spec.against == "recent" else self.window
        tail = self.recent[-width:]
        self.level = median(tail) if self.is_median else math.fsum(tail) / len(tail)
        if self.is_sparse and width == 1 and math.isnan(self.high):
            # Only the second observation tells that a metric is rare: the first counts, too.
            for earlier in self.recent[:-1]:
                self._extend_extremes(earlier, self.last_step or 0)
        if self.is_sparse:
            is_full = len(self.recent) >= width
        else:
            is_full = self.count + 1 >= min(self.spec.warmup, BEST_FROM)
        if is_full:
            self._extend_extremes(self.level, step)

    def _extend_extremes(self, level: float, step: int) -> None:
        if not level <= self.high:
            self.high, self.high_step = level, step
        if not level >= self.low:
            self.low, self.low_step = level, step

    def _own_unit(self, x: float) -> float:
        if self.spec.transform == "log" and math.isfinite(x):
            return math.exp(x)
        return x


def _append(values: list[Any], value: Any, size: int) -> None:
    values.append(value)
    del values[:-size]
