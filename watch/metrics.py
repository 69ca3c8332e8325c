"""The newest steps of one source of metrics, as its rows arrive."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from echoscope.diagnostics.read.table import TableBuilder

MAX_STEPS = 2_000
"""Steps that are kept; older ones are in the run."""


class Metrics(TableBuilder):
    """Steps with their numbers, under the trainer's names.

    A trainer that was started again repeats steps: its rows then replace those of the same and of
    later steps. A row of an earlier step with other names is a late evaluation, and is added to its
    step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.newest = -1
        """The step that the trainer has come to."""
        self.began_again: int | None = None
        """The first step that the trainer has trained again."""
        self.touched: set[int] = set()
        """Steps that got numbers since the ledger looked."""
        self._sums: dict[int, dict[str, tuple[float, float]]] = {}
        """Step -> name -> sum of weighted values, and of weights."""
        self._last = -1
        """The step of the row that came last."""
        self._usual: frozenset[str] = frozenset()
        """Names of the newest row."""

    @property
    def steps(self) -> Iterable[int]:
        return self._sums.keys()

    def add_row(self, step: float, values: Mapping[str, float], weight: float = 1.0) -> None:
        """Take in the next row of the source."""
        self.num_rows += 1
        if not values or "train_runtime" in values:  # transformers' summary behind the last step
            return
        number = int(step)
        if number > self.newest:
            self._usual = frozenset(values)
        elif number != self._last and number < self.newest and self._is_again(number, values):
            self._forget(number)
        self.newest, self._last = max(self.newest, number), number
        sums = self._sums.setdefault(number, {})
        for name, value in values.items():
            total, weights = sums.get(name, (0.0, 0.0))
            sums[name] = (total + weight * value, weights + weight)
        self.touched.add(number)
        if len(self._sums) > 2 * MAX_STEPS:
            first = sorted(self._sums)[-MAX_STEPS]
            self._sums = {step: sums for step, sums in self._sums.items() if step >= first}

    def _is_again(self, step: int, values: Mapping[str, float]) -> bool:
        """Whether a row of an earlier step says what its step has said already."""
        names = self._sums[step].keys() if step in self._sums else self._usual
        shared = sum(name in names for name in values)
        return shared > 0 if step in self._sums else 2 * shared >= len(values)

    def _forget(self, first: int) -> None:
        """Forget steps from `first` on: they come again."""
        self.began_again = first if self.began_again is None else min(first, self.began_again)
        self._sums = {step: sums for step, sums in self._sums.items() if step < first}
        self.newest = first - 1

    def values(self, step: int) -> dict[str, float]:
        """The numbers of a step: of several rows, their weighted means."""
        sums = self._sums.get(step, {})
        return {name: total / weights for name, (total, weights) in sums.items() if weights}


def is_same(before: float, value: float) -> bool:
    """Whether two numbers are equal, or neither is finite."""
    return before == value or not (math.isfinite(before) or math.isfinite(value))
