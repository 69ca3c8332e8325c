"""The newest steps of one source of metrics, as its rows arrive.

A trainer that was started again repeats steps: its rows then replace those of the same and of later
steps. A row of an earlier step with other names is a late evaluation, and is added to its step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from echoscope.diagnostics.read.names import RowNamer

MAX_STEPS = 2_000
"""Steps that are kept; older ones are in the run."""
Row = tuple[int, Mapping[str, float], float]
"""Step, numbers under the trainer's names, and how many samples they are means of."""


@dataclass(slots=True, kw_only=True)
class News:
    """What rows have changed."""

    first_repeated: int | None = None
    """The trainer was started again at this step."""
    late: set[int] = field(default_factory=set)
    """Earlier steps that got further numbers."""
    num_lost: int = 0
    """Rows of steps that are no longer kept."""


@dataclass(slots=True)
class Window:
    """Steps with their numbers, under the trainer's names."""

    newest: int = -1
    """The step that the trainer has come to."""
    floor: int = -1
    """Steps before this one are not known here."""
    namer: RowNamer = field(default_factory=RowNamer)
    """Of all numbers of the run."""
    _steps: dict[int, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """Step -> name -> sum of weighted values, and of weights."""
    _last: int = -1
    """The step of the row that came last."""
    _usual: frozenset[str] = frozenset()
    """Names of the newest row."""

    def __contains__(self, step: int) -> bool:
        return step in self._steps

    @property
    def steps(self) -> Iterable[int]:
        return self._steps.keys()

    def add(self, rows: Iterable[Row]) -> News:
        """Take in rows in the order in which they were written."""
        news = News()
        for step, numbers, weight in rows:
            if numbers:
                self._add(step, numbers, weight, news)
        return news

    def replace(self, rows: Iterable[Row]) -> News:
        """Take in all rows of a text once more; only steps whose numbers differ are news."""
        fresh = Window()
        fresh.add(rows)
        news = News()
        for step in sorted(fresh.steps):
            known, values = self._values(step), fresh._values(step)
            if any(not _equal(known[name], values[name]) for name in known.keys() & values.keys()):
                news.first_repeated = step
                self.forget(step)
                break
            if values.keys() - known.keys() and step <= self.newest and step >= self.floor:
                news.late.add(step)
        self._steps |= fresh._steps
        self.newest = max(self.newest, fresh.newest)
        self._last, self._usual = fresh._last, fresh._usual or self._usual
        return news

    def know(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        """Steps that the run has already, with their numbers."""
        for step in sorted(steps):
            self._take(step, steps[step], 1.0)
            self.newest, self._usual = step, frozenset(steps[step])
        self.floor, self._last = min(steps, default=-1), -1

    def _add(self, step: int, numbers: Mapping[str, float], weight: float, news: News) -> None:
        if step >= self.newest or step == self._last:
            self._take(step, numbers, weight)
            if step > self.newest:
                self._usual = frozenset(numbers)
            self.newest = max(self.newest, step)
            return
        if self._is_again(step, numbers):
            known = self._values(step)
            shared = known.keys() & numbers.keys()
            if shared and all(_equal(known[name], numbers[name]) for name in shared):
                self._last = -1
                return  # the file was written again as it was
            self.forget(step)
            first = news.first_repeated
            news.first_repeated = step if first is None else min(first, step)
            self.newest = step
            self._take(step, numbers, weight)
        elif step >= self.floor:
            self._take(step, numbers, weight)
            news.late.add(step)
        else:
            news.num_lost += 1

    def _is_again(self, step: int, numbers: Mapping[str, float]) -> bool:
        """Whether a row of an earlier step says what its step has said already."""
        names = self._steps[step].keys() if step in self._steps else self._usual
        shared = sum(name in names for name in numbers)
        return shared > 0 if step in self._steps else 2 * shared >= len(numbers)

    def _take(self, step: int, numbers: Mapping[str, float], weight: float) -> None:
        sums = self._steps.setdefault(step, {})
        for name, value in numbers.items():
            total, weights = sums.get(name, (0.0, 0.0))
            sums[name] = (total + weight * value, weights + weight)
        self._last = step

    def forget(self, first: int) -> None:
        """Forget steps from `first` on: they come again."""
        self._steps = {step: sums for step, sums in self._steps.items() if step < first}
        self.newest = min(self.newest, first - 1)
        self._last = -1

    def trim(self, last: int) -> None:
        """Forget the oldest of the steps up to `last` where there are many."""
        if len(self._steps) > 2 * MAX_STEPS:
            kept = sorted(self._steps)[-MAX_STEPS:]
            first = min(kept[0], last)
            self._steps = {step: sums for step, sums in self._steps.items() if step >= first}
            self.floor = max(self.floor, first)

    def _values(self, step: int) -> dict[str, float]:
        sums = self._steps.get(step, {})
        return {name: total / weights for name, (total, weights) in sums.items() if weights}

    def named(self, steps: Iterable[int]) -> dict[int, dict[str, float]]:
        """Numbers of steps, under the trainer's names and under ours where they are understood."""
        rows = {step: self._values(step) for step in steps if step in self._steps}
        self.namer.learn(rows)
        return {
            step: {k: v for k, v in self.namer.named(values).items() if _says(k, v)}
            for step, values in rows.items()
        }


def _says(key: str, value: float) -> bool:
    """A loss that broke is told; elsewhere what is not finite says nothing."""
    return math.isfinite(value) or (math.isinf(value) and key.startswith(("loss/", "optim/")))


def _equal(known: float, value: float) -> bool:
    return known == value or not (math.isfinite(known) and math.isfinite(value))
