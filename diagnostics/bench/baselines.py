"""Other ways to raise an alarm (`detectors/`), measured on the same runs.

Trigger-happy alerts always lead, so each with a threshold is also given the one that does best
among those that raise no more false alarms than allowed, chosen on these very runs: in hindsight,
which favours it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echoscope.text.strict_json import finite_or_none

from .detectors.entry import Alert, Entry, entries
from .harness import LabelledRun
from .scores import Call, Scores, score


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """A baseline over a set of runs: as people use it, and at matched false alarms."""

    name: str
    usual: float
    """NaN where there is none to choose."""
    scores: Scores
    matched: float = math.nan
    """The best threshold among those with no more false alarms than allowed; NaN if none has."""
    matched_scores: Scores | None = None
    sweep: tuple[tuple[float, Scores], ...] = ()
    """Every threshold tried."""

    def to_json(self) -> dict[str, Any]:
        """As used, matched, and at every threshold."""
        kept = self.matched_scores
        return {
            "name": self.name,
            "threshold": finite_or_none(self.usual),
            **self.scores.to_json(),
            "matched": None if kept is None else {"threshold": self.matched, **kept.to_json()},
            "sweep": [{"threshold": value, **scores.to_json()} for value, scores in self.sweep],
        }


def measure(alert: Alert, runs: Sequence[LabelledRun]) -> Scores:
    """How an alert does on the runs that count."""
    return score([Call(run=run, steps=alert(run)) for run in runs if run.counts])


def matched(sweep: Sequence[tuple[float, Scores]], allowed_per_1000: float) -> int | None:
    """The place of the best threshold with few enough false alarms; None if there is none.

    Best: most collapses called in time, then the longest lead.
    """
    fit = [
        (s.num_in_time, s.median_lead if not math.isnan(s.median_lead) else -math.inf, -n)
        for n, (_, s) in enumerate(sweep)
        if not s.false_per_1000 > allowed_per_1000
    ]
    return -max(fit)[2] if fit else None


def baselines(runs: Sequence[LabelledRun], allowed_per_1000: float) -> list[BaselineResult]:
    """Every entry, as used and at no more than so many false alarms per 1,000 healthy steps."""
    return [_baseline(entry, runs, allowed_per_1000) for entry in entries()]


def _baseline(entry: Entry, runs: Sequence[LabelledRun], allowed_per_1000: float) -> BaselineResult:
    sweep = tuple((value, measure(entry.alert(value), runs)) for value in entry.grid)
    chosen = matched(sweep, allowed_per_1000)
    return BaselineResult(
        name=entry.name,
        usual=entry.usual,
        scores=measure(entry.as_used, runs),
        matched=math.nan if chosen is None else sweep[chosen][0],
        matched_scores=None if chosen is None else sweep[chosen][1],
        sweep=sweep,
    )
