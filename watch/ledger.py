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

Each step of the run has a claim, which says what it was written from. A step is taken back where
the files say something else by now: the trainer trained it again, or a part of it came late.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from echoscope.diagnostics.read.foreign_names import meaning_of
from echoscope.diagnostics.read.names import is_ours
from echoscope.store.importers.format import Roles

from .metrics import Metrics
from .rollouts import KEPT_STEPS, Claim, Rollouts

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


class Ledger:
    """What was read of the trainer's steps, and what the run's were written from.

    Args:
        claims: of the run that is there; empty for a new one.
        stored: reads the numbers of its steps.
        roles: what a user says of the keys of rollouts.
    """

    def __init__(
        self,
        waits: Waits,
        claims: Mapping[int, Claim],
        stored: Callable[[], Mapping[int, Mapping[str, float]]],
        roles: Roles,
    ) -> None:
        self.metrics: dict[str, Metrics] = {}
        """By the names of the sources."""
        self.claims: dict[int, Claim] = dict(claims)
        self.rollouts = Rollouts(
            claims=self.claims, roles=roles, is_reading_again=bool(self.claims)
        )
        self._waits, self._stored = waits, stored
        self._unread: set[int] = set()
        """Steps of the run whose numbers no file says any more, or only some of them."""
        self._rested_at = 0.0
        """Rows of rollouts that came late are not added before: others may follow them."""

    @property
    def is_reading_again(self) -> bool:
        """The run is there already, and was not compared with the files yet."""
        return self.rollouts.is_reading_again

    @property
    def has_any(self) -> bool:
        """Whether a row of metrics or of rollouts was read."""
        return bool(self.rollouts.num_rows) or any(m.newest >= 0 for m in self.metrics.values())

    @property
    def _sources(self) -> dict[str, Metrics | Rollouts]:
        return {**self.metrics, ROLLOUTS: self.rollouts}

    def of_step(self, step: int) -> set[str]:
        """The sources that tell of a step."""
        return {name for name, source in self._sources.items() if step in source}

    def waiting(self, last: int) -> list[int]:
        """Steps after `last`, in order."""
        steps = {step for source in self._sources.values() for step in source.steps}
        return sorted(step for step in steps if step > last)

    def numbers(self, step: int) -> dict[str, float]:
        """The trainer's numbers of a step. Where sources say the same name, one of them counts.

        A loss that broke is told; elsewhere what is not finite says nothing.
        """
        return {
            name: value
            for source in sorted(self.metrics)
            for name, value in self.metrics[source].values(step).items()
            if math.isfinite(value) or (math.isinf(value) and _may_break(name))
        }

    def claim_of(self, step: int) -> Claim:
        """What the step would be written from now."""
        num_rows, rows = self.rollouts.signature(step)
        return Claim(num_rows, rows, _hash(self.numbers(step)))

    def written(self, step: int) -> None:
        """A step was handed over as it is now."""
        self.claims[step] = self.claim_of(step)
        self._unread.discard(step)

    def trim(self, last: int) -> None:
        """Forget the oldest of the steps up to `last`."""
        for source in self._sources.values():
            source.trim(last)

    def rewind(self, first: int) -> int:
        """Steps from `first` on are to be written once more; the last one that is left."""
        for step in [step for step in self.claims if step >= first]:
            del self.claims[step]
        return max(self.claims, default=first - 1)

    # --- is it complete?

    def is_complete(self, step: int, usual: AbstractSet[str], look: Look, pace_s: float) -> bool:
        """Whether all of a step was written.

        Args:
            usual: The sources of the step before; empty for the first one.
            pace_s: Seconds that a step takes; NaN where that is not known.
        """
        told, sources, line_quiet_s = self.of_step(step), self._sources, self._waits.line_quiet_s
        # Files that are read whole come when they come.
        growing = {name for name in usual & sources.keys() if sources[name].is_growing}
        missing = (growing or usual) - told
        num_silent = sum(m.newest < 0 and m.is_open for m in self.metrics.values())
        quiet_s = look.at - max((sources[name].changed_at for name in told), default=look.at)
        others_s = look.at - max(source.changed_at for source in sources.values())
        slow_s = 10 * pace_s if math.isfinite(pace_s) else 0.0
        if others_s >= max(self._waits.patience_s, slow_s):
            return True
        newest = max((metrics.newest for metrics in self.metrics.values()), default=-1)
        if newest > step:
            return not missing or others_s >= line_quiet_s
        if newest < 0 and num_silent == 0 and self.rollouts.newest > step:
            return quiet_s >= line_quiet_s
        if missing or (not usual and num_silent):
            return False
        is_at_once = bool(told - {ROLLOUTS}) or self.rollouts.is_closed_kind
        return quiet_s >= (line_quiet_s if is_at_once else self._waits.quiet_s)

    def is_read(self, step: int, look: Look) -> bool:
        """Whether the metrics of a step were read, although more of the step may come."""
        told = [metrics for metrics in self.metrics.values() if step in metrics]
        is_over = look.at - max((m.changed_at for m in told), default=look.at)
        return bool(told) and (
            is_over >= self._waits.line_quiet_s or any(m.newest > step for m in told)
        )

    # --- does the run say the same?

    def first_difference(self) -> int | None:
        """After a restart, once all files were read again: the first step of the run of which they
        say something else; None where there is none. What no file says any more still holds."""
        different = self.rollouts.compare()
        self._unread = {s for s, c in self.claims.items() if c.numbers != _hash(self.numbers(s))}
        different += self._contradicted(self._unread)
        for metrics in self.metrics.values():
            metrics.began_again = None
            metrics.changed.clear()
        return min(different, default=None)

    def _contradicted(self, steps: AbstractSet[int]) -> list[int]:
        """Those of the steps of which a file says a number that the run has not."""
        told = {step: numbers for step in steps if (numbers := self.numbers(step))}
        stored = self._stored() if told else {}
        return [
            step
            for step, numbers in told.items()
            if any(stored.get(step, {}).get(n) != v and not is_ours(n) for n, v in numbers.items())
        ]

    def began_again(self) -> int | None:
        """The step at which the trainer began again since the last call; None where it did not.

        All sources then forget what they said of the steps from there on in the first attempt.
        """
        self.rollouts.resolve()
        sources = self._sources.values()
        first = min((s.began_again for s in sources if s.began_again is not None), default=None)
        if first is None:
            return None
        for source in sources:
            if source.began_again is None:
                source.forget(first)
            source.began_again = None
        return first

    def late(self, look: Look) -> list[int]:
        """Steps of the run of which more was read since the last call, in order. Rows of rollouts
        count once no further ones come."""
        rollouts, changed = self.rollouts, set[int]()
        rested_s = look.at - max(rollouts.changed_at + self._waits.line_quiet_s, self._rested_at)
        for name, source in self._sources.items():
            if name != ROLLOUTS or rested_s >= 0:
                changed |= source.changed
                source.changed.clear()
        late = {s for s in changed & self.claims.keys() if self.claims[s] != self.claim_of(s)}
        late = (late - self._unread).union(self._contradicted(late & self._unread))
        if late:
            self._rested_at = look.at + self._waits.quiet_s
        return sorted(late)

    def can_write_again(self, first: int, last: int) -> bool:
        """Whether all that the steps of the run from `first` on were written from is known."""
        steps = [step for step in self.claims if first <= step <= last]
        return last - first < KEPT_STEPS and all(map(self.rollouts.is_known, steps))

    def leave(self, step: int) -> None:
        """A step stays as it was written, whatever came of it since then."""
        claim = self.claims[step]
        self.rollouts.leave(step)
        self.claims[step] = replace(claim, numbers=_hash(self.numbers(step)))


def _may_break(name: str) -> bool:
    meaning = meaning_of(name)
    return (name if meaning is None else meaning.key).startswith(("loss/", "optim/"))


def _hash(numbers: Mapping[str, float]) -> str:
    """Equal where numbers are."""
    text = json.dumps(sorted((name, repr(value)) for name, value in numbers.items()))
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
