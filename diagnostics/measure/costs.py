"""When a measurement with a budget is made, what it will take in seconds, and when to end it.

Every measurement uses up its budget for some steps. The next one waits until they are over. Where a
sign of collapse shows it does not wait, and later ones wait the longer: on average over a run the
budget holds. That budget is counted in tokens through the model (`Schedule`), so that a resumed run
measures what an uninterrupted one does, on any machine under any load.

With a large model one measurement may take as long as a step of training. So what is expected to
take more than `CHEAP_S`, at the speed of the rollouts or of the measurement before, must also be
paid for in seconds before it is made, and gives way to a stop of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from echoscope.text.amounts import duration

from ..judge.rules.base import Sign
from .information.cross_scores import Tally

SIGNS = (
    "dependence_first",
    "dependence_all",
    "retrieval",
    "text_retrieval",
    "text_dependence",
    "template",
    "success_probe",
    "success_eval",
)
"""Channels whose change makes I(X;Z) worth knowing at once. Those of entropy and of equal replies
are not among them: they change in most runs that learn. `benchmarks/measurement_schedule.py` has
the effect on the dates of alarms."""
MOST_AHEAD = 6
"""Measurements that may be made ahead of the budget while a sign shows."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a measurement was last made, and up to when its budget is spent."""

    last_step: int | None = None
    """None: the first step is measured too."""
    spent_until: float = 0.0
    interval: float = 0.0

    def is_due(self, step: int, every: int, *, is_urgent: bool = False) -> bool:
        """Whether to measure at this step.

        Args:
            every: steps between two measurements, at least; 0 for none.
            is_urgent: a sign shows: the budget may be overdrawn by `MOST_AHEAD` measurements.
        """
        if every == 0:
            return False
        if self.last_step is None:
            return True
        overdraft = MOST_AHEAD * self.interval if is_urgent else 0.0
        return step - self.last_step >= every and step >= self.spent_until - overdraft

    def tried(self, step: int) -> Schedule:
        """After a measurement that has cost nothing yet."""
        return Schedule(step, self.spent_until, self.interval)

    def paid(self, cost: float, budget: float) -> Schedule:
        """After the measurement at `last_step` has cost so much of a budget per step."""
        # Rounded, so that one that costs exactly five steps' budget is made every five.
        interval = round(cost / budget, 6) if budget > 0 else 0.0
        step = self.last_step or 0
        return Schedule(self.last_step, max(self.spent_until, step) + interval, interval)

    @property
    def calm_interval(self) -> int:
        """Steps from one measurement to the next while nothing changes, if `every` allows it."""
        return max(1, math.ceil(self.interval))


def shows_sign(channels: Mapping[str, Sign]) -> bool:
    """Whether a channel of `SIGNS` has changed, or is at least half way to it."""
    return any(channels[name].is_raised or channels[name].leans for name in SIGNS)


CHEAP_S = 10.0
"""Seconds that a measurement may take at any step at which it is due, whatever was spent before."""
CHEAP_SHARE = 0.1
"""Of the seconds of sampling, where those are many: what is cheap is not felt beside them."""
URGENT_SHARE = 4.0
"""Times the budget in seconds that what is expensive may use up while a sign shows."""
CUT_OFF = 3.0
"""Times its expected seconds, and at least those of a cheap one, after which one is cut off."""


Check = Callable[[], None]
"""Called again and again while a model works; raises to end that."""


OnProgress = Callable[[str, int, int], None]
"""Told of a measurement how many of how many tokens are done."""


class CutOffError(Exception):
    """A measurement was given up; the message says why."""


class PutOffError(Exception):
    """A measurement is left for a later step; the message says why."""


class RunEndsError(PutOffError):
    """The run is to stop, and whoever resumes it measures."""


def cheap_s(rollout_s: float) -> float:
    """Seconds up to which a measurement is cheap beside rollouts that took so many; NaN: unknown.

    >>> cheap_s(1), cheap_s(30), cheap_s(500)
    (10.0, 3.0, 10.0)
    """
    return min(CHEAP_S, CHEAP_SHARE * rollout_s) if rollout_s >= CHEAP_S else CHEAP_S


@dataclass(slots=True, kw_only=True)
class Limit:
    """Ends a measurement that takes too long, or that a stop waits for."""

    name: str
    num_tokens: int
    expected_s: float
    is_stopping: Callable[[], bool]
    on_progress: OnProgress
    clock: Callable[[], float]
    started: float
    tally: Tally | None = None
    """Of the scorer, where one counts."""

    @property
    def taken_s(self) -> float:
        return self.clock() - self.started

    def check(self) -> None:
        """Raises where the measurement is to end. What is cheap may finish."""
        taken = self.taken_s
        # NaN, where nothing is known to expect, is never the larger of the two.
        if max(taken, self.expected_s) > CHEAP_S and self.is_stopping():
            raise RunEndsError("it was cut off, because the run is to stop")
        expected = max(CHEAP_S, self.expected_s)
        if taken > CUT_OFF * expected:
            raise CutOffError(f"it was cut off after {taken:.0f} s, {expected:.0f} s were expected")
        done = 0 if self.tally is None else self.tally.num_tokens
        self.on_progress(self.name, min(done, self.num_tokens), self.num_tokens)


@dataclass(slots=True)
class Purse:
    """Seconds of training and of measuring so far, and how fast each measurement went."""

    trained_s: float = 0.0
    spent_s: float = 0.0
    speeds: dict[str, float] = field(default_factory=dict)
    """Measurement to tokens a second, the last time it was made."""

    def expected_s(self, name: str, num_tokens: float, speed: float) -> float:
        """What so many tokens will take.

        Args:
            speed: tokens a second of the rollouts, which count until it was measured itself; NaN
                where they are not known, and then so is what is expected.
        """
        return num_tokens / self.speeds.get(name, speed)

    def allowed_s(self, budget_frac: float, *, is_urgent: bool = False) -> float:
        """What may be spent now, if it is expensive."""
        share = budget_frac * (URGENT_SHARE if is_urgent else 1.0)
        return share * self.trained_s - self.spent_s

    def step_to_pay(self, seconds: float, budget_frac: float, step: int) -> int:
        """About the step at which so many seconds can be paid, if steps take what they took."""
        missing = (seconds + self.spent_s) / budget_frac - self.trained_s
        return step + math.ceil(missing / max(self.trained_s / max(step, 1), 1e-9))

    def why_later(
        self,
        expected_s: float,
        budget_frac: float,
        *,
        rollout_s: float,
        step: int,
        num_steps: int | None,
        is_urgent: bool,
    ) -> str:
        """Why a measurement at this step has to wait, in words; empty if it need not.

        Args:
            rollout_s: seconds that sampling took at this step; NaN where they are not known.
            num_steps: the last step of the run, where it is known.
        """
        allowed = self.allowed_s(budget_frac, is_urgent=is_urgent)
        if not expected_s > max(cheap_s(rollout_s), allowed):
            return ""
        payable_step = self.step_to_pay(expected_s, budget_frac, step)
        when = f"is measured at about step {payable_step}"
        if num_steps is not None and payable_step > num_steps:
            when = "is not measured in this run"
        return (
            f"it would take about {duration(expected_s)}, and "
            f"diagnostics.budget_frac={budget_frac:g} allows {duration(max(0, allowed))} so far. "
            f"It {when}; a larger budget_frac measures it earlier"
        )

    def paid(self, name: str, seconds: float, num_tokens: float) -> None:
        """A measurement took so long for so many tokens."""
        self.spent_s += seconds
        if seconds > 0 and num_tokens > 0:
            self.speeds[name] = num_tokens / seconds
