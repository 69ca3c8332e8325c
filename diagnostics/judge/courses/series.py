"""Observations that carry their weight, and bounds on the mean of any stretch of them.

A success rate over n episodes has the noise of n coin flips, times an over-dispersion of at least 1
that the run's own scatter shows: siblings of a prompt are not independent. Where n is not known,
the scatter alone says how many flips a row is worth; a column that moves in steps of 1/64 has at
least 64. Any other quantity has the noise of its own second differences, so a trend is no noise,
and neither its zero point nor its unit matters.

Every statement is about the mean over a stretch of rows, so it is true or false whatever the course
in between looks like.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from echoscope.store.records import FloatArray64

Kind = Literal["rate", "amount"]

NOMINAL_Z = 1.9
"""Standard errors of an interval that is to cover 95 % (`benchmarks/truth` counts how often)."""
PRINTED_Z = 1.96
"""... of a measured count, as people compute it themselves."""
PRIOR_TRIALS = 16.0
"""Coin flips that a row is worth where nobody says, until its scatter does."""
PRIOR_WEIGHT = 4.0
"""Differences that a prior is worth."""
FADING_DIFFERENCES = 10
"""With so many differences, a guess of the trials behind a row is worth half."""
FIXED_PRIOR_WEIGHT = 12.0
"""... of fixed tasks, whose outcomes are coin flips unless many evaluations say otherwise."""
MOST_SQUARE = 9.0
"""... and of which one second difference says no more: it is a rise and a fall of the policy."""
EDGE = 0.03
"""Rates nearer to 0 or 1 ..."""
EDGE_SIBLINGS = 0.7
"""... have so many outcomes of siblings that are one."""
UNKNOWN_SIBLINGS = 8.0
"""Episodes of one prompt where nobody says how many episodes there are."""
PRIOR_SIBLING_CORRELATION = 0.3
"""Of the outcomes of two samples of one prompt, until the scatter says otherwise."""
MAX_DIFFERENCES = 120
TRIMMED = 0.9
"""Part of the squared differences that is averaged, the smallest: jumps are no noise."""
TRIMMED_MEAN = 0.623
"""Mean of the smallest nine tenths of the squares of standard normal noise."""
LEAST_TO_LEAVE_OUT, LEAST_TO_TRIM = 3, 20
"""Squared differences from which two neighbours are left out, and a part of the largest."""
LEAST_DIFFERENCES = 4
"""Of an amount: with fewer nothing is known of its noise."""
RECENT_DIFFERENCES = 60
SHORT_DIFFERENCES = 10
EARLY_DIFFERENCES = 10
"""Of an amount: until then its first rows share one estimate of their noise."""
LEAST_OF_MEAN = 0.25
"""Part of the mean squared difference that noise has at least: most rows may be equal."""
LEAST_BEFORE_SPIKE = 8
SPIKE_SIGMAS = 5.5
"""A row so far from both neighbours is a spike: shown as such, and left out of levels. Standard
errors of a known noise: of one that is estimated from few rows it takes more."""
WORTH = 0.6
"""Degrees of freedom of a second difference."""
MAX_DENOMINATOR = 4096
MOST_ROWS_TO_REFINE = 12
"""Rows after which no parts are looked for any more where there were none."""
SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows `start` to `stop` (half-open) of a series, and their mean."""

    start: int
    stop: int
    mean: float

    @property
    def size(self) -> int:
        return self.stop - self.start


def lengths(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ...: how many rows a stretch may have, and all there are.

    >>> list(lengths(13))
    [1, 2, 3, 4, 6, 8, 12, 13]
    """
    size = 1
    while size < most:
        yield size
        if size >= 2 and size + size // 2 < most:
            yield size + size // 2
        size *= 2
    if most > 0:
        yield most


@dataclass(slots=True)
class Series:
    """The observations of one quantity, in the order of their steps."""

    kind: Kind
    is_fixed: bool = False
    """The same tasks each time (an evaluation): no siblings."""
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    trials: list[float] = field(default_factory=list)
    """Independent outcomes behind each value; NaN where not known."""
    siblings: float = 1.0
    """Episodes of one prompt, last known."""
    spikes: list[int] = field(default_factory=list)
    """Steps at which an amount was a spike: not among the rows."""
    waiting: tuple[int, float] | None = None
    """(step, value) of a last row that may be a spike."""
    _sums: list[float] = field(default_factory=lambda: [0.0])
    _units: list[float] = field(default_factory=lambda: [0.0])
    """Sums of each row's variance, but for the common factor (`scale`) and p(1-p) of a rate."""
    _squares: list[float] = field(default_factory=list)
    """Recent squared second differences: of a rate over p(1-p) and the units, of an amount raw."""
    _num_squares: int = 0
    _denominator: int = 1
    _decimals: int = 0
    scale: float = 1.0
    persistence: float = 0.0
    """Correlation of the noise of two neighbouring rows, where it is beyond chance: 0 of rows that
    know nothing of each other, near 1 of a moving average."""
    _noise: list[tuple[float, float]] = field(default_factory=list)
    """Scale and degrees of freedom as they were known with each row."""

    def __len__(self) -> int:
        return len(self.values)

    def append(
        self, step: int, value: float, trials: float = math.nan, groups: float = math.nan
    ) -> None:
        """Take in an observation; finite, later than all before.

        An amount that is far from all before waits for its successor: alone it is a spike.
        """
        if self.kind == "rate":
            value = min(max(value, 0.0), 1.0)
            self._refine(value)
            if groups > 0 and trials >= groups:
                self.siblings = trials / groups
            self._add(step, value, trials)
            return
        waiting, self.waiting = self.waiting, None
        side = self._far_side(value)
        if waiting is not None:
            if side and side == self._far_side(waiting[1]):
                self._add(*waiting, math.nan)
                side = 0
            else:
                self.spikes.append(waiting[0])
        if side:
            self.waiting = (step, value)
        else:
            self._add(step, value, trials)

    def _far_side(self, value: float) -> int:
        """1 or -1: further above or below the last rows than any noise that was seen; else 0."""
        if len(self.values) < LEAST_BEFORE_SPIKE or not self.sigma > 0:
            return 0
        seen = self.values[-RECENT_DIFFERENCES:]
        if min(seen) <= value <= max(seen) or 2 * seen.count(seen[-1]) >= len(seen):
            return 0  # it was there before, or hardly anything ever was: then nothing is far
        recent = sorted(self.values[-7:])
        distance = value - recent[len(recent) // 2]
        if abs(distance) <= _as_estimated(SPIKE_SIGMAS, self.freedom) * self.sigma:
            return 0
        return 1 if distance > 0 else -1

    def _add(self, step: int, value: float, trials: float) -> None:
        self.steps.append(step)
        self.values.append(value)
        self.trials.append(trials if trials > 0 else math.nan)
        self._observe_difference()
        self._noise.append((self.scale, self.freedom))
        self._sums.append(self._sums[-1] + value)
        self._units.append(self._units[-1] + self._unit(len(self.values) - 1))
        if self.kind == "amount":
            self._widen()

    def _widen(self) -> None:
        """Give the last rows the noise that shows only now: it may have grown while they came."""
        count = len(self.values)
        # The very first rows came before anything was known of their noise.
        rows = count if self._num_squares <= EARLY_DIFFERENCES else min(count, SHORT_DIFFERENCES)
        units = [self._units[n + 1] - self._units[n] for n in range(count - rows, count)]
        for n, unit in enumerate(units, count - rows):
            self._units[n + 1] = self._units[n] + max(unit, self.scale)

    # -- noise -----------------------------------------------------------------------------------

    def _refine(self, value: float) -> None:
        """The smallest number of equal parts that all values are multiples of; 0: there is none.

        Values that were rounded in a log are near multiples: they count where so many would hardly
        be by chance.
        """
        self._decimals = max(self._decimals, _decimals(value))
        if self._denominator and _is_multiple(value, self._denominator, self._decimals):
            return
        if not self._denominator and len(self.values) > MOST_ROWS_TO_REFINE:
            return
        recent = [value, *{v for v in self.values[-50:] if v != value}]
        for parts in range(self._denominator + 1, MAX_DENOMINATOR + 1):
            is_near = all(_is_multiple(v, parts, self._decimals) for v in recent)
            is_exact = is_near and all(_is_multiple(v, parts) for v in recent)
            if is_exact or (is_near and _is_no_chance(parts, self._decimals, len(recent))):
                self._denominator = parts
                return
        self._denominator = 0

    def _observe_difference(self) -> None:
        count = len(self.values)
        if count < 3:
            self._rescale()
            return
        a, b, c = self.values[-3:]
        square = (a - 2 * b + c) ** 2
        if self.kind == "rate":
            rate = (a + b + c) / 3
            room = rate * (1 - rate)
            if room < 0.01:  # next to nothing or all: such rows say nothing about the noise
                return
            units = [self._flip(n) for n in range(count - 3, count)]
            square /= room * (units[0] + 4 * units[1] + units[2])
        else:
            square /= 6
        self._squares.append(square)
        self._num_squares += 1
        del self._squares[: -MAX_DIFFERENCES if self.kind == "rate" else -RECENT_DIFFERENCES]
        self._rescale()

    def _rescale(self) -> None:
        """The common factor of the variance, from the scatter of the recent rows."""
        squares = self._squares
        if self.kind == "amount":
            # Noise that grows shows in the last rows first.
            last = squares[-SHORT_DIFFERENCES:]
            self.persistence = persistence_of(self.values[-MAX_DIFFERENCES:])
            scale = max(_trimmed(squares), _trimmed(last)) if squares else 0.0
            self.scale = scale * _hidden(self.persistence) * _shared(self.persistence)
            return
        count = len(squares)
        if self.is_fixed and self.has_trials:
            squares = [min(square, MOST_SQUARE) for square in squares]
        total = _trimmed(squares) * count if count else 0.0
        if self.has_trials:
            prior = 1.0 if self.is_fixed else 1 + (self.siblings - 1) * PRIOR_SIBLING_CORRELATION
            weight = FIXED_PRIOR_WEIGHT if self.is_fixed else PRIOR_WEIGHT
            self.scale = max((prior * weight + total) / (weight + count), 1.0)
            return
        old_scale = float(self._denominator) if self._denominator > 1 else 0.0
        flips = max(old_scale, PRIOR_TRIALS)
        weight = PRIOR_WEIGHT / (1 + count / FADING_DIFFERENCES)
        self.persistence = persistence_of(self.values[-MAX_DIFFERENCES:])
        total *= _hidden(self.persistence) * _shared(self.persistence)
        scale = (weight / flips + total) / (weight + count)
        # All rows 0 or 1: each is one episode, as wide as it gets.
        most = 1.0 / old_scale if old_scale else 1.0
        if self._denominator == 1 and any(v in (0.0, 1.0) for v in self.values):
            is_episodes = any(v == 1.0 for v in self.values) and any(v == 0.0 for v in self.values)
            most, scale = (1.0, 1.0) if is_episodes else (1.0, scale)
        self.scale = min(max(scale, 1e-6), most) if not old_scale else max(scale, 1e-6)

    @property
    def has_trials(self) -> bool:
        """Whether the last rows say how many outcomes are behind them."""
        return bool(self.trials) and self.trials[-1] > 0

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of one row of an amount, now; 0 where not known."""
        return math.sqrt(self.scale / _shared(self.persistence)) if self.kind == "amount" else 0.0

    def _flip(self, row: int) -> float:
        trials = self.trials[row]
        return 1.0 / trials if trials > 0 else 1.0

    def _unit(self, row: int) -> float:
        if self.kind == "rate":
            return self._flip(row)
        return self.scale

    @property
    def is_judgeable(self) -> bool:
        """Whether anything is known of the noise."""
        return self.kind == "rate" or self._num_squares >= LEAST_DIFFERENCES

    # -- stretches -------------------------------------------------------------------------------

    def stretch(self, start: int, stop: int) -> Stretch:
        return Stretch(start, stop, (self._sums[stop] - self._sums[start]) / (stop - start))

    def rows_and_units(self, start: int, stop: int) -> tuple[FloatArray64, FloatArray64]:
        """Values of rows `start` to `stop`, and the variance of each but for the common factor."""
        import numpy as np

        units = np.diff(np.asarray(self._units[start : stop + 1]))
        return np.asarray(self.values[start:stop]), np.maximum(units, 1e-12)

    def weight(self, stretch: Stretch, scale: float = math.nan) -> float:
        """Coin flips that a stretch of a rate is worth.

        Args:
            scale: NaN for the one that is known now.
        """
        unit = self._units[stretch.stop] - self._units[stretch.start]
        scale = self.scale if math.isnan(scale) else scale
        if not EDGE <= stretch.mean <= 1 - EDGE:
            # Such rows say nothing about the scatter, and the few successes come in groups.
            scale = max(scale, self._scale_at_edge)
        return stretch.size**2 / max(unit * scale, 1e-12)

    @property
    def _scale_at_edge(self) -> float:
        """The least scale of rows that are nearly all alike; of unknown trials, by their guess."""
        if self.has_trials:
            return EDGE_SIBLINGS * self.siblings
        siblings = 1.0 if self.is_fixed else UNKNOWN_SIBLINGS
        return EDGE_SIBLINGS * siblings / max(self._denominator, PRIOR_TRIALS)

    def variance(self, stretch: Stretch) -> float:
        """Squared standard error of the mean."""
        if self.kind == "rate":
            weight = self.weight(stretch)
            p = (stretch.mean * weight + 1) / (weight + 2)
            return p * (1 - p) / weight
        unit = self._units[stretch.stop] - self._units[stretch.start]
        return unit / stretch.size**2

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the estimate of the noise; infinite where it is that of coins.

        Second differences overlap, so each is worth a little more than half of one.
        """
        if self.kind == "rate" and self.has_trials and self.siblings == 1.0:
            return math.inf
        prior = PRIOR_WEIGHT if self.kind == "rate" else 0.0
        return max(prior + WORTH * len(self._squares), 1.0)

    def _as_known(self, t: float) -> float:
        """Standard errors of a known noise that are as rare as so many of an estimated one."""
        freedom = self.freedom
        if not math.isfinite(freedom):
            return t
        return math.copysign(math.sqrt(freedom * math.log1p(t * t / freedom)), t)

    def interval(self, stretch: Stretch) -> tuple[float, float]:
        """95 % interval of a stretch as it is printed: a count has one, whenever it is asked for.

        That of a rate is Wilson's. Of fixed tasks it is for all tasks like them: however often the
        same tasks are played, there are no more of them, so ten evaluations of 128 tasks are worth
        128 coin flips. Episodes are worth as many as the scatter up to the last of them says.
        Where nobody says how many outcomes are behind a row, what is known of the noise by now.
        """
        if self.kind == "amount":
            return self.bounds(stretch)
        if not self.trials[stretch.stop - 1] > 0:
            flips = self._flips_of_tasks(stretch) if self.is_fixed else self.weight(stretch)
            return _wilson(stretch.mean, flips, _as_estimated(PRINTED_Z, self.freedom))
        if self.is_fixed:
            num_tasks = stretch.size / (self._units[stretch.stop] - self._units[stretch.start])
            return _wilson(stretch.mean, num_tasks, PRINTED_Z)
        scale, freedom = self._noise[stretch.stop - 1]
        return _wilson(stretch.mean, self.weight(stretch, scale), _as_estimated(PRINTED_Z, freedom))

    def _flips_of_tasks(self, stretch: Stretch) -> float:
        """Coin flips that fixed tasks are worth of which nobody says how many they are.

        Which part of the scatter is theirs cannot be told from means, so all of it is. What coins
        do not explain is not theirs, and averages out.
        """
        of_a_row = self.weight(stretch) / stretch.size
        num_tasks = max(self._denominator, PRIOR_TRIALS) if self._denominator else of_a_row
        excess = max(num_tasks / of_a_row - 1, 0.0)
        return num_tasks / (1 + excess / stretch.size)

    def bounds(self, stretch: Stretch, z: float = NOMINAL_Z) -> tuple[float, float]:
        """Interval of the true mean over a stretch that a comparison uses: Wilson's of a rate."""
        z = _as_estimated(z, self.freedom)
        if self.kind == "amount":
            half = z * math.sqrt(self.variance(stretch))
            return stretch.mean - half, stretch.mean + half
        return _wilson(stretch.mean, self.weight(stretch), z)

    def sigmas(self, before: Stretch, after: Stretch) -> float:
        """Standard errors from one stretch up to another; 0 where nothing is known of the noise."""
        difference = after.mean - before.mean
        if abs(difference) <= SAME * max(abs(before.mean), abs(after.mean), 1e-12):
            return 0.0
        if not self.is_judgeable:
            return 0.0
        if self.kind == "rate":
            weight_before, two = self.weight(before), self.weight(after)
            pooled = (before.mean * weight_before + after.mean * two + 1) / (
                weight_before + two + 2
            )
            apart = self.variance(before) + self.variance(after)
            error = math.sqrt(max(pooled * (1 - pooled) * (1 / weight_before + 1 / two), apart))
        else:
            error = math.sqrt(self.variance(before) + self.variance(after))
        return self._as_known(difference / error) if error > 0 else math.copysign(99.0, difference)

    def ending(self, stop: int, first: int = 0) -> Iterator[Stretch]:
        """The stretches that end before row `stop`, none with a row before `first`."""
        for size in lengths(stop - first):
            yield self.stretch(stop - size, stop)

    def beginning(self, first: int, last: int) -> Iterator[Stretch]:
        """The stretches that begin at row `first`, none with a row after `last`."""
        for size in lengths(last + 1 - first):
            yield self.stretch(first, first + size)

    def row_of(self, step: int) -> int:
        """The first row at or after a step."""
        return bisect_left(self.steps, step)


def _as_estimated(z: float, freedom: float) -> float:
    """Standard errors of an estimated noise that are as rare as so many of a known one.

    The inverse of `Series._as_known`.
    """
    if not math.isfinite(freedom):
        return z
    return math.sqrt(freedom * math.expm1(min(z * z / freedom, 20.0)))


def _wilson(mean: float, flips: float, z: float) -> tuple[float, float]:
    """`rates.wilson_interval` of one rate, without arrays: the judge asks at every row.

    >>> low, high = _wilson(23 / 64, 64, 1.96)
    >>> round(low, 3), round(high, 3)
    (0.253, 0.482)
    """
    middle = (mean + z * z / (2 * flips)) / (1 + z * z / flips)
    half = z / (1 + z * z / flips) * math.sqrt(mean * (1 - mean) / flips + z * z / (4 * flips**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


MOST_DECIMALS = 7
"""Digits after the point up to which a value counts as rounded."""
LEAST_ODDS = 1e-3
"""Chance that other values were as near to multiples."""


def _decimals(value: float) -> int:
    """Digits after the point that a value was rounded to; `MOST_DECIMALS` where it was not.

    >>> _decimals(0.5), _decimals(0.6094), _decimals(39 / 64), _decimals(1 / 3)
    (1, 4, 6, 7)
    """
    for digits in range(MOST_DECIMALS):
        if abs(value * 10**digits - round(value * 10**digits)) < 1e-9 * 10**digits:
            return digits
    return MOST_DECIMALS


def _is_multiple(value: float, parts: int, decimals: int = MOST_DECIMALS) -> bool:
    """Whether a value is a multiple of 1 / parts, as far as its digits tell.

    >>> _is_multiple(0.6094, 64, 4), _is_multiple(0.6094, 64), _is_multiple(0.61, 64, 4)
    (True, False, False)
    """
    off = abs(value * parts - round(value * parts))
    return off < 1e-6 or (decimals < MOST_DECIMALS and off <= 0.501 * parts / 10**decimals)


def _is_no_chance(parts: int, decimals: int, count: int) -> bool:
    """Whether so many rounded values would hardly all be near multiples of up to 1 / parts."""
    odds: float = parts * (parts / 10**decimals) ** count / (count + 1)
    return odds <= LEAST_ODDS


LEAST_TO_CORRELATE = 40
NEAR_ROWS = 6
"""Differences on each side of one, whose median is the slope of the course there."""
MOST_PERSISTENCE = 0.95
CERTAIN = 3.0
"""Standard errors by which neighbours must be more alike than independent rows."""
FAR_DIFFERENCE = 3.0
"""Robust standard deviations at which a difference is cut off: a jump is no noise."""


def persistence_of(values: Sequence[float]) -> float:
    """Correlation of the noise of neighbouring rows; 0 where it may be chance.

    From the correlation of neighbouring differences, less the slope of the course: it is -1/2 of
    independent rows, and -(1 - r)/2 where each row keeps r of what the row before it had (an
    autoregressive process of order 1; a moving average has r near 1).

    >>> import random
    >>> draw = random.Random(0)
    >>> rows = [draw.gauss(0, 1) for _ in range(200)]
    >>> persistence_of(rows)
    0.0
    >>> averaged = [sum(rows[n : n + 7]) / 7 for n in range(190)]
    >>> persistence_of(averaged) > 0.7
    True
    """
    count = len(values) - 1
    if count < LEAST_TO_CORRELATE:
        return 0.0
    steps = [b - a for a, b in itertools.pairwise(values)]
    # What the course itself does from row to row, as the rows around see it.
    slopes = (sorted(steps[max(0, n - NEAR_ROWS) : n + NEAR_ROWS + 1]) for n in range(count))
    rest = [step - slope[len(slope) // 2] for step, slope in zip(steps, slopes, strict=True)]
    limit = FAR_DIFFERENCE * 1.4826 * sorted(map(abs, rest))[count // 2]
    differences = [min(max(each, -limit), limit) for each in rest]
    power = math.fsum(d * d for d in differences)
    if not power > 0:
        return 0.0
    alike = math.fsum(a * b for a, b in itertools.pairwise(differences)) / power
    if alike + 0.5 <= CERTAIN * math.sqrt(0.5 / count):
        return 0.0
    return min(max(1 + 2 * alike, 0.0), MOST_PERSISTENCE)


def _hidden(persistence: float) -> float:
    """Variance of a row over what its second differences show of it."""
    return 3 / ((1 - persistence) * (3 - persistence))


def _shared(persistence: float) -> float:
    """Variance of the mean of many rows over that of as many independent ones."""
    return (1 + persistence) / (1 - persistence)


def _trimmed(squares: list[float]) -> float:
    """Mean square of normal noise, without what a change of the mean adds to it.

    Of many squares, from the smaller part. Of few, without the two that one jump would be in; the
    noise in the rest is so much smaller for having been chosen (simulated: 0.37 of 3 squares, 0.46
    of 5, 0.58 of 10, 0.70 of 20).
    """
    count, total = len(squares), math.fsum(squares)
    least = LEAST_OF_MEAN * total / count
    if count < LEAST_TO_LEAVE_OUT:
        return total / count
    if count >= LEAST_TO_TRIM:
        kept = sorted(squares)[: math.ceil(TRIMMED * count)]
        return max(math.fsum(kept) / len(kept) / TRIMMED_MEAN, least)
    jump = max(a + b for a, b in itertools.pairwise(squares))
    chosen = min(1 - (2.35 * math.log(count) - 1.15) / count, 0.25 + 0.042 * count)
    return max((total - jump) / (count - 2) / chosen, least)
