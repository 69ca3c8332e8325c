"""The newest steps of one source of metrics, as its rows arrive.

A trainer that was started again repeats steps: its rows then replace those of the same and of later
steps. A row of an earlier step with other names is a late evaluation, and is added to its step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_STEPS = 2_000
"""Steps that are kept; older ones are in the run."""
Row = tuple[int, Mapping[str, float], float]
"""Step, numbers under the trainer's names, and how many samples they are means of."""


@dataclass(slots=True)
class Metrics:
    """Steps with their numbers, under the trainer's names."""

    is_growing: bool = False
    """Rows are added to it with every step; else it is read whole, and says nothing of when."""
    is_open: bool = False
    """Lines were read after which a block may go on."""
    changed_at: float = 0.0
    newest: int = -1
    """The step that the trainer has come to."""
    began_again: int | None = None
    """The trainer was started again at this step, since `Ledger.began_again` was asked."""
    changed: set[int] = field(default_factory=set)
    """Steps that got numbers since `Ledger.late_numbers` was asked."""
    _steps: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """Step -> name -> sum of weighted values, and of weights."""
    _floor: int = -1
    """Steps before this one are not known here."""
    _last: int = -1
    """The step of the row that came last."""
    _usual: frozenset[str] = frozenset()
    """Names of the newest row."""

    def __contains__(self, step: int) -> bool:
        return step in self._steps

    @property
    def steps(self) -> Iterable[int]:
        return self._steps.keys()

    def add(self, rows: Iterable[Row]) -> None:
        """Take in rows in the order in which they were written."""
        for step, numbers, weight in rows:
            if numbers:
                self._add(step, numbers, weight)

    def replace(self, rows: Iterable[Row]) -> None:
        """Take in all rows of a text once more; only steps whose numbers differ are news."""
        fresh = Metrics()
        fresh.add(rows)
        for step in sorted(fresh.steps):
            before, values = self.values(step), fresh.values(step)
            if any(
                not _equal(before[name], values[name]) for name in before.keys() & values.keys()
            ):
                self._begin_again(step)
                break
            if values.keys() - before.keys() and self._floor <= step <= self.newest:
                self.changed.add(step)
        if self.is_growing:
            self.changed.update(fresh.steps)
        self._steps |= fresh._steps
        self.newest = max(self.newest, fresh.newest)
        self._last, self._usual = fresh._last, fresh._usual or self._usual

    def _add(self, step: int, numbers: Mapping[str, float], weight: float) -> None:
        if step >= self.newest or step == self._last:
            if step > self.newest:
                self._usual = frozenset(numbers)
            self.newest = max(self.newest, step)
        elif self._is_again(step, numbers):
            before = self.values(step)
            shared = before.keys() & numbers.keys()
            if shared and all(_equal(before[name], numbers[name]) for name in shared):
                self._last = -1
                return  # the file was written again as it was
            self._begin_again(step)
            self.newest = step
        elif step < self._floor:
            return
        sums = self._steps.setdefault(step, {})
        for name, value in numbers.items():
            total, weights = sums.get(name, (0.0, 0.0))
            sums[name] = (total + weight * value, weights + weight)
        self._last = step
        self.changed.add(step)

    def _is_again(self, step: int, numbers: Mapping[str, float]) -> bool:
        """Whether a row of an earlier step says what its step has said already."""
        names = self._steps[step].keys() if step in self._steps else self._usual
        shared = sum(name in names for name in numbers)
        return shared > 0 if step in self._steps else 2 * shared >= len(numbers)

    def _begin_again(self, step: int) -> None:
        self.forget(step)
        self.began_again = step if self.began_again is None else min(step, self.began_again)

    def forget(self, first: int) -> None:
        """Forget steps from `first` on: they come again."""
        self._steps = {step: sums for step, sums in self._steps.items() if step < first}
        self.newest = min(self.newest, first - 1)
        self._last = -1

    def trim(self, last: int) -> None:
        """Forget the oldest of the steps up to `last` where there are many."""
        if len(self._steps) > 2 * MAX_STEPS:
            first = min(sorted(self._steps)[-MAX_STEPS], last)
            self._steps = {step: sums for step, sums in self._steps.items() if step >= first}
            self._floor = max(self._floor, first)

    def values(self, step: int) -> dict[str, float]:
        """The numbers of a step: of several rows, their weighted means."""
        sums = self._steps.get(step, {})
        return {name: total / weights for name, (total, weights) in sums.items() if weights}


def _equal(before: float, value: float) -> bool:
    return before == value or not (math.isfinite(before) and math.isfinite(value))
