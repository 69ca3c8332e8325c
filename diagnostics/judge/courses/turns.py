"""The turning points of a quantity: where it went up, and where it went down, beyond chance.

A turn is confirmed once what follows an extreme differs from it by more than chance explains, even
for one who looks at every step. Between two turns the quantity has one direction. What it held is
the stretch with the highest lower bound, so being chosen for its height does not flatter it.

                     a stretch after the high is below it by turn_z
          UP (or no direction) ------------------------------------> DOWN
             ^                                                        |
             +--------------------------------------------------------+
                     a stretch after the low is above it by turn_z
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .series import Series, Stretch

if TYPE_CHECKING:
    from echoscope.store.records import FloatArray64, IntArray64

SHOWN_Z = 2.5
"""Standard errors by which two stretches differ that are set against each other in words."""
HELD_Z = 4.0
"""Standard errors of the bound by which stretches compete for the highest and the lowest."""
CAUTION, AMOUNT_CAUTION = 7.0, 9.0
"""Of a rate, and of a return, whose noise is less tidy. What a turn must overcome beside the
logarithm of the number of rows: a threshold that grows with the looks that were taken. Level runs
of 300 rows turn in one of 50 (`benchmarks/truth`)."""
SHARED = 0.6
"""Part of a turn that must be left without the outermost of its rows: one bad batch is none."""
LEVEL_Z = 2.6
"""Standard errors by which two parts of a stretch may differ and still be one level."""
ODD_Z = 1.6
"""... more, of a single row and the rest."""
LEAST_OF_THIRD = 2
"""Rows of a third of a stretch, from which on it is asked whether it drifts."""
MOST_ROWS = 64
"""Of the present level."""

Mode = Literal["", "up", "down"]
Dates = tuple[int, int, int]
"""The earliest row or step at which something may have begun, the likeliest, and the latest."""


@dataclass(slots=True)
class Turns:
    """What follows from a series up to its last row. `update` after every row."""

    series: Series
    least_rows: int = 2
    """Rows after an extreme that confirm a turn: one bad batch is none."""
    relief: float = 0.0
    """Standard errors that a turn downwards takes less while other kinds of signs agree."""
    beside: float = 0.0
    """Standard errors by which another measure of the same policy is down; 0 for none."""
    num_series: int = 1
    """Series that are looked at beside this one and alike, itself included."""
    mode: Mode = ""
    pivots: list[tuple[Mode, Stretch]] = field(default_factory=list)
    """Confirmed turns in order: the mode that began, and the extreme it began from."""
    turned: list[int] = field(default_factory=list)
    """The step at which each was confirmed."""
    high: Stretch | None = None
    """Highest since the last turn upwards."""
    low: Stretch | None = None
    best: Stretch | None = None
    """Highest of all."""

    def update(self) -> None:
        """Take in the last row of the series."""
        stop = len(self.series)
        first = self.pivots[-1][1].stop if self.pivots else 0
        # One row is no level, unless it is an evaluation: what was held is more than a good batch.
        every = list(self.series.ending(stop, first))
        recent = [stretch for stretch in every if stretch.size >= self.least_rows] or every
        if self.mode != "down":
            self.high = self._highest(self.high, *recent)
        if self.mode != "up":
            self.low = self._lowest(self.low, *recent)
        longer = [each for each in self.series.ending(stop) if each.size >= self.least_rows]
        self.best = self._highest(self.best, *(longer or recent))
        if self.mode != "down" and self.high is not None and self._is_beyond(self.high, -1):
            self._turn("down", self.high)
        elif self.mode != "up" and self.low is not None and self._is_beyond(self.low, 1):
            self._turn("up", self.low)

    def _is_beyond(self, extreme: Stretch, sign: int) -> bool:
        least = self.turn_z if sign > 0 else self._least_down
        return any(
            sign * self.series.sigmas(extreme, stretch) >= least
            and (self.least_rows < 2 or self._is_shared(extreme, stretch, sign))
            for stretch in self.series.ending(len(self.series), extreme.stop)
            if stretch.size >= self.least_rows
        )

    @property
    def _least_down(self) -> float:
        """Standard errors that confirm a turn downwards.

        Two measures that fall together need to be beyond chance together: their sum has the
        standard error of the square root of two (Stouffer 1949). This one must still show it.
        """
        alone = self.turn_z - self.relief
        return min(alone, max(math.sqrt(2) * self.turn_z - self.beside, SHOWN_Z))

    def _is_shared(self, extreme: Stretch, stretch: Stretch, sign: int) -> bool:
        """Is a stretch still on that side of an extreme without its outermost row?"""
        rows = self.series.values[stretch.start : stretch.stop]
        outermost = max(rows) if sign > 0 else min(rows)
        rest = (stretch.mean * stretch.size - outermost) / (stretch.size - 1)
        return sign * (rest - extreme.mean) >= SHARED * sign * (stretch.mean - extreme.mean)

    @property
    def turn_z(self) -> float:
        """Standard errors that confirm a turn, at this many rows."""
        caution = CAUTION if self.series.kind == "rate" else AMOUNT_CAUTION
        looks = self.num_series * max(len(self.series), 1)
        return math.sqrt(2 * (math.log(looks) + caution))

    def sigmas_below_best(self, least_rows: int) -> float:
        """Standard errors from the best down to what follows it, of so many rows, at most."""
        assert self.best is not None
        return max(
            (
                -self.series.sigmas(self.best, stretch)
                for stretch in self.series.ending(len(self.series), self.best.stop)
                if stretch.size >= least_rows
            ),
            default=0.0,
        )

    def _turn(self, mode: Mode, extreme: Stretch) -> None:
        self.mode = mode
        self.pivots.append((mode, extreme))
        self.turned.append(self.series.steps[-1])
        after = [
            stretch
            for stop in range(extreme.stop + 1, len(self.series) + 1)
            for stretch in self.series.ending(stop, extreme.stop)
        ]
        self.high = self._highest(*after) if mode == "up" else None
        self.low = self._lowest(*after) if mode == "down" else None

    def _highest(self, *stretches: Stretch | None) -> Stretch | None:
        """The first of those with the highest lower bound."""
        present = (stretch for stretch in stretches if stretch is not None)
        return max(
            present, key=lambda stretch: self.series.bounds(stretch, HELD_Z)[0], default=None
        )

    def _lowest(self, *stretches: Stretch | None) -> Stretch | None:
        """The first of those with the lowest upper bound."""
        present = (stretch for stretch in stretches if stretch is not None)
        return min(
            present, key=lambda stretch: self.series.bounds(stretch, HELD_Z)[1], default=None
        )

    # -- levels ----------------------------------------------------------------------------------

    def now(self, most: int = MOST_ROWS, *, may_drift: bool = False) -> Stretch:
        """The present level: the longest stretch up to now that is one level."""
        stop = len(self.series)
        stretches = list(self.series.ending(stop, max(0, stop - most)))
        return self._one_level(stretches, may_drift=may_drift)

    def level_until(self, stop: int, first: int) -> Stretch:
        """The longest stretch up to a row, with no row before `first`, that is one level."""
        return self._one_level(list(self.series.ending(stop, max(first, stop - MOST_ROWS))))

    def _one_level(self, stretches: list[Stretch], *, may_drift: bool = False) -> Stretch:
        """The longest of stretches that end alike and grow, as long as it is one level."""
        chosen = stretches[0]
        for stretch in stretches[1:]:
            if not self._is_level(stretch, chosen, may_drift):
                return self._between(chosen, stretch, may_drift)
            chosen = stretch
        return chosen

    def _between(self, chosen: Stretch, too_long: Stretch, may_drift: bool) -> Stretch:
        """The longest between one that is a level and one that is none, by halving."""
        while too_long.size - chosen.size > max(1, chosen.size // 8):
            middle = self.series.stretch((chosen.start + too_long.start) // 2, chosen.stop)
            if middle.size in (chosen.size, too_long.size):
                break
            if self._is_level(middle, chosen, may_drift):
                chosen = middle
            else:
                too_long = middle
        return chosen

    def _is_level(self, stretch: Stretch, core: Stretch, may_drift: bool) -> bool:
        """Do the rows of a stretch before its core, and their parts, differ from the core?"""
        rest = self.series.stretch(stretch.start, core.start)
        parts = [rest, *self.series.beginning(stretch.start, core.start - 1)]
        if not may_drift and self._drifts(stretch):
            return False
        # One odd row is no level of its own, unless it is an evaluation.
        z = LEVEL_Z + (ODD_Z / core.size**2 if self.least_rows > 1 else 0.0)
        return all(abs(self.series.sigmas(part, core)) <= z for part in parts)

    def _drifts(self, stretch: Stretch) -> bool:
        """Does a stretch rise or fall all along? Its first and its last third say so."""
        third = stretch.size // 3
        if third < LEAST_OF_THIRD:
            return False
        first = self.series.stretch(stretch.start, stretch.start + third)
        last = self.series.stretch(stretch.stop - third, stretch.stop)
        return abs(self.series.sigmas(first, last)) > LEVEL_Z


LIKELY_DROP, CORRELATED_DROP = 3.5, 11.0
"""Twice the log-likelihood by which a change point may be worse than the likeliest and still be in
the set: of outcomes (`benchmarks/truth` counts the coverage, nominal 90 %), and of metrics whose
noise at one step resembles that of the step before. Of these the set is a row wider each way."""
GENTLE = 0.15
"""Part of the width by which the set reaches further back."""
ROWS_TO_DATE = (0, 1, 2, 3, 5, 8, 12, 18, 27, 40, 60)
"""Rows after a turn with which its beginning is dated again; more change nothing."""
SHAPE_PARAMETERS = 4
"""Of a ramp: two levels, its first row and its length."""
RAMPS = (*range(21), 23, 25, 28, 31, 34, 38, 42, 47, 52, 58, 64, 71, 79, 88)
"""Rows that a change may take."""
FADES = (2, 4, 8, 16, 32, 64)
"""Rows in which two thirds of a change are done that is fast at first."""
SLOW_FADES = (128, 256)
"""... that a course may have had all along, and that is no steepening."""
LEAST_TO_STEEPEN, STEEPENING_DROP = 12, 25.0
"""Rows, and twice the log-likelihood by which a slope that breaks must be better than a ramp."""


def since_when(values: Sequence[tuple[int, float]], mode: Mode) -> Dates | None:
    """When the last turn of a mode may have begun; None without one.

    Args:
        values: (step, value) of a quantity, by step.
    """
    series = Series("amount")
    turns = Turns(series)
    turn: tuple[Stretch, int] | None = None
    for step, value in values:
        series.append(step, value)
        turns.update()
        if turns.pivots and turns.mode == mode and (turn is None or turn[0] != turns.pivots[-1][1]):
            turn = turns.pivots[-1][1], len(series)
    if turn is None:
        return None
    start, stop = turn[0].start, dated_with(turn[1], len(series))
    steeper = steepening(series, start, mode)
    first, likeliest, last = steeper or change_points(series, start, stop, CORRELATED_DROP)
    rows = max(first - 1, 0), likeliest, min(last + 1, len(series) - 1 if steeper else stop - 1)
    return between_rows(series, start, rows, is_rare=False)


def steepening(series: Series, start: int, mode: Mode) -> Dates | None:
    """At which rows from `start` on a course became much steeper that had long gone the same way.

    An entropy that declines a little at every step of a healthy run, and then collapses, has gone
    down since its first row; what broke, broke later. None where one ramp from a level tells the
    course about as well as a slope to which a ramp is added.
    """
    y_R, unit_R = series.rows_and_units(start, len(series))
    num_rows = len(y_R)
    if num_rows < LEAST_TO_STEEPEN:
        return None
    ramps = [*(n for n in RAMPS if n < num_rows), num_rows]
    level_T, _, _ = _fitted(y_R, unit_R, shapes_of(num_rows, ramps, (*FADES, *SLOW_FADES)))
    rest_T, gain_T, _ = _fitted(y_R, unit_R, shapes_of(num_rows, ramps, ()), is_sloping=True)
    rest_T[gain_T * (1 if mode == "up" else -1) <= 0] = math.inf
    best = float(rest_T.min())
    misfit = max(best / max(num_rows - SHAPE_PARAMETERS - 1, 1), 1.0)
    if float(level_T.min()) <= best + STEEPENING_DROP * misfit:
        return None
    inside = (rest_T <= best + CORRELATED_DROP * misfit).nonzero()[0]
    return start + int(inside[0]), start + int(rest_T.argmin()), start + int(inside[-1])


def dated_with(turned: int, count: int) -> int:
    """With how many of `count` rows a turn is dated that was confirmed at row `turned`.

    >>> dated_with(40, 44), dated_with(40, 400)
    (43, 100)
    """
    return max(turned + more for more in ROWS_TO_DATE if turned + more <= max(count, turned))


def between_rows(series: Series, start: int, rows: Dates, *, is_rare: bool = True) -> Dates:
    """The steps at which a change may have begun that shows first in one of these rows.

    Args:
        start: first row of the extreme that it begins from; it begins after that.
    """
    first, likeliest, last = rows
    first = max(first, min(start + 1, last))
    if is_rare and first > start + 1 and series.steps[first] - series.steps[first - 1] > 1:
        # Between rare rows it may have begun before the last one that looks level.
        first -= 1
    early = series.steps[first - 1] + 1 if first else series.steps[0]
    return min(early, series.steps[last]), series.steps[likeliest], series.steps[last]


def change_points(series: Series, start: int, stop: int, drop: float = LIKELY_DROP) -> Dates:
    """At which rows the change within rows `start` to `stop` may have begun.

    The likelihood is that of a level, a ramp of 0 to `RAMPS[-1]` rows, and another level. The set
    is that of all first rows of the ramp that it does not exclude.
    """
    import numpy as np

    y_R, unit_R = series.rows_and_units(start, stop)
    num_rows = len(y_R)
    if num_rows < 3:
        return start + min(1, num_rows - 1), stop - 1, stop - 1
    ramps, fades = ([n for n in lengths if n < num_rows] for lengths in (RAMPS, FADES))
    shapes = shapes_of(num_rows, ramps, fades)
    scores_T, _, shape_T = _fitted(y_R, unit_R, shapes)
    if series.kind == "rate":
        t = int(scores_T.argmin())
        x_R = shapes[shape_T[t]][t]
        line = np.polyfit(x_R, y_R, 1, w=unit_R**-0.5)
        fitted_R = np.clip(np.polyval(line, x_R), 0.0, 1.0)
        flips_R = 1.0 / np.maximum(unit_R * series.scale, 1e-12)
        shrunk_R = (fitted_R * flips_R + 1) / (flips_R + 2)
        scores_T, _, _ = _fitted(y_R, shrunk_R * (1 - shrunk_R) / flips_R, shapes)
    # Changes have other shapes than ramps: where none fits as well as noise allows, all fit as well
    # as the best one that much sooner.
    best = float(scores_T.min())
    misfit = max(best / max(num_rows - SHAPE_PARAMETERS, 1), 1.0)
    inside = np.flatnonzero(scores_T <= best + drop * misfit)
    first, last = int(inside[0]), int(inside[-1])
    # A change that sets in gently is seen late by a ramp with corners.
    first -= math.ceil(GENTLE * (last - first))
    return start + max(first, 0), start + int(np.argmin(scores_T)), start + last


def shapes_of(num_rows: int, ramps: Sequence[int], fades: Sequence[int]) -> list[FloatArray64]:
    """Shapes that a change may have, each (T, R): the share of it that row r has, begun at row t.

    Args:
        ramps: rows that a change takes, at an even pace.
        fades: rows in which two thirds are done of a change that is fast at first.
    """
    import numpy as np

    rows_R = np.arange(num_rows)
    # A jump at the first row would be no change.
    since_TR = np.maximum(rows_R[None, :] - rows_R[:, None] + 1, 0)
    even = [np.minimum(since_TR / (n + 1), 1.0) for n in ramps]
    return [*even, *(1 - np.exp(-since_TR / n) for n in fades)]


def _fitted(
    y_R: FloatArray64,
    variance_R: FloatArray64,
    shapes: Sequence[FloatArray64],
    *,
    is_sloping: bool = False,
) -> tuple[FloatArray64, FloatArray64, IntArray64]:
    """Least squares of a level and a change that begins at row t, in the best shape.

    Args:
        is_sloping: the course has a slope of its own, to which the change is added.

    Returns:
        By first row: minus twice the log-likelihood, the size of the change, and its shape.
    """
    import numpy as np

    root_R = variance_R**-0.5
    basis = [np.ones(len(y_R)), np.arange(len(y_R))] if is_sloping else [np.ones(len(y_R))]
    basis_RK = np.linalg.qr(np.column_stack(basis) * root_R[:, None])[0]
    y_R = y_R * root_R
    y_R = y_R - basis_RK @ (basis_RK.T @ y_R)
    rest_T, gain_T = np.full(len(y_R), np.inf), np.zeros(len(y_R))
    shape_T = np.zeros(len(y_R), dtype=np.int64)
    for number, share_TR in enumerate(shapes):
        x_TR = share_TR * root_R
        x_TR = x_TR - (x_TR @ basis_RK) @ basis_RK.T
        power_T = (x_TR**2).sum(axis=1)
        size_T = (x_TR @ y_R) / np.maximum(power_T, 1e-30)
        left_T = (y_R**2).sum() - size_T**2 * power_T
        is_better_T = (left_T < rest_T) & (power_T > 1e-12 * (root_R**2).sum())
        rest_T[is_better_T], gain_T[is_better_T] = left_T[is_better_T], size_T[is_better_T]
        shape_T[is_better_T] = number
    return rest_T, gain_T, shape_T
