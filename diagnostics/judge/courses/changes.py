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
Beside it, a rate on fixed tasks has *dropped* once it is below its best by more than chance
explains, and until it is half way back.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from echoscope.text.strict_json import finite_or_none

from .course import LOG_FLOOR, Course, Past, median

NOISE_SIGMAS = 4.0
SINGLE_SIGMAS = 5.0
"""Of one evaluation by its number of tasks: the best of many is better than it should be."""
LEAST_SIGMAS = 2.3
"""Standard errors from the best at which a fall on fixed tasks may count, if other signs agree."""
SURE_SIGMAS = 2.75
"""Standard errors from the best at which one other sign is enough."""
DROP_SIGMAS = 3.0
"""Standard errors from the best at which a fall on fixed tasks is beyond chance by itself."""
LEAST_DROP = 0.2
"""Share of the best that a fall must have where nobody knows over how many tasks the rate is."""
FEW_OBSERVATIONS = 10
"""The best of more of them is higher by chance; see `Channel.sigmas`."""
NOTHING_LEFT = 0.1
"""Share of its best below which a rate has fallen to next to nothing."""
LEAST_BEST = 0.1
"""A best below this was never clearly above nothing."""
NOTHING_ROWS = (30, 20, 10)
"""Rows at the end over which the mean must be next to nothing, the most first."""
HIGHEST_RATE = 0.95
"""A higher best may be chance, and has hardly an error of its own."""
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
    has_dropped: bool = False
    """Below its best by more than both intervals allow, or half way back."""
    dropped_step: int | None = None
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
            guard = NOISE_SIGMAS * _standard_error(course, reference, far_streak)
        threshold = max(plain, guard)
    has_baseline = spec.least_baseline <= 0 or course.reference >= spec.least_baseline
    is_ready = course.was_ready and math.isfinite(distance) and has_baseline
    strength = jump = 0.0
    if is_ready and threshold > 0:
        strength = max(distance * (sign / threshold), 0.0)
        jump = 0.0 if spec.is_share else (course.recent[-1] - reference) * (sign / threshold)
    if strength:
        strength = max(min(strength, sigmas_of_fall(course, far_streak) / LEAST_SIGMAS), 0.0)
    has_dropped, dropped_step = before.has_dropped, before.dropped_step
    if spec.trials:
        fall = reference - course.level if is_ready else 0.0
        has_dropped, dropped_step = _drop(course, fall, before)
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
    is_enough = _is_conclusive(course) or half_streak >= course.persist
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
        has_dropped=has_dropped,
        dropped_step=dropped_step,
        streak=streak,
        half_streak=half_streak,
        far_streak=far_streak,
        quiet_streak=quiet_streak,
    )


def sigmas_of_fall(course: Course, far_streak: int) -> float:
    """Standard errors from the best down to what followed it, of a rate on fixed tasks.

    The best is one observation too, with its own error; what followed is the mean of the
    evaluations in a row that are as far down as counts. The best of n is about sqrt(2 ln n) errors
    above the true rate by chance alone, so each further evaluation takes a little off. Infinite
    where no number of tasks is known, or too few for one evaluation to be judged by itself.
    """
    if not math.isfinite(course.num_trials) or not course.stands_alone or not course.recent:
        return math.inf
    tail = course.recent[-max(1, far_streak) :]
    error = course.error_of(course.reference) * math.sqrt(1 + 1 / len(tail))
    if not error:
        return math.inf
    return (course.reference - math.fsum(tail) / len(tail)) / error - _excess(course.count)


def _standard_error(course: Course, reference: float, far_streak: int) -> float:
    """Of the level: from its noise, and of a rate at least that of its trials.

    What stands alone is not smoothed, but must stay where it is for `persist` observations, which
    are as good as a mean over them.
    """
    repeats = max(course.persist, far_streak)
    noise = course.noise / math.sqrt(repeats if course.stands_alone else 1)
    if not math.isfinite(course.num_trials):
        return noise
    total = course.num_trials * (course.window - 1 + repeats)
    rate = (min(max(reference, 0.0), 1.0) * total + 1) / (total + 2)
    return max(noise, math.sqrt(rate * (1 - rate) / total))


def _is_conclusive(course: Course) -> bool:
    """Is the last observation alone too far away for a rate over so many trials?"""
    if not math.isfinite(course.num_trials):
        return False
    distance = abs(course.level - course.reference)
    return distance >= SINGLE_SIGMAS * course.error_of(course.reference)


def _drop(course: Course, fall: float, before: Decision) -> tuple[bool, int | None]:
    """Is a rate on fixed tasks below its best by more than chance explains, and since when?

    Chance: `DROP_SIGMAS` standard errors of the difference of two rates over so many tasks. Where
    their number is not known, `NOISE_SIGMAS` of the rate's own noise, and a fifth of the best. It
    ends half way back.
    """
    is_known = math.isfinite(course.num_trials)
    if is_known:
        error = math.hypot(course.error_of(course.high), course.error_of(course.level))
    else:
        noise = course.noise * NOISE_SIGMAS / DROP_SIGMAS
        error = math.hypot(noise, noise)
    if not error > 0:
        return before.has_dropped, before.dropped_step
    sigmas = fall / error
    is_large = is_known or fall >= LEAST_DROP * course.high
    if not before.has_dropped and sigmas > DROP_SIGMAS and is_large:
        return True, course.last_step
    if before.has_dropped and sigmas < HALF * DROP_SIGMAS:
        return False, None
    return before.has_dropped, before.dropped_step


def _excess_of_the_best(count: int) -> float:
    """About how many standard errors the best of so many equal observations is above their mean."""
    return math.sqrt(2 * math.log(max(count, 1)))


def _excess(count: int) -> float:
    """Standard errors that the best of many observations has beyond that of a few, by chance."""
    return max(_excess_of_the_best(count) - _excess_of_the_best(FEW_OBSERVATIONS), 0.0)


@dataclass(slots=True, kw_only=True)
class Channel(Course):
    """The course of one metric with the decision about it."""

    decision: Decision = field(default_factory=Decision)

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
    def sigmas(self) -> float:
        """Standard errors of the fall of a rate on fixed tasks (see `sigmas_of_fall`)."""
        return sigmas_of_fall(self, self.far_streak)

    @property
    def at_nothing(self) -> tuple[int, float] | None:
        """(rows, their mean): the longest end of a rate's course that is next to nothing, if any.

        Only of a rate that was clearly above nothing, and whose fall counts. Where each row is one
        episode, lost or won, it takes the most rows: ten losses in a row are common.
        """
        best = self.reference
        if not (self.is_raised and best >= LEAST_BEST):
            return None
        is_episode = all(value in (0.0, 1.0) for value in self.recent)
        for num_rows in NOTHING_ROWS[:1] if is_episode else NOTHING_ROWS:
            tail = self.recent[-num_rows:]
            mean = math.fsum(tail) / len(tail)
            if len(tail) == num_rows and mean <= NOTHING_LEFT * best:
                return num_rows, mean
        return None

    @property
    def sigmas_to_nothing(self) -> float:
        """Standard errors by which a rate in training fell to next to nothing; 0 if it did not.

        Nobody knows over how many samples a trainer averages. Each row counts as one coin flip,
        which is the widest error there is: rows that happen to be equal cannot make it small.
        """
        if self.at_nothing is None:
            return 0.0
        num_rows, mean = self.at_nothing
        rate = min(self.reference, HIGHEST_RATE)
        error = math.sqrt(rate * (1 - rate) * (1 / self.spec.window + 1 / num_rows))
        return max((self.reference - mean) / error - _excess(self.count), 0.0)

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
    def onset_step(self) -> int | None:
        return self.decision.onset_step

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
    def has_dropped(self) -> bool:
        return self.decision.has_dropped

    @property
    def dropped_step(self) -> int | None:
        return self.decision.dropped_step

    @property
    def streak(self) -> int:
        return self.decision.streak

    @property
    def half_streak(self) -> int:
        return self.decision.half_streak

    @property
    def far_streak(self) -> int:
        return self.decision.far_streak

    def state(self) -> dict[str, Any]:
        """Course and decision, without the spec, as JSON values (what is not finite is None)."""
        out: dict[str, Any] = {}
        for part in (self, self.decision):
            for slot in fields(part):
                if slot.name in ("spec", "decision"):
                    continue
                value = getattr(part, slot.name)
                if isinstance(value, float):
                    value = finite_or_none(value)
                out[_STORED_AS.get(slot.name, slot.name)] = copy.copy(value)
        return out

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what `state()` described; what an older version did not write stays fresh."""
        decision: dict[str, Any] = {}
        for slot in (*fields(Course), *fields(Decision)):
            stored_as = _STORED_AS.get(slot.name, slot.name)
            if slot.name == "spec" or stored_as not in state:
                continue
            value = copy.copy(state[stored_as])
            if value is None and isinstance(slot.default, float):
                value = slot.default
            if slot.name in Decision.__dataclass_fields__:
                decision[slot.name] = value
            else:
                setattr(self, slot.name, value)
        self.decision = Decision(**decision)
        self.gap = median(self.gaps) if self.gaps else 1.0


_STORED_AS = {
    "recent": "_recent",
    "differences": "_differences",
    "first_values": "_opening",
    "gaps": "_gaps",
    "quiet_streak": "_quiet_streak",
}
"""Field -> its name in a checkpoint."""
