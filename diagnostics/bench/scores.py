"""What an alarm is worth on labelled runs: the same arithmetic for us and for everything else.

A collapse is *called in time* if an alarm begins at or before the step where success has halved for
good, and not before there was anything to see. An alarm in a control, or before the first sign of a
collapse, is *false*; every beginning counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from echoscope.text.strict_json import finite_or_none

from .harness import LabelledRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """When something raised an alarm in one run, and since when it says it is so."""

    run: LabelledRun
    steps: tuple[int, ...]
    """Every step at which it began, in order."""
    onset_step: int | None = None
    """As named by the alarm; the alarm's own step where it names none."""

    @property
    def false_steps(self) -> tuple[int, ...]:
        return tuple(step for step in self.steps if step < self.run.healthy_until)

    @property
    def step(self) -> int | None:
        """The first that is not false."""
        return next((step for step in self.steps if step >= self.run.healthy_until), None)

    @property
    def is_in_time(self) -> bool:
        halved = self.run.halved_step
        return self.step is not None and (halved is None or self.step <= halved)

    @property
    def lead(self) -> float:
        """Steps from the alarm to the halving: negative if late, minus infinity if never."""
        if self.step is None:
            return -math.inf
        halved = self.run.halved_step
        return math.nan if halved is None else float(halved - self.step)

    @property
    def onset_error(self) -> float:
        """Steps between the onset named and the one labelled; NaN without either."""
        named = self.step if self.onset_step is None else self.onset_step
        if self.step is None or named is None or self.run.onset_step is None:
            return math.nan
        return float(abs(named - self.run.onset_step))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Over a set of runs."""

    num_collapsed: int
    num_in_time: int
    median_lead: float
    """Over all collapses that halved; one never called leads by minus infinity. NaN without any."""
    median_lead_called: float
    """Over those that were called, late or not; NaN without any."""
    median_onset_error: float
    num_false: int
    num_healthy_steps: int
    num_controls: int
    num_controls_alarmed: int

    @property
    def detection(self) -> float:
        """Share of the collapses that was called in time; NaN without any."""
        return self.num_in_time / self.num_collapsed if self.num_collapsed else math.nan

    @property
    def false_per_1000(self) -> float:
        """False alarms per 1,000 healthy steps; NaN without any."""
        return (
            1000 * self.num_false / self.num_healthy_steps if self.num_healthy_steps else math.nan
        )

    def to_json(self) -> dict[str, Any]:
        """`median_lead` is null where half of the collapses or more are never called."""
        return {
            "collapsed": self.num_collapsed,
            "detected": self.num_in_time,
            "detection": finite_or_none(self.detection),
            "median_lead": finite_or_none(self.median_lead),
            "median_lead_of_called": finite_or_none(self.median_lead_called),
            "median_onset_error": finite_or_none(self.median_onset_error),
            "false": self.num_false,
            "healthy_steps": self.num_healthy_steps,
            "false_per_1000_steps": finite_or_none(self.false_per_1000),
            "controls": self.num_controls,
            "controls_alarmed": self.num_controls_alarmed,
        }


def score(calls: Sequence[Call]) -> Scores:
    """One call per run; runs that do not count are left out."""
    counted = [call for call in calls if call.run.counts]
    collapsed = [call for call in counted if call.run.is_collapsed]
    controls = [call for call in counted if not call.run.is_collapsed]
    leads = [call.lead for call in collapsed if call.run.halved_step is not None]
    return Scores(
        num_collapsed=len(collapsed),
        num_in_time=sum(call.is_in_time for call in collapsed),
        median_lead=_median(leads),
        median_lead_called=_median([lead for lead in leads if math.isfinite(lead)]),
        median_onset_error=_median([call.onset_error for call in collapsed]),
        num_false=sum(len(call.false_steps) for call in counted),
        num_healthy_steps=sum(call.run.num_healthy_steps for call in counted),
        num_controls=len(controls),
        num_controls_alarmed=sum(bool(call.steps) for call in controls),
    )


def _median(values: Sequence[float]) -> float:
    """NaN counts as absent; minus infinity where the lower of two middle ones is."""
    present = [value for value in values if not math.isnan(value)]
    return float(np.median(present)) if present else math.nan
