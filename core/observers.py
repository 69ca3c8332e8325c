"""Whoever watches the rollouts of a step before they train: the seam for the diagnostics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..diagnostics.selection import Selection
from ..store.records import RolloutBatch
from .batch import TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepObservation:
    """A step at the weights that sampled it: all groups, kept or not."""

    step: int
    rollouts: RolloutBatch
    selection: Selection
    batch: TokenBatch | None
    """Rows of the kept trajectories; None if nothing trains."""


class StepObserver(Protocol):
    """Sees each step before its update. Its state is part of every checkpoint."""

    @property
    def name(self) -> str: ...

    def observe(self, seen: StepObservation) -> dict[str, float]:
        """Metrics of the step, by key."""
        ...

    def state(self) -> Any:
        """What it must remember, as JSON values."""
        ...

    def restore(self, state: Any) -> None: ...
