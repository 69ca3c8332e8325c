"""What the files say of each step, when a step is complete, and where the run says something else.

A step that is still being written is never judged:

| what is watched | a step is complete when |
| --- | --- |
| metrics, or metrics and rollouts | a row of metrics of a later step has come |
| rollouts only | a row of a later step has come, and none for `line_quiet_s` |
| the newest step | all files that told of the step before tell of this one, and are quiet |
| anything | nothing at all has come for `patience_s` and ten steps |

Quiet: `line_quiet_s` for metrics and for files that are written at once, `quiet_s` for rollouts
that are written row by row without metrics beside them.

Each step of the run has a claim: what it was written from. The run is taken back to the first step
of which the files say more, or something else: a part of it came late, or the trainer trained it
again. What no file says any more stays in the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from echoscope.diagnostics.read.foreign_names import meaning_of
from echoscope.diagnostics.read.names import is_ours
from echoscope.diagnostics.read.table import TableBuilder
from echoscope.store.importers.format import Roles

from .rollouts import KEPT_STEPS, Claim, Rollouts

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


ROLLOUTS = "rollouts"
"""All files of rollouts together, among the names of sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long to wait for what, in seconds."""

    line_quiet_s: float = 1.0
    quiet_s: float = 10.0
    patience_s: float = 60.0


@dataclass(slots=True, kw_only=True)
class Look:
    """What one look at the files has found."""

    at: float = field(default_factory=time.monotonic)
    """When the look began: what was written later may not have been seen."""
    is_new: bool = False
    is_behind: bool = False
    """More is there than was read: no step is complete."""


@dataclass(slots=True)
class Told:
    """The metrics of one source."""

    metrics: Metrics = field(default_factory=Metrics)
    is_growing: bool = False
    """Rows are added to it with every step; else it is read whole, and says nothing of when."""
    changed_at: float = 0.0

    def take(self, metrics: TableBuilder | None, written_at: float) -> bool:
        """Take in what the source says now; whether that is news.

        Args:
            metrics: Those of before, with more rows, or all rows read once more; None: nothing.
            written_at: When the source was written.
        """
        if not isinstance(metrics, Metrics):
            return False
        before, self.metrics = self.metrics, metrics
        if metrics is not before:
            same = {s for s in metrics.touched if metrics.values(s) == before.values(s)}
            metrics.touched = metrics.touched - same | before.touched
        if metrics.touched:
            self.changed_at = max(self.changed_at, written_at)
        return bool(metrics.touched)


@dataclass(frozen=True, slots=True)
class StepNews:
    """The first step of the run of which the files say more, or something else."""

    step: int
    is_again: bool
    """They say something else: the trainer has trained it again."""
    can_write: bool
    """All that the steps from there on were written from is known."""


class Ledger:
    """What was read of the trainer's steps, and what the run's were written from.

    Args:
        claims: of the run that is there; empty for a new one.
        roles: what a user says of the keys of rollouts.
    """

    def __init__(self, waits: Waits, claims: Mapping[int, Claim], roles: Roles) -> None:
        self.told: dict[str, Told] = {}
        """By the names of the sources."""
        self.claims: dict[int, Claim] = dict(claims)
        self.rollouts = Rollouts(
            claims=self.claims, roles=roles, is_reading_again=bool(self.claims)
        )
        self._waits = waits
        self._touched: set[int] = set()

    @property
    def newest(self) -> int:
        """The step that the metrics have come to; -1 where there are none."""
        return max((told.metrics.newest for told in self.told.values()), default=-1)

    @property
    def has_any(self) -> bool:
        """Whether a row of metrics or of rollouts was read."""
        return self.rollouts.num_rows > 0 or self.newest >= 0

    def of_step(self, step: int) -> set[str]:
        """The sources that tell of a step."""
        names = {name for name, told in self.told.items() if step in told.metrics.steps}
        return names | ({ROLLOUTS} if step in self.rollouts.steps else set())

    def waiting(self, last: int) -> list[int]:
        """Steps after `last`, in order."""
        steps = {step for told in self.told.values() for step in told.metrics.steps}
        return sorted(step for step in steps.union(self.rollouts.steps) if step > last)

    def numbers(self, step: int) -> dict[str, float]:
        """The trainer's numbers of a step. Where sources say the same name, one of them counts.

        A loss that broke is told; elsewhere what is not finite says nothing.
        """
        return {
            name: value
            for source in sorted(self.told)
            for name, value in self.told[source].metrics.values(step).items()
            if math.isfinite(value) or (math.isinf(value) and _may_break(name))
        }

    def written(self, step: int) -> None:
        """A step was written as it is now."""
        self.claims[step] = Claim(*self.rollouts.signature(step), self.numbers(step))
        self.rollouts.trim()

    def rewind(self, first: int) -> None:
        """Steps from `first` on are to be written once more."""
        for step in [step for step in self.claims if step >= first]:
            del self.claims[step]

    # --- is it complete?

    def is_complete(self, step: int, usual: AbstractSet[str], look: Look, pace_s: float) -> bool:
        """Whether all of a step was written.

        Args:
            usual: The sources of the step before; empty for the first one.
            pace_s: Seconds that a step takes; NaN where that is not known.
        """
        here, rollouts, line_quiet_s = self.of_step(step), self.rollouts, self._waits.line_quiet_s
        changed_at = {name: told.changed_at for name, told in self.told.items()}
        changed_at[ROLLOUTS] = rollouts.changed_at
        # Files that are read whole come when they come.
        at_once = {name for name, told in self.told.items() if not told.is_growing}
        missing = (usual - at_once or usual) - here
        quiet_s = look.at - max(changed_at[name] for name in here)
        others_s = look.at - max(changed_at.values())
        slow_s = 10 * pace_s if math.isfinite(pace_s) else 0.0
        if others_s >= max(self._waits.patience_s, slow_s):
            return True
        if self.newest > step:
            return not missing or others_s >= line_quiet_s
        if self.newest < 0 and rollouts.newest > step:
            return quiet_s >= line_quiet_s
        is_at_once = bool(here - {ROLLOUTS}) or rollouts.is_closed_kind
        return not missing and quiet_s >= (line_quiet_s if is_at_once else self._waits.quiet_s)

    # --- does the run say the same?

    def difference(self, look: Look) -> StepNews | None:
        """The first step of the run of which more was read than it was written from.

        Rows of rollouts count once no further ones come.
        """
        for told in self.told.values():
            self._touched |= told.metrics.touched
            told.metrics.touched.clear()
        if look.at - self.rollouts.changed_at >= self._waits.line_quiet_s:
            self._touched |= self.rollouts.touched
            self.rollouts.touched.clear()
            self.rollouts.is_reading_again = False
        touched = sorted(self._touched & self.claims.keys())
        self._touched.clear()
        for step in touched:
            claim, rows = self.claims[step], self.rollouts.signature(step)
            before = self.rollouts.signature(step, claim.num_rows)
            is_more = rows[0] > 0 and rows != (claim.num_rows, claim.rows)
            is_again = is_more and before != (claim.num_rows, claim.rows)
            if not self._says_the_same(step, claim):
                is_more = True
                is_again |= any(
                    told.metrics.began_again is not None and told.metrics.began_again <= step
                    for told in self.told.values()
                )
            if is_more:
                self._touched.update(touched)
                all_known = all(self.rollouts.is_known(s) for s in self.claims if s >= step)
                can_write = all_known and max(self.claims) - step < KEPT_STEPS
                return StepNews(step, is_again, can_write)
        return None

    def _says_the_same(self, step: int, claim: Claim) -> bool:
        """Whether the files say no number of a step that the run has not."""
        if claim.is_stored and not claim.numbers:
            return True  # too old to be compared
        return all(
            is_same(claim.numbers.get(name, math.nan), value)
            for name, value in self.numbers(step).items()
            if not (claim.is_stored and is_ours(name))
        )

    def begin_again(self, first: int) -> None:
        """The trainer began again at a step: the rows of rollouts of this step and later ones, as
        the run was written from them, are of the first attempt."""
        for step in [step for step in self.claims if step >= first]:
            claim = self.claims[step]
            if self.rollouts.signature(step) == (claim.num_rows, claim.rows):
                self.rollouts.forget(step)

    def leave(self, step: int) -> None:
        """A step stays as it was written, whatever came of it since then."""
        claim, (num_rows, rows) = self.claims[step], self.rollouts.signature(step)
        self.rollouts.num_late += max(0, num_rows - claim.num_rows)
        numbers = {**claim.numbers, **self.numbers(step)}
        self.claims[step] = replace(claim, num_rows=num_rows, rows=rows, numbers=numbers)


def _may_break(name: str) -> bool:
    meaning = meaning_of(name)
    return (name if meaning is None else meaning.key).startswith(("loss/", "optim/"))
