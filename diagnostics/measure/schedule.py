"""When a measurement with a budget is made: seldom while nothing changes, at once when something
does.

Every measurement uses up its budget for some steps. The next one waits until they are over. Where a
sign of collapse shows it does not wait, and later ones wait the longer: on average over a run the
budget holds.

That budget is counted in tokens (`Schedule`), so that a resumed run measures what an uninterrupted
one does. What is expected to take more than `CHEAP_S` must also be paid for in seconds before it is
made (`costs.py`): with a large model one measurement may take as long as a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..judge.rules.base import Sign

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

    def state(self) -> list[Any]:
        """As JSON values."""
        return [self.last_step, self.spent_until, self.interval]

    @classmethod
    def of(cls, state: list[Any]) -> Schedule:
        """From `state()`."""
        return cls(*state)


def shows_sign(channels: Mapping[str, Sign]) -> bool:
    """Whether a channel of `SIGNS` has changed, or is at least half way to it."""
    return any(channels[name].is_raised or channels[name].leans for name in SIGNS)
