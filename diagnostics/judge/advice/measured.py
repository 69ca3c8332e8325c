"""What CureBench has shown: which treatment helped which collapse, how often, and at what cost.

`measured.toml` holds the counts. It is made from the records by `make cures-tables`, and read here.
What has too few runs, or did no better than the controls, is not called a cure.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.text.amounts import counted, rounded

from .treatments import Lookup, Treatment, treatment

if TYPE_CHECKING:
    from echoscope.diagnostics.measure.outcomes import Estimate

TABLE = Path(__file__).with_name("measured.toml")
LEAST_RUNS = 5
"""Runs of a symptom that a treatment must have been tried on before it can be shown to help."""
LEAST_SHARE = 0.5
"""Share of them that it must have held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How often something held."""

    held: int
    of: int

    @property
    def share(self) -> float:
        return self.held / self.of if self.of else math.nan

    @property
    def estimate(self) -> Estimate:
        """The share with Wilson's interval of 95 %."""
        from echoscope.diagnostics.measure.outcomes import Estimate  # loads scipy

        low, high = wilson_interval(self.share, self.of)
        return Estimate(value=self.share, low=float(low), high=float(high))

    @property
    def low(self) -> float:
        """Lower end of Wilson's 95 % interval; 0 without runs."""
        return float(wilson_interval(self.share, self.of)[0]) if self.of else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a treatment did about a symptom."""

    symptom: str
    """The alarm that stood first when the run was treated."""
    treatment: Treatment
    rate: Rate
    control: Rate
    """How often the same runs held without any treatment: rewound alone or with the placebo,
    whichever did better."""
    twin_change: float | None
    """What it changes about a healthy run's success, a difference; None where not measured."""
    twin_runs: int = 0

    @property
    def is_shown(self) -> bool:
        """Tried often enough, held half of the runs, and better than without, beyond chance.

        The interval of the difference is Newcombe's (1998, method 10).
        """
        from echoscope.diagnostics.measure.outcomes import unpaired_estimate  # loads scipy

        if self.rate.of < LEAST_RUNS or self.rate.share < LEAST_SHARE or not self.control.of:
            return False
        return unpaired_estimate(self.rate.estimate, self.control.estimate).low > 0

    @property
    def words(self) -> str:
        """The rate as a sentence.

        >>> rate, control = Rate(held=9, of=10), Rate(held=1, of=10)
        >>> Measured(symptom="FORMAT_COLLAPSE", treatment=treatment("kl"), rate=rate,
        ...     control=control, twin_change=-0.04, twin_runs=5).words
        'It held in 9 of 10 runs (controls: 1 of 10), and costs a healthy run 4 points.'
        """
        control = f" (controls: {self.control.held} of {self.control.of})" * bool(self.control.of)
        held = f"It held in {self.rate.held} of {self.rate.of} runs"
        if not self.rate.held:
            held = f"It was tried on {counted(self.rate.of, 'run')} and did not hold"
        return f"{held}{control}{self._cost()}."

    def _cost(self) -> str:
        if self.twin_change is None:
            return "; what it costs a healthy run is not measured"
        points = int(rounded(100 * self.twin_change))
        if points < 0:
            return f", and costs a healthy run {-points} points"
        return f", and costs a healthy run nothing{f' (+{points} points)' * bool(points)}"


@cache
def measured() -> tuple[Measured, ...]:
    """The whole table."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8")).get("treatments", ())
    return tuple(
        Measured(
            symptom=row["symptom"],
            treatment=treatment(row["treatment"]),
            rate=Rate(held=row["held"], of=row["of"]),
            control=Rate(held=row["control_held"], of=row["control_of"]),
            twin_change=row.get("twin_change"),
            twin_runs=row.get("twin_runs", 0),
        )
        for row in rows
    )


def tried_for(symptom: str) -> tuple[Measured, ...]:
    """All that was tried for a symptom, what helped most first.

    What is shown to help comes first; the rest is something to look at, no cure.
    """
    rows = (row for row in measured() if row.symptom == symptom)
    return tuple(sorted(rows, key=lambda row: (-row.is_shown, -row.rate.low, -row.rate.of)))


def offered(symptom: str, present: Lookup) -> tuple[Measured, ...]:
    """As `tried_for`, without treatments that would change nothing about a run.

    Args:
        symptom: The alarm that stands first.
        present: The run's settings by dotted key.
    """
    return tuple(row for row in tried_for(symptom) if row.treatment.settings(present))


def first_shown(symptom: str, present: Lookup) -> Measured | None:
    """The treatment to offer first; None where nothing was shown to help."""
    return next((row for row in offered(symptom, present) if row.is_shown), None)


def of_settings(symptom: str, settings: Mapping[str, Any], present: Lookup) -> Measured | None:
    """What was measured of exactly these settings; None where nothing was."""
    rows = (row for row in measured() if row.symptom == symptom)
    return next((row for row in rows if row.treatment.settings(present) == settings), None)
