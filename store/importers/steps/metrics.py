"""Metrics that another trainer wrote beside its rollouts, read already: what an import adds to the
steps of a run. Reading them is the matter of `diagnostics`, which knows whose names mean what."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...records import StepMetrics

EVALUATION = "eval/"
"""How the keys of an evaluation's metrics begin."""
IS_RECONSTRUCTED = "reward/is_reconstructed"
"""Beside a return that was made up from parts."""
_RETURNS = tuple(
    f"reward/{name}" for name in ("return_mean", "return_std", "return_min", "return_max")
)


def without_reconstructed(values: Mapping[str, float]) -> Mapping[str, float]:
    """The numbers of rollouts without a return that was made up from parts."""
    if IS_RECONSTRUCTED not in values:
        return values
    return {k: v for k, v in values.items() if k not in (*_RETURNS, IS_RECONSTRUCTED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The metrics of one run, step by step."""

    steps: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Under the trainer's own names, and under ours where a name is understood."""
    wall_times: Mapping[int, float] = field(default_factory=dict)
    """Seconds since the epoch, of the steps of which the files say them."""
    trainer: str = ""
    """Whose names the metrics have; "" where nobody's are known."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """Kept in the run's configuration: files, notes, and which column each key came from."""

    def counts(self) -> Counter[str]:
        """In how many steps each key has a value."""
        return Counter(
            key
            for numbers in self.steps.values()
            for key, value in numbers.items()
            if not math.isnan(value)
        )


class Merger:
    """Joins the numbers of rollouts with those of metrics files.

    A key has one source in all steps, because two sources seldom measure the same: the metrics
    files where they have the key in at least as many steps as there are steps with rollouts, else
    the rollouts. A number that the rollouts do not give is taken from the files in any case.
    Evaluations are rarer than steps: where the files give any, all of their numbers are the files'.
    """

    def __init__(self, beside: Beside, num_steps_with_rollouts: int) -> None:
        self._beside, counts = beside, beside.counts()
        self._owned = {k for k, times in counts.items() if times >= num_steps_with_rollouts}
        """Keys that the rollouts do not give."""
        self._has_evaluations = any(key.startswith(EVALUATION) for key in counts)
        self._has_return = counts[_RETURNS[0]] > 0
        """The files give the trainer's own return, which is preferred to one made up from parts."""

    def digest(self, step: int, rows: str) -> str:
        """What tells whether a step changed: of its rows, and of its numbers if it has any."""
        numbers = self._beside.steps.get(step)
        if rows and self._has_evaluations:
            rows = f"{rows} without evaluations"
        if numbers is None:
            return rows
        values = sorted((key, repr(value)) for key, value in numbers.items())
        text = json.dumps([rows, values, sorted(self._owned & numbers.keys())])
        return hashlib.blake2b(text.encode(errors="replace"), digest_size=12).hexdigest()

    def metrics(self, counted: StepMetrics) -> list[StepMetrics]:
        """One step's numbers, those of an evaluation apart; `counted` are those of its rollouts."""
        values = without_reconstructed(counted.values) if self._has_return else counted.values
        values = {key: value for key, value in values.items() if not self._is_owned(key)}
        for key, value in self._beside.steps.get(counted.step, {}).items():
            if math.isnan(values.get(key, math.nan)):
                values[key] = value
        wall_time = self._beside.wall_times.get(counted.step, counted.wall_time)
        phases = {"train": {}, "eval": {}}  # type: dict[str, dict[str, float]]
        for key, value in values.items():
            phases["eval" if key.startswith(EVALUATION) else "train"][key] = value
        return [
            replace(counted, phase=phase, wall_time=wall_time, values=values)
            for phase, values in phases.items()
            if values or phase == "train"
        ]

    def _is_owned(self, key: str) -> bool:
        return self._has_evaluations if key.startswith(EVALUATION) else key in self._owned
