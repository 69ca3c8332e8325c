"""Has a metric moved, against its own past, for longer than noise would?

There are three parts: a `ChannelSpec` (frozen: what is followed, and how far it has to move), a
`Course` (what was observed) and a `Decision` (frozen: what follows at this step). `decide` is a
pure function of the three. A `Channel` only keeps them together.

The *strength* of a change is the distance from the baseline, in units of the distance at which it
counts. That distance is never less than four standard errors of the level, so a noisy metric needs
more. `persist` is the number of observations in a row that it takes:

              strength >= 1/2                strength >= 1, `persist` times in a row
    QUIET --------------------> HALF WAY ------------------------------------------> RAISED
      ^       (onset_step)         |         (or one rare observation of 1.5)           |
      |                            |                                                    |
      +----------------------------+                                                    |
      |      strength < 1/2                                                             |
      +---------------------------------------------------------------------------------+
                            strength < 1/2, `persist` times in a row

The onset is where the strength first passed one half; `last_quiet_step` is the observation before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .course import LOG_FLOOR, Course, Past
from .turns import Dates, dated_with, since_when

NOISE_SIGMAS = 4.0
SPARSE_STRENGTH = 1.5
HALF = 0.5
DRASTIC = 2.0
"""Strength of a change that chance does not explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from the observations so far."""

    strength: float = 0.0
    jump: float = 0.0
    """Strength of the latest observation alone. Always 0 where distances are shares, because one
    draw of tasks proves nothing."""
    threshold: float = math.nan
    """Distance from the baseline at which the strength is 1, this time."""
    is_raised: bool = False
    onset_step: int | None = None
    last_quiet_step: int | None = None
    """Last observation before the onset: the change began after it."""
    raised_step: int | None = None
    latest_raise_step: int | None = None
    """When it was last raised, whether or not it still is."""
    streak: int = 0
    """Observations in a row with a strength of 1 or more."""
    half_streak: int = 0
    """Observations in a row with a strength of one half or more."""
    far_streak: int = 0
    """Observations in a row that are as far as `raise_at`, whatever their standard error."""
    quiet_streak: int = 0
    """Observations in a row with a strength below one half."""


def decide(course: Course, past: Past, before: Decision) -> Decision:
    """The decision after the latest observation of a course. Pure.

    Args:
        past: The recent past before that observation.
        before: The decision at the observation before.
    """
    spec, step = course.spec, course.last_step or 0
    sign = -1.0 if spec.direction == "fall" else 1.0
    far_streak = before.far_streak
    if spec.against == "recent":
        reference = past.median
        threshold = spec.raise_at * past.scale
        distance = course.level - reference if len(course.recent) > 10 else 0.0
    else:
        reference = course.reference
        distance = course.level - reference
        scale = max(reference - min(course.low, 0.0), LOG_FLOOR) if spec.is_share else 1.0
        plain = spec.raise_at * scale
        far_streak = far_streak + 1 if sign * distance >= plain else 0
        guard = 0.0
        if spec.against != "zero":
            guard = NOISE_SIGMAS * _standard_error(course, far_streak)
        threshold = max(plain, guard)
    has_baseline = spec.least_baseline <= 0 or course.reference >= spec.least_baseline
    is_ready = course.was_ready and math.isfinite(distance) and has_baseline
    strength = jump = 0.0
    if is_ready and threshold > 0:
        strength = max(distance * (sign / threshold), 0.0)
        jump = 0.0 if spec.is_share else (course.recent[-1] - reference) * (sign / threshold)
    half_streak = before.half_streak + 1 if strength >= HALF else 0
    quiet_streak = 0 if strength >= HALF else before.quiet_streak + 1
    streak = before.streak + 1 if strength >= 1 else 0
    is_raised, raised_step = before.is_raised, before.raised_step
    onset_step, last_quiet_step = before.onset_step, before.last_quiet_step
    latest_raise_step = before.latest_raise_step
    if not before.is_raised and half_streak == 1:  # quiet -> half way
        onset_step = step
    elif not before.is_raised and half_streak == 0:  # half way -> quiet
        onset_step, last_quiet_step = None, step
    is_enough = half_streak >= course.persist
    is_strong = course.stands_alone and strength >= (1.0 if is_enough else SPARSE_STRENGTH)
    if not before.is_raised and (streak >= course.persist or is_strong):  # -> raised
        is_raised, raised_step, latest_raise_step = True, step, step
    elif before.is_raised and quiet_streak >= course.persist:  # raised -> quiet
        is_raised, raised_step, onset_step, last_quiet_step = False, None, None, step
    return Decision(
        strength=strength,
        jump=max(jump, 0.0),
        threshold=threshold,
        is_raised=is_raised,
        onset_step=onset_step,
        last_quiet_step=last_quiet_step,
        raised_step=raised_step,
        latest_raise_step=latest_raise_step,
        streak=streak,
        half_streak=half_streak,
        far_streak=far_streak,
        quiet_streak=quiet_streak,
    )


def _standard_error(course: Course, far_streak: int) -> float:
    """Of the level, from its noise.

    What stands alone is not smoothed, but must stay where it is for `persist` observations, which
    are as good as a mean over them.
    """
    repeats = max(course.persist, far_streak)
    return course.noise / math.sqrt(repeats if course.stands_alone else 1)


@dataclass(slots=True, kw_only=True)
class Channel(Course):
    """The course of one metric with the decision about it."""

    decision: Decision = field(default_factory=Decision)
    _dated: tuple[int, int, Dates] | None = None

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Take in a row of the log and decide; nothing is decided if the metric is not in it."""
        past = self.take(step, values)
        if past is not None:
            self.decision = decide(self, past, self.decision)

    def restart(self) -> None:
        """Forget everything: a better source of the same thing came, or one more of them."""
        Channel.__init__(self, spec=self.spec)

    @property
    def leans(self) -> bool:
        """At least half way to counting, and not for the first time unless rarely measured.

        Or the last observation alone is twice as far as it takes, which no batch does.
        """
        is_half_way = self.half_streak >= (1 if self.stands_alone else 2)
        return (is_half_way and self.stands_out) or self.jump >= DRASTIC

    @property
    def strength(self) -> float:
        return self.decision.strength

    @property
    def jump(self) -> float:
        return self.decision.jump

    @property
    def threshold(self) -> float:
        return self.decision.threshold

    @property
    def is_raised(self) -> bool:
        return self.decision.is_raised

    @property
    def _dates(self) -> Dates | None:
        """When the change may have begun; None while there is none.

        Where the likelihood shows no turn, it is what the strength says: after the last quiet
        observation, until the first one that was half way.
        """
        decision = self.decision
        if decision.onset_step is None or self.spec.against in ("zero", "recent"):
            return None
        raised = decision.raised_step
        late = len(self.history)
        if raised is not None:
            late = dated_with(sum(step <= raised for step, _ in self.history), late)
        key = (decision.onset_step, late)
        if self._dated is None or self._dated[:2] != key:
            mode: Literal["up", "down"] = "down" if self.spec.direction == "fall" else "up"
            dates = since_when(self.history[:late], mode)
            # A turn that ended before, or after the alarm, is another one.
            if dates is None or dates[0] > decision.onset_step:
                quiet = decision.last_quiet_step
                first = decision.onset_step if quiet is None else quiet + 1
                dates = (
                    min(first, decision.onset_step),
                    decision.onset_step,
                    decision.onset_step,
                )
            self._dated = (*key, dates)
        return self._dated[2]

    @property
    def onset_interval(self) -> tuple[int, int] | None:
        """First and last step at which the change may have begun; None while there is none."""
        dates = self._dates
        return None if dates is None else (dates[0], dates[2])

    @property
    def onset_step(self) -> int | None:
        """The likeliest step at which the change began."""
        dates = self._dates
        return self.decision.onset_step if dates is None else dates[1]

    @property
    def last_quiet_step(self) -> int | None:
        return self.decision.last_quiet_step

    @property
    def raised_step(self) -> int | None:
        return self.decision.raised_step

    @property
    def latest_raise_step(self) -> int | None:
        return self.decision.latest_raise_step

    @property
    def streak(self) -> int:
        return self.decision.streak

    @property
    def half_streak(self) -> int:
        return self.decision.half_streak

    @property
    def far_streak(self) -> int:
        return self.decision.far_streak
