"""The evaluations of a run: whose weights are on the disk, and whether the last are the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from echoscope.store.records import StepMetrics

from ..rollout.evaluate import success_over_tags

BEST_MARGIN = 0.05
"""A checkpoint of the best evaluation is written where it is so much above that of every other:
without it each evaluation of a run that learns would write one."""


@dataclass(slots=True, kw_only=True)
class Evaluations:
    """Success of the evaluations of a run."""

    last: float = math.nan
    best_saved: float = -math.inf
    """Of the best weights on the disk, the starting ones included."""

    def note(self, metrics: Sequence[StepMetrics]) -> None:
        """Remember the evaluation among these metrics, if there is one."""
        for each in metrics:
            rate = success_over_tags(each.values)
            if math.isfinite(rate):
                self.last = rate

    def saved(self) -> None:
        """The weights of the last evaluation are on the disk."""
        if self.last > self.best_saved:
            self.best_saved = self.last

    @property
    def is_best(self) -> bool:
        """The last one is far above all whose weights are on the disk."""
        return self.last >= self.best_saved + BEST_MARGIN

    @classmethod
    def recalled(cls, rates: Mapping[int, float], saved_steps: Iterable[int]) -> Evaluations:
        """What an earlier attempt has evaluated.

        Args:
            rates: step to success, up to the step that this attempt goes on from; NaN included.
            saved_steps: of the checkpoints on the disk.
        """
        out = cls()
        for saved in sorted({0, *saved_steps}):
            before = [step for step in rates if step <= saved]
            if before:
                out.last = rates[max(before)]
                out.saved()
        out.last = rates[max(rates)] if rates else math.nan
        return out
