"""What a claim compares: two arms, one arm with a border, the order of two events, or ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from .intervals import Interval, between, over_arms, over_seeds, spearman
from .measures import MEASURES, final_success, first_move, success_lost
from .training import Arm, Record, Result


class Figure(Protocol):
    """Something that a record answers with an interval."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """What has to be trained for it."""
        ...

    is_signed: ClassVar[bool]
    """Whether a plus sign helps: differences and correlations."""
    counted: ClassVar[str]
    """What the interval is over."""

    @property
    def unit(self) -> str:
        """Of the number and its interval."""
        ...

    @property
    def words(self) -> str:
        """What the number is, for the page."""
        ...

    def interval(self, record: Record, steps: int | None = None) -> Interval | None:
        """None where the record has too little."""
        ...

    def levels(self, record: Record, steps: int | None = None) -> str:
        """The numbers behind the interval, in a few words."""
        ...


def _mean(results: dict[int, Result], measure: str) -> str:
    values = [MEASURES[measure][0](result) for result in results.values()]
    return f"{np.mean(values):.3g}" if values else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An arm's measure less that of another arm with the same seed."""

    arm: Arm
    other: Arm
    measure: str
    is_signed: ClassVar[bool] = True
    counted: ClassVar[str] = "seeds"

    @property
    def arms(self) -> tuple[Arm, ...]:
        return (self.arm, self.other)

    @property
    def unit(self) -> str:
        return MEASURES[self.measure][1]

    @property
    def words(self) -> str:
        return f"{self.measure}, `{self.arm.name}` less `{self.other.name}`"

    def interval(self, record: Record, steps: int | None = None) -> Interval | None:
        mine, others = record.of(self.arm, steps), record.of(self.other, steps)
        value = MEASURES[self.measure][0]
        both = sorted(mine.keys() & others.keys())
        return over_seeds([value(mine[seed]) - value(others[seed]) for seed in both])

    def levels(self, record: Record, steps: int | None = None) -> str:
        pair = (_mean(record.of(arm, steps), self.measure) for arm in self.arms)
        return " against ".join(pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The measure of one arm."""

    arm: Arm
    measure: str
    is_signed: ClassVar[bool] = False
    counted: ClassVar[str] = "seeds"

    @property
    def arms(self) -> tuple[Arm, ...]:
        return (self.arm,)

    @property
    def unit(self) -> str:
        return MEASURES[self.measure][1]

    @property
    def words(self) -> str:
        return f"{self.measure} of `{self.arm.name}`"

    def interval(self, record: Record, steps: int | None = None) -> Interval | None:
        value = MEASURES[self.measure][0]
        return over_seeds([value(result) for result in record.of(self.arm, steps).values()])

    def levels(self, record: Record, steps: int | None = None) -> str:
        value = MEASURES[self.measure][0]
        results = record.of(self.arm, steps)
        return ", ".join(f"{value(results[seed]):.3g}" for seed in sorted(results))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The measure of runs whose success halved less that of runs whose success did not."""

    sources: tuple[Arm, ...]
    measure: str
    is_signed: ClassVar[bool] = True
    counted: ClassVar[str] = "runs"

    @property
    def arms(self) -> tuple[Arm, ...]:
        return self.sources

    @property
    def unit(self) -> str:
        return MEASURES[self.measure][1]

    @property
    def words(self) -> str:
        return f"{self.measure}, collapsed runs less the others"

    def _parts(self, record: Record, steps: int | None) -> tuple[list[float], list[float]]:
        results = [r for arm in self.sources for r in record.of(arm, steps).values()]
        value = MEASURES[self.measure][0]
        halved = [value(r) for r in results if success_lost(r) is not None]
        return halved, [value(r) for r in results if success_lost(r) is None]

    def interval(self, record: Record, steps: int | None = None) -> Interval | None:
        return between(*self._parts(record, steps))

    def levels(self, record: Record, steps: int | None = None) -> str:
        parts = self._parts(record, steps)
        means = [f"{np.mean(values):.3g} in {len(values)}" for values in parts if values]
        return " against ".join(means)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Steps from a metric's first sign of trouble to the loss of success, in runs that lost it.

    A run that lost success without the sign is left out of the mean and counted in `levels`.
    """

    sources: tuple[Arm, ...]
    metric: str
    metric_words: str
    is_signed: ClassVar[bool] = True
    counted: ClassVar[str] = "runs"

    @property
    def arms(self) -> tuple[Arm, ...]:
        return self.sources

    @property
    def unit(self) -> str:
        return "steps"

    @property
    def words(self) -> str:
        return f"lead of {self.metric_words} over the loss of evaluation success"

    def _pairs(self, record: Record, steps: int | None) -> list[tuple[int | None, float]]:
        results = [r for arm in self.sources for r in record.of(arm, steps).values()]
        lost = [(result, success_lost(result)) for result in results]
        return [(first_move(r, self.metric), step) for r, step in lost if step is not None]

    def interval(self, record: Record, steps: int | None = None) -> Interval | None:
        pairs = self._pairs(record, steps)
        return over_seeds([step - moved for moved, step in pairs if moved is not None])

    def levels(self, record: Record, steps: int | None = None) -> str:
        pairs = self._pairs(record, steps)
        moved = sum(first is not None for first, _ in pairs)
        return f"{moved} of {len(pairs)} collapsed runs showed it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Spearman's rank correlation over runs of a metric with final success.

    With `less` it is what the correlation exceeds that of another metric by, signs left out.
    """

    sources: tuple[Arm, ...]
    metric: str
    metric_words: str
    half: str = "second"
    """Half of the run in which the metric is averaged."""
    less: str | None = None
    less_words: str = ""
    is_signed: ClassVar[bool] = True
    counted: ClassVar[str] = "runs"

    @property
    def arms(self) -> tuple[Arm, ...]:
        return self.sources

    @property
    def unit(self) -> str:
        return ""

    @property
    def words(self) -> str:
        plain = f"rank correlation of {self.metric_words} ({self.half} half) with final success"
        return plain if self.less is None else f"{plain}, less that of {self.less_words}"

    def _runs(self, record: Record, steps: int | None) -> list[tuple[str, Result]]:
        named_results = [(a.name, r) for a in self.sources for r in record.of(a, steps).values()]
        keys = [self.metric] if self.less is None else [self.metric, self.less]
        return [
            (name, r) for name, r in named_results if all(len(r.curve(key)[1]) > 1 for key in keys)
        ]

    def _means(self, results: Sequence[Result], metric: str) -> np.ndarray:
        means = []
        for result in results:
            steps, values = result.curve(metric)
            is_late = steps > result.steps / 2
            means.append(float(np.mean(values[is_late if self.half == "second" else ~is_late])))
        return np.array(means)

    def interval(self, record: Record, steps: int | None = None) -> Interval | None:
        runs = self._runs(record, steps)
        results = [result for _, result in runs]
        success = np.array([final_success(result) for result in results])
        means = self._means(results, self.metric)
        other = None if self.less is None else self._means(results, self.less)

        def statistic(drawn: np.ndarray) -> float:
            value = spearman(means[drawn], success[drawn])
            if other is None:
                return value
            return abs(value) - abs(spearman(other[drawn], success[drawn]))

        return over_arms(statistic, [name for name, _ in runs])

    def levels(self, record: Record, steps: int | None = None) -> str:
        runs = self._runs(record, steps)
        return f"{len({name for name, _ in runs})} arms"
