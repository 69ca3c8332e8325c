"""Has a metric moved, against its own past, for longer than noise would?

There are three parts: a `ChannelSpec` (frozen: what is followed, and how far it has to move), a
`Course` (what was observed) and a `Channel`: a course, and what follows from it at this step.

The *strength* of a change is the distance from the baseline, in units of the distance at which it
counts. That distance is never less than four standard errors of the level, so a noisy metric needs
more. `persist` is the number of observations in a row that it takes:

              strength >= 1/2                strength >= 1, `persist` times in a row
    QUIET --------------------> HALF WAY ------------------------------------------> RAISED
      ^       (half_way_step)      |         (or one rare observation of 1.5)           |
      |                            |                                                    |
      +----------------------------+                                                    |
      |      strength < 1/2                                                             |
      +---------------------------------------------------------------------------------+
                            strength < 1/2, `persist` times in a row

The onset is where the strength first passed one half; `last_quiet_step` is the observation before.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .course import LOG_FLOOR, Course, median, robust_scale
from .turns import Dates, dated_with, since_when

NOISE_SIGMAS = 4.0
SPARSE_STRENGTH = 1.5
HALF = 0.5
LEAST_SCALE = 0.1
"""Of the recent past: a metric that hardly moved counts as if it had so much noise."""
LEAST_PAST = 10
"""Observations before one that may differ from the recent past."""
DRASTIC = 2.0
"""Strength of a change that chance does not explain."""


@dataclass(slots=True, kw_only=True)
class Channel(Course):
    """The course of one metric, and what follows from it at the last observation."""

    strength: float = 0.0
    jump: float = 0.0
    """Strength of the latest observation alone. Always 0 where distances are shares, because one
    draw of tasks proves nothing."""
    threshold: float = math.nan
    """Distance from the baseline at which the strength is 1, this time."""
    is_raised: bool = False
    raised_step: int | None = None
    latest_raise_step: int | None = None
    """When it was last raised, whether or not it still is."""
    half_way_step: int | None = None
    """Where the strength first passed one half, of a change that is half way or raised."""
    last_quiet_step: int | None = None
    """Last observation before that: the change began after it."""
    streak: int = 0
    """Observations in a row with a strength of 1 or more."""
    half_streak: int = 0
    """Observations in a row with a strength of one half or more."""
    far_streak: int = 0
    """Observations in a row that are as far as `raise_at`, whatever their standard error."""
    quiet_streak: int = 0
    """Observations in a row with a strength below one half."""
    _dated: tuple[int, int, Dates] | None = None

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Take in a row of the log and decide; nothing is decided if the metric is not in it."""
        if self.take(step, values):
            self._measure()
            self._decide(step)

    def _measure(self) -> None:
        """How far the level is from the baseline."""
        spec = self.spec
        sign = -1.0 if spec.direction == "fall" else 1.0
        if spec.against == "recent":
            past = self.recent[:-1]
            reference = median(past) if past else self.level
            self.threshold = spec.raise_at * max(robust_scale(past), LEAST_SCALE)
            distance = self.level - reference if len(past) >= LEAST_PAST else 0.0
        else:
            reference = self.reference
            distance = self.level - reference
            scale = max(reference - min(self.low, 0.0), LOG_FLOOR) if spec.is_share else 1.0
            plain = spec.raise_at * scale
            self.far_streak = self.far_streak + 1 if sign * distance >= plain else 0
            guard = NOISE_SIGMAS * self._standard_error if spec.against != "zero" else 0.0
            self.threshold = max(plain, guard)
        has_baseline = spec.least_baseline <= 0 or self.reference >= spec.least_baseline
        is_ready = self.was_ready and math.isfinite(distance) and has_baseline
        self.strength = self.jump = 0.0
        if is_ready and self.threshold > 0:
            self.strength = max(distance * (sign / self.threshold), 0.0)
            alone = (self.recent[-1] - reference) * (sign / self.threshold)
            self.jump = 0.0 if spec.is_share else max(alone, 0.0)

    def _decide(self, step: int) -> None:
        """Whether the change counts, after the latest observation."""
        is_half_way = self.strength >= HALF
        self.half_streak = self.half_streak + 1 if is_half_way else 0
        self.quiet_streak = 0 if is_half_way else self.quiet_streak + 1
        self.streak = self.streak + 1 if self.strength >= 1 else 0
        is_enough = self.half_streak >= self.persist
        is_strong = self.is_sparse and self.strength >= (1.0 if is_enough else SPARSE_STRENGTH)
        if self.is_raised:
            if self.quiet_streak >= self.persist:  # raised -> quiet
                self.is_raised, self.raised_step = False, None
                self.half_way_step, self.last_quiet_step = None, step
            return
        if self.half_streak == 1:  # quiet -> half way
            self.half_way_step = step
        elif self.half_streak == 0:  # half way -> quiet
            self.half_way_step, self.last_quiet_step = None, step
        if self.streak >= self.persist or is_strong:  # -> raised
            self.is_raised, self.raised_step, self.latest_raise_step = True, step, step

    @property
    def _standard_error(self) -> float:
        """Of the level, from its noise.

        What stands alone is not smoothed, but must stay where it is for `persist` observations,
        which are as good as a mean over them.
        """
        repeats = max(self.persist, self.far_streak)
        return self.noise / math.sqrt(repeats if self.is_sparse else 1)

    @property
    def leans(self) -> bool:
        """At least half way to counting, and not for the first time unless rarely measured.

        Or the last observation alone is twice as far as it takes, which no batch does.
        """
        is_half_way = self.half_streak >= (1 if self.is_sparse else 2)
        return (is_half_way and self.stands_out) or self.jump >= DRASTIC

    @property
    def _dates(self) -> Dates | None:
        """When the change may have begun; None while there is none.

        Where the likelihood shows no turn, it is what the strength says: after the last quiet
        observation, until the first one that was half way.
        """
        if self.half_way_step is None or self.spec.against in ("zero", "recent"):
            return None
        late = len(self.history)
        if (raised := self.raised_step) is not None:
            late = dated_with(sum(step <= raised for step, _ in self.history), late)
        key = (self.half_way_step, late)
        if self._dated is None or self._dated[:2] != key:
            mode: Literal["up", "down"] = "down" if self.spec.direction == "fall" else "up"
            dates = since_when(self.history[:late], mode)
            half, earliest = self.half_way_step, self._first_step_of_best
            # A turn that ended before, or began after the alarm, is another one.
            if dates is None or dates[0] > half or dates[2] < earliest:
                quiet = self.last_quiet_step
                dates = (half if quiet is None else min(quiet + 1, half), half, half)
            first, likeliest, last = dates
            first = max(first, min(earliest, last))
            self._dated = (*key, (first, max(first, likeliest), last))
        return self._dated[2]

    @property
    def _first_step_of_best(self) -> int:
        """First step of the level that the change is measured from; 0 where that is no extreme."""
        best = self.high_step if self.spec.direction == "fall" else self.low_step
        if self.spec.against != "best" or best is None:
            return 0
        steps = [step for step, _ in self.history]
        return steps[max(bisect_right(steps, best) - self.window, 0)] if steps else 0

    @property
    def onset_interval(self) -> tuple[int, int] | None:
        """First and last step at which the change may have begun; None while there is none."""
        dates = self._dates
        return None if dates is None else (dates[0], dates[2])

    @property
    def onset_step(self) -> int | None:
        """The likeliest step at which the change began."""
        dates = self._dates
        return self.half_way_step if dates is None else dates[1]
