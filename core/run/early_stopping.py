"""A run's evaluations: whose weights are on the disk, and whether they still improve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from echoscope.store.records import Split, StepMetrics
from echoscope.text.amounts import share_of_all

from ..config.schedule import EarlyStoppingConfig
from ..rollout.evaluate import success_over_tags

BEST_MARGIN = 0.05
"""A checkpoint of the best evaluation is written where it is so much above that of every other:
without it each evaluation of a run that learns would write one."""


@dataclass(slots=True, kw_only=True)
class Evaluations:
    """Success of the evaluations of a run."""

    success: dict[int, float] = field(default_factory=dict)
    """Step to the success of its evaluation, where it is known."""
    last: float = math.nan
    best_saved: float = -math.inf
    """Of the best weights on the disk, the starting ones included."""

    def note(self, metrics: Sequence[StepMetrics]) -> int | None:
        """Remember the evaluation among these metrics; its step, None without one."""
        noted = None
        for each in metrics:
            rate = success_over_tags(each.values, Split.EVAL)
            if math.isfinite(rate):
                self.last = self.success[each.step] = rate
                noted = each.step
        return noted

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
        out = cls(success={step: rate for step, rate in rates.items() if math.isfinite(rate)})
        for saved in sorted({0, *saved_steps}):
            before = [step for step in rates if step <= saved]
            if before:
                out.last = rates[max(before)]
                out.saved()
        out.last = rates[max(rates)] if rates else math.nan
        return out


def why_stop(success: Mapping[int, float], settings: EarlyStoppingConfig) -> str:
    """One sentence if the last `patience` evaluations brought nothing better; empty otherwise.

    An evaluation is better if its success is above the best one before it, and by `min_delta` at
    least. The first one always is.

    Args:
        success: Step to the success of its evaluation.

    >>> why_stop({0: 0.2, 10: 0.5, 20: 0.5, 30: 0.4}, EarlyStoppingConfig(patience=2))
    'success in evaluation was best at step 10 (50 %), and 2 evaluations since were not better'
    >>> why_stop({0: 0.2, 10: 0.5, 20: 0.5}, EarlyStoppingConfig(patience=2))
    ''
    """
    if not settings.patience:
        return ""
    best_step, num_worse = -1, 0
    for step, rate in sorted(success.items()):
        is_better = best_step < 0 or (
            rate > success[best_step] and rate >= success[best_step] + settings.min_delta
        )
        best_step, num_worse = (step, 0) if is_better else (best_step, num_worse + 1)
    if num_worse < settings.patience:
        return ""
    return (
        f"success in evaluation was best at step {best_step} "
        f"({share_of_all(success[best_step])}), and {num_worse} evaluations since were not better"
    )
