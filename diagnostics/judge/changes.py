"""Has a metric moved, against its own past, for longer than noise would?

A `Channel` follows one metric causally. Its *level* is the median (or mean) of the last few
observations. Its *baseline* is the best level so far, the level at the start, the recent past, or
zero. The *strength* of a departure is the distance from the baseline, in units of the distance at
which it counts; that distance is never less than four standard errors of the level, estimated
robustly from second differences, so a noisy metric needs more and a steady trend does not. A rate
over a known number of tasks has at least the standard error of so many coin flips; evaluations that
stay low one after the other count as more tasks.

A departure is *raised* once its strength was 1 for several observations in a row, and ends once it
was below one half for as many (hysteresis). A metric that most rows of the log lack, or a rate over
many tasks, is not smoothed; there one observation of strength 1.5 is enough. A log with a row at
every tenth or fortieth step is smoothed like one with a row at every step: its rows are as noisy.
Onset is where the departure first passed one half.

Everything a channel knows is in `state()`, as JSON values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ..catalogue import metric
from .observations import MAD_TO_SIGMA, matches, median, observed, robust_scale

LOG_FLOOR = 1e-9
"""What a logarithm sees of zero."""
NOISE_SIGMAS = 4.0
SINGLE_SIGMAS = 5.0
"""Of one evaluation by its number of tasks: the best of many is better than it should be."""
LEAST_SIGMAS = 2.3
"""Standard errors from the best at which a fall on fixed tasks may count, if other signs agree."""
SURE_SIGMAS = 2.75
"""Standard errors from the best at which one other sign is enough."""
FEW_OBSERVATIONS = 10
"""The best of more of them is higher by luck; see `Channel.sigmas`."""
LEAST_DROP = 0.2
"""Share of the best that a fall must have where nobody knows over how many tasks the rate is."""
DROP_SIGMAS = 3.0
"""Standard errors from the best at which a fall on fixed tasks is beyond chance by itself."""
HISTORY = 30
"""Differences and recent values that noise and the recent baseline are taken from."""
SPARSE_GAP = 3
"""A metric that is in every third row of the log or fewer is not smoothed; nor is an evaluation at
every third step or fewer."""
SPARSE_STRENGTH = 1.5
POOLED_TRIALS = 64
"""Evaluations over fewer tasks are averaged until they hold as many."""
HALF = 0.5
DRASTIC = 2.0
"""Strength of a departure that is no matter of luck."""
BEST_FROM = 5
"""Observations after which a level may be the best; fewer are a matter of luck."""
MIN_DIFFERENCES = 8
"""Fewer say more about the trend than about noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """What is followed, and how far it has to move."""

    name: str
    keys: tuple[str, ...]
    """Metric keys in order of preference; `*` stands for a tag, and tags are averaged. The first
    gives the channel its label and its unit."""
    direction: Literal["fall", "rise"]
    raise_at: float
    """Distance from the baseline: in the metric's unit, in nats of its logarithm, or as a share."""
    against: Literal["best", "start", "recent", "zero"] = "best"
    transform: Literal["none", "log"] = "none"
    is_share: bool = False
    """Distance as a share of the baseline, measured from the lowest level if that is negative."""
    smooth: Literal["median", "mean"] = "median"
    window: int = 5
    persist: int = 3
    least_baseline: float = 0.0
    """A best below this is nothing to fall from (in the metric's unit; not for `transform`)."""
    warmup: int = 5
    """Observations before the baseline counts; one where the metric is measured now and then."""
    trials: str = ""
    """Of a rate: the metric beside it that says over how many trials, `num_tasks` say."""
    has_own_schedule: bool = False
    """An evaluation: it is rare if many steps lie between two of them, whatever rows the log has.
    Any other metric is rare if it is absent from most rows of the log."""

    @property
    def label(self) -> str:
        """As it stands before its numbers: "valid actions"."""
        return metric(self.keys[0]).in_sentence

    @property
    def unit(self) -> str:
        """How its numbers are written (see `rules.base.amount`)."""
        return metric(self.keys[0]).unit


@dataclass(slots=True, kw_only=True)
class Channel:
    """One metric, its level, its baseline, and whether it has departed from it."""

    spec: ChannelSpec
    key: str = ""
    """The metric that is followed; the pattern where it is a mean over tags."""
    members: dict[str, float] = field(default_factory=dict)
    """Last value of every metric that goes into the mean: tags may be measured at odd steps."""
    trials: dict[str, float] = field(default_factory=dict)
    """Last known number of trials behind each member; see `ChannelSpec.trials`."""
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
    strength: float = 0.0
    jump: float = 0.0
    """Strength of the last observation alone; 0 where distances are shares, of drawn tasks say."""
    threshold: float = math.nan
    """Distance from the baseline at which the strength is 1, this time."""
    is_raised: bool = False
    onset_step: int | None = None
    last_quiet_step: int | None = None
    """Last observation before the onset: the departure began after it."""
    raised_step: int | None = None
    has_dropped: bool = False
    """Below its best by more than both intervals allow, or half way back; see `_watch_drop`."""
    dropped_step: int | None = None
    latest_raise_step: int | None = None
    """When it was last raised, whether or not it still is."""
    _recent: list[float] = field(default_factory=list)
    _differences: list[float] = field(default_factory=list)
    _opening: list[float] = field(default_factory=list)
    _gaps: list[int] = field(default_factory=list)
    gap: float = 1.0
    """Rows of the log from one observation to the next, as a rule: a log with a row at every tenth
    step is as dense as one with a row at every step. Of an evaluation, steps."""
    rows_since: int = 0
    """Rows of the log after the last observation."""
    streak: int = 0
    """Observations in a row with a strength of 1 or more."""
    half_streak: int = 0
    """Observations in a row with a strength of one half or more."""
    far_streak: int = 0
    """Observations in a row that are as far as `raise_at`, whatever their standard error."""
    _quiet_streak: int = 0

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Take in a row of the log; it is only counted if the metric is not in it."""
        self.rows_since += 1
        found = observed(values, self.spec.keys)
        if not found:
            return
        rank, known = self._rank(next(iter(found))), self._rank(self.key)
        if self.key and rank > known:
            return
        is_new_source = rank < known or not found.keys() <= self.members.keys()
        if is_new_source:
            kept = ({}, {}) if rank < known else (self.members, self.trials)
            self._forget()
            self.members, self.trials = dict(kept[0]), dict(kept[1])
        self.members |= found
        self._count_trials(found, values)
        self.key = next(iter(found)) if len(self.members) == 1 else self.spec.keys[rank]
        self.value = math.fsum(self.members.values()) / len(self.members)
        x = self.value
        self.peak = max(self.peak, x)
        if self.spec.transform == "log":
            x = math.log(max(x, LOG_FLOOR))
        if self.last_step is not None:
            own = step - self.last_step if self.spec.has_own_schedule else self.rows_since
            _append(self._gaps, own, 9)
            self.gap = median(self._gaps)
        self.rows_since = 0
        baseline = self._recent_past(x) if self.spec.against == "recent" else (math.nan, 1.0)
        self._take(x, step)
        self.first_step = step if self.first_step is None else self.first_step
        self.last_step = step
        self.count += 1
        self._judge(step, baseline)

    @property
    def is_sparse(self) -> bool:
        return self.gap >= SPARSE_GAP

    @property
    def stands_alone(self) -> bool:
        """One observation is enough to judge by: it is rare, or a rate over many trials."""
        return self.is_sparse or POOLED_TRIALS <= self.num_trials < math.inf

    @property
    def window(self) -> int:
        """Observations that the level is made of: as many rows, whatever the cadence.

        A rare one stands for itself, and so does a rate over many trials; few trials are pooled.
        """
        pooled = max(1, math.ceil(POOLED_TRIALS / self.num_trials))
        if self.is_sparse:
            return min(self.spec.window, pooled)
        width = math.ceil(self.spec.window / max(self.gap, 1.0))
        return min(width, pooled) if math.isfinite(self.num_trials) else width

    @property
    def leans(self) -> bool:
        """At least half way to counting, and not for the first time unless rarely measured.

        Or the last observation alone is twice as far as it takes, which no batch does.
        """
        is_half_way = self.half_streak >= (1 if self.stands_alone else 2)
        return (is_half_way and self.stands_out) or self.jump >= DRASTIC

    @property
    def share_moved(self) -> float:
        """How far the level is from the baseline, as a share of it; whatever its standard error."""
        reference = self._reference()
        scale = reference - min(self.low, 0.0)
        return abs(self.level - reference) / scale if scale > 0 else math.nan

    @property
    def sigmas(self) -> float:
        """Standard errors from the best down to what followed it, of a rate on fixed tasks.

        The best is one observation too, with its own error; what followed is the mean of the
        evaluations in a row that are as far down as counts. The best of n is about sqrt(2 ln n)
        errors above the true rate by luck alone, so each further evaluation takes a little off.
        Infinite where no number of tasks is known, or too few for one evaluation to be judged by
        itself.
        """
        if not math.isfinite(self.num_trials) or not self.stands_alone or not self._recent:
            return math.inf
        tail = self._recent[-max(1, self.far_streak) :]
        error = self._error_of(self._reference()) * math.sqrt(1 + 1 / len(tail))
        if not error:
            return math.inf
        luck = _luck_of_the_best(self.count) - _luck_of_the_best(FEW_OBSERVATIONS)
        return (self._reference() - math.fsum(tail) / len(tail)) / error - max(luck, 0.0)

    @property
    def noise_sigmas(self) -> float:
        """Standard errors from the best level to this one, by the noise of both; 0 if unknown."""
        noise = self.noise
        distance = abs(self.level - self._reference())
        return distance / (noise * math.sqrt(2)) if noise > 0 else 0.0

    @property
    def was_ready(self) -> bool:
        return self.count >= (1 if self.stands_alone else self.spec.warmup)

    @property
    def opening(self) -> float:
        """Where it began: the first of what stands alone, else the median of the first ten."""
        return self._opening[0] if self._opening and self.stands_alone else self.start

    @property
    def baseline(self) -> float:
        """What the level is compared with, in the metric's own unit."""
        return self._own_unit(self._reference())

    @property
    def shown_level(self) -> float:
        """The level in the metric's own unit."""
        return self._own_unit(self.level)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Two standard errors around the level, in the metric's own unit; None if unknown.

        From its own noise, and of a rate over a known number of tasks from that number if wider.
        """
        error = self.noise
        if math.isfinite(self.num_trials):
            error = max(error, self._error_of(self.level))
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
        if len(self._differences) < MIN_DIFFERENCES:
            return 0.0
        sigma = MAD_TO_SIGMA * median([abs(d) for d in self._differences]) / math.sqrt(6)
        width = min(self.window, self.count)
        factor = 1.2533 if self._is_median and width > 1 else 1.0
        return sigma * factor / math.sqrt(width)

    @property
    def num_trials(self) -> float:
        """Trials behind one observation; infinite where unknown. A mean over all tags adds none."""
        tags = [name for name in self.members if "/all/" not in name] or list(self.members)
        if not tags or not set(tags) <= self.trials.keys():
            return math.inf
        return len(tags) ** 2 / sum(1 / self.trials[name] for name in tags)

    def _count_trials(self, found: Mapping[str, float], values: Mapping[str, float]) -> None:
        if not self.spec.trials:
            return
        for name in found:
            count = values.get(f"{name.rpartition('/')[0]}/{self.spec.trials}", math.nan)
            if count > 0:
                self.trials[name] = count

    def _standard_error(self, reference: float) -> float:
        """Of the level: from its noise, and of a rate at least that of its trials.

        What stands alone is not smoothed, but must stay where it is for `persist` observations,
        which are as good as a mean over them.
        """
        repeats = max(self._persist, self.far_streak) if self.stands_alone else 1
        noise = self.noise / math.sqrt(repeats)
        if not math.isfinite(self.num_trials):
            return noise
        total = self.num_trials * (self.window - 1 + max(self._persist, self.far_streak))
        rate = (min(max(reference, 0.0), 1.0) * total + 1) / (total + 2)
        return max(noise, math.sqrt(rate * (1 - rate) / total))

    @property
    def _is_median(self) -> bool:
        return self.spec.smooth == "median" and not self.is_sparse

    @property
    def _is_conclusive(self) -> bool:
        """Is the last observation alone too far away for a rate over so many trials?"""
        if not math.isfinite(self.num_trials):
            return False
        total = self.num_trials * self.window
        rate = (min(max(self._reference(), 0.0), 1.0) * total + 1) / (total + 2)
        distance = abs(self.level - self._reference())
        return distance >= SINGLE_SIGMAS * math.sqrt(rate * (1 - rate) / total)

    def _rank(self, key: str) -> int:
        keys = self.spec.keys
        return next((n for n, k in enumerate(keys) if key == k or matches(key, k)), len(keys))

    def _forget(self) -> None:
        """A better source of the same thing, or one more of them: start again with it."""
        fresh = Channel(spec=self.spec)
        for slot in fields(Channel):
            setattr(self, slot.name, getattr(fresh, slot.name))

    def _recent_past(self, x: float) -> tuple[float, float]:
        """Median and robust scale of the recent past, before `x`."""
        past = self._recent[-HISTORY:]
        return (median(past), max(robust_scale(past), 0.1)) if past else (x, 0.1)

    def _take(self, x: float, step: int) -> None:
        if len(self._recent) > 1:
            _append(self._differences, x - 2 * self._recent[-1] + self._recent[-2], HISTORY)
        _append(self._recent, x, max(HISTORY, self.spec.window))
        if len(self._opening) < 10:
            self._opening.append(x)
            self.start = median(self._opening)
        width = 1 if self.spec.against == "recent" else self.window
        tail = self._recent[-width:]
        self.level = median(tail) if self._is_median else math.fsum(tail) / len(tail)
        if self.is_sparse and width == 1 and math.isnan(self.high):
            # Only the second observation tells that a metric is rare: the first counts, too.
            for earlier in self._recent[:-1]:
                self._extend_extremes(earlier, self.last_step or 0)
        if self.is_sparse or math.isfinite(self.num_trials):
            is_full = len(self._recent) >= width
        else:
            is_full = self.count + 1 >= min(self.spec.warmup, BEST_FROM)
        if is_full:
            self._extend_extremes(self.level, step)

    def _extend_extremes(self, level: float, step: int) -> None:
        if not level <= self.high:
            self.high, self.high_step = level, step
        if not level >= self.low:
            self.low, self.low_step = level, step

    def _reference(self) -> float:
        against, falls = self.spec.against, self.spec.direction == "fall"
        if against == "zero":
            return 0.0
        if against == "start":
            return self.start
        return self.high if falls else self.low

    def _judge(self, step: int, recent: tuple[float, float]) -> None:
        if self.spec.against == "recent":
            reference, scale = recent
            self.threshold = self.spec.raise_at * scale
            distance = self.level - reference if len(self._recent) > 10 else 0.0
        else:
            reference = self._reference()
            distance = self.level - reference
            scale = 1.0
            if self.spec.is_share:
                scale = max(reference - min(self.low, 0.0), LOG_FLOOR)
            plain = self.spec.raise_at * scale
            is_far = (distance if self.spec.direction == "rise" else -distance) >= plain
            self.far_streak = self.far_streak + 1 if is_far else 0
            is_level = self.spec.against == "zero"
            guard = 0.0 if is_level else NOISE_SIGMAS * self._standard_error(reference)
            self.threshold = max(plain, guard)
        sign = -1.0 if self.spec.direction == "fall" else 1.0
        ready = self.was_ready and math.isfinite(distance) and self._has_baseline()
        unit = sign / self.threshold if ready and self.threshold > 0 else 0.0
        self.strength = max(distance * unit, 0.0)
        if self.strength:
            self.strength = max(min(self.strength, self.sigmas / LEAST_SIGMAS), 0.0)
        jump = 0.0 if self.spec.is_share else (self._recent[-1] - reference) * unit
        self.jump = max(jump, 0.0)
        if self.spec.trials:
            self._watch_drop(step, reference - self.level if ready else 0.0)
        self._advance(step)

    def _watch_drop(self, step: int, fall: float) -> None:
        """Is a rate on fixed tasks below its best by more than chance explains? At once, if so.

        Chance: `DROP_SIGMAS` standard errors of the difference of two rates over so many tasks.
        Where their number is not known, `NOISE_SIGMAS` of the rate's own noise, and a fifth of the
        best. It ends half way back.
        """
        error = math.hypot(self._error_of(self.high), self._error_of(self.level))
        if not error > 0:
            return
        sigmas = fall / error
        is_known = math.isfinite(self.num_trials)
        is_large = is_known or fall >= LEAST_DROP * self.high
        if not self.has_dropped and sigmas > DROP_SIGMAS and is_large:
            self.has_dropped, self.dropped_step = True, step
        elif self.has_dropped and sigmas < HALF * DROP_SIGMAS:
            self.has_dropped, self.dropped_step = False, None

    def _error_of(self, rate: float) -> float:
        """Standard error of one level of this rate; 0 where nothing is known about its noise."""
        if not math.isfinite(self.num_trials):
            return self.noise * NOISE_SIGMAS / DROP_SIGMAS
        total = self.num_trials * self.window
        shrunk = (min(max(rate, 0.0), 1.0) * total + 1) / (total + 2)
        return math.sqrt(shrunk * (1 - shrunk) / total)

    def _has_baseline(self) -> bool:
        least = self.spec.least_baseline
        return least <= 0 or self._reference() >= least

    @property
    def _persist(self) -> int:
        """Observations in a row that it takes: as many steps, whatever the cadence."""
        persist = self.spec.persist
        if self.stands_alone:
            return min(persist, 2)
        if self.gap > 1:
            return min(persist, max(2, math.ceil(persist / self.gap)))
        return persist

    def _advance(self, step: int) -> None:
        """Persistence, hysteresis and onset."""
        persist = self._persist
        if self.strength >= HALF:
            if self.half_streak == 0 and not self.is_raised:
                self.onset_step = step
            self.half_streak += 1
            self._quiet_streak = 0
        else:
            self.half_streak = 0
            self._quiet_streak += 1
            if not self.is_raised:
                self.onset_step, self.last_quiet_step = None, step
        self.streak = self.streak + 1 if self.strength >= 1 else 0
        is_enough = self._is_conclusive or self.half_streak >= persist
        is_strong = self.stands_alone and self.strength >= (1.0 if is_enough else SPARSE_STRENGTH)
        if not self.is_raised and (self.streak >= persist or is_strong):
            self.is_raised, self.raised_step = True, step
            self.latest_raise_step = step
        elif self.is_raised and self._quiet_streak >= persist:
            self.is_raised, self.raised_step, self.onset_step = False, None, None
            self.last_quiet_step = step

    def _own_unit(self, x: float) -> float:
        if self.spec.transform == "log" and math.isfinite(x):
            return math.exp(x)
        return x

    def state(self) -> dict[str, Any]:
        """Everything but the spec, as JSON values (NaN as None)."""
        out: dict[str, Any] = {}
        for slot in fields(self):
            if slot.name == "spec":
                continue
            value = getattr(self, slot.name)
            if isinstance(value, float) and not math.isfinite(value):
                value = None
            out[slot.name] = copy.copy(value)
        return out

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what `state()` described; what an older version did not write stays fresh."""
        for slot in fields(self):
            if slot.name == "spec" or slot.name not in state:
                continue
            value = state[slot.name]
            if value is None and slot.name in _FLOATS:
                value = math.nan
            setattr(self, slot.name, copy.copy(value))
        self.gap = median(self._gaps) if self._gaps else 1.0


_FLOATS = ("value", "peak", "level", "high", "low", "start", "strength", "threshold")


def _luck_of_the_best(count: int) -> float:
    """About how many standard errors the best of so many equal observations is above their mean."""
    return math.sqrt(2 * math.log(max(count, 1)))


def _append(values: list[Any], value: Any, size: int) -> None:
    values.append(value)
    del values[:-size]
