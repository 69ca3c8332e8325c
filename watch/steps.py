"""When is a step complete? A step that is still being written is never judged.

| what is watched | a step is complete when |
| --- | --- |
| metrics, or metrics and rollouts | a row of metrics of a later step has come |
| rollouts only | a row of a later step has come, and none for `line_quiet_s` |
| the newest step | all files that told of the step before tell of this one, and are quiet |
| anything | nothing at all has come for `patience_s` and ten steps |

Quiet: `line_quiet_s` for metrics and for files that are written at once, `quiet_s` for rollouts
that are written row by row without metrics beside them.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .folder import ROLLOUTS, Numbers
from .rollouts import Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long to wait for what, in seconds."""

    line_quiet_s: float = 1.0
    quiet_s: float = 10.0
    patience_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What was read so far."""

    numbers: dict[str, Numbers]
    rollouts: Rollouts
    is_behind: bool
    """More is there than was read."""
    is_unopened: bool
    """Nothing at all was read yet of one of the files."""
    num_silent: int
    """Growing files of text that have told nothing yet."""

    def of_step(self, step: int) -> set[str]:
        """The sources that tell of a step."""
        names = {name for name, source in self.numbers.items() if step in source.window}
        return names | ({ROLLOUTS} if step in self.rollouts else set())

    def waiting(self, last: int) -> list[int]:
        """Steps after `last`, in order."""
        steps = {step for source in self.numbers.values() for step in source.window.steps}
        return sorted(step for step in steps.union(self.rollouts.steps) if step > last)

    def is_complete(
        self, step: int, usual: AbstractSet[str], waits: Waits, now: float, step_s: float
    ) -> bool:
        """Whether all of a step was written.

        Args:
            usual: The sources of the step before; empty for the first one.
            now: When the files were looked at, on the clock of the sources' `changed_at`.
            step_s: Seconds that a step takes; NaN where that is not known.
        """
        told = self.of_step(step)
        missing = self._grown(usual) - told
        quiet_s = now - max(self._changed_at(name) for name in told) if told else 0.0
        others_s = now - max(map(self._changed_at, {*self.numbers, ROLLOUTS}))
        pace_s = 10 * step_s if math.isfinite(step_s) else 0.0
        if self.is_behind:
            is_later = all(self._newest(name) > step for name in self._all())
            return is_later and not self.is_unopened
        if others_s >= max(waits.patience_s, pace_s):
            return True
        later = [name for name in self.numbers if self._newest(name) > step]
        if any(self._newest(name) >= 0 for name in self.numbers):
            if later:
                return not missing or others_s >= waits.line_quiet_s
        elif self.num_silent == 0 and self.rollouts.newest > step:
            return quiet_s >= waits.line_quiet_s
        if missing or (not usual and self.num_silent):
            return False
        has_numbers = bool(told - {ROLLOUTS})
        is_at_once = has_numbers or self.rollouts.is_closed_kind
        return quiet_s >= (waits.line_quiet_s if is_at_once else waits.quiet_s)

    def is_read(self, step: int, waits: Waits, now: float) -> bool:
        """Whether the metrics of a step were read, although more of the step may come."""
        told = self.of_step(step) - {ROLLOUTS}
        if not told or self.is_behind:
            return False
        if any(self._newest(name) > step for name in told):
            return True
        return now - max(map(self._changed_at, told)) >= waits.line_quiet_s

    def _grown(self, names: AbstractSet[str]) -> set[str]:
        """Those of the sources that grow with every step; files read whole come when they come."""
        grown = {
            name
            for name in names
            if name == ROLLOUTS or (name in self.numbers and self.numbers[name].text is not None)
        }
        return grown or set(names)

    def _all(self) -> set[str]:
        names = {name for name, source in self.numbers.items() if source.window.newest >= 0}
        return names | ({ROLLOUTS} if self.rollouts.num_rows else set())

    def _newest(self, name: str) -> int:
        return self.rollouts.newest if name == ROLLOUTS else self.numbers[name].window.newest

    def _changed_at(self, name: str) -> float:
        if name == ROLLOUTS:
            return self.rollouts.changed_at
        return self.numbers[name].changed_at if name in self.numbers else 0.0
