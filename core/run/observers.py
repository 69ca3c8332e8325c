"""Who watches a run: views of its progress, and observers of each step.

An observer sees a step before it trains, and judges its numbers when they are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.selection.filter import Selection
from echoscope.store.records import (
    Alarm,
    Command,
    DiagnosticRecord,
    FloatArray,
    RolloutBatch,
    StepMetrics,
)

from ..config.settings import RunConfig
from ..update.batch import TokenBatch


class TrainEvents(Protocol):
    """Receives the run's progress. It never steers, and it must not raise."""

    def message(self, text: str) -> None:
        """One sentence worth reading."""
        return

    def phase(self, step: int, name: str) -> None:
        """What the loop does now: rollout, annotate, diagnostics, update, evaluate, probe,
        checkpoint, `paused by WHO`."""
        return

    def progress(self, done: int, of: int, what: str) -> None:
        """So many of so many `what` (episodes, say) are done. From any thread, often."""
        return

    def metrics(self, metrics: StepMetrics) -> None:
        """Numbers of a finished step or evaluation."""
        return


class SilentEvents(TrainEvents):
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepObservation:
    """A step at the weights that sampled it: all groups, kept or not."""

    step: int
    config: RunConfig
    """With all live changes so far."""
    rollouts: RolloutBatch
    selection: Selection
    batch: TokenBatch
    """Rows of the kept trajectories; none if nothing trains."""
    rollout_s: float = math.nan
    """Seconds that the rollouts took."""
    trained_s: float = math.nan
    """Seconds of training in this process so far, without diagnostics."""


@dataclass(slots=True, kw_only=True)
class Observed:
    """What watching a step found."""

    values: dict[str, float] = field(default_factory=dict)
    """Metrics by key."""
    durations_s: dict[str, float] = field(default_factory=dict)
    diagnostics: list[DiagnosticRecord] = field(default_factory=list)
    information: dict[str, tuple[FloatArray, ...]] = field(default_factory=dict)
    """Trajectory id to nats per sampled token, one array per turn."""


@dataclass(slots=True, kw_only=True)
class Judged:
    """What a step's numbers mean, and what is to be done."""

    alarms: list[Alarm] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    """Posted like a person's, to be applied before the next step."""
    critical: tuple[str, ...] = ()
    """Ids of the critical alarms that are open, the worst first."""
    verdict: Callable[[], Verdict] | None = None
    """What is known of the run after this step; None from an observer that does not judge."""


class StepObserver:
    """Sees each step before its update. Its state is part of every checkpoint."""

    name: str

    def observe(self, seen: StepObservation) -> Observed:
        """Look at a step. The policy is as it sampled, and must be left so."""
        return Observed()

    def judge(self, metrics: Sequence[StepMetrics], config: RunConfig) -> Judged:
        """Judge the whole numbers of a step, evaluation included, before they are written.

        Step 0 is an evaluation alone.
        """
        return Judged()

    def state(self) -> Any:
        """What it must remember, as JSON values."""
        return None

    def restore(self, state: Any) -> None:
        """Take back what `state` gave."""

    def begin_branch(self, changed: Mapping[str, tuple[Any, Any]]) -> None:
        """What was restored is the parent's; `changed` says what differs by dotted key."""

    def tell(self, text: str) -> None:
        """Tell people who do not look at the terminal. It never waits, and never raises."""

    def close(self, status: str) -> None:
        """The run has ended so; it may take a few seconds to finish."""


def observe(observers: Iterable[StepObserver], seen: StepObservation) -> Observed:
    """What all of them found."""
    out = Observed()
    for observer in observers:
        observed = observer.observe(seen)
        out.values |= observed.values
        out.durations_s |= observed.durations_s
        out.diagnostics += observed.diagnostics
        out.information |= observed.information
    return out


def judge(
    observers: Iterable[StepObserver], metrics: Sequence[StepMetrics], config: RunConfig
) -> Judged:
    """What all of them say to a step's numbers."""
    out = Judged()
    for observer in observers:
        judged = observer.judge(metrics, config)
        out.alarms += judged.alarms
        out.commands += judged.commands
        out.critical += judged.critical
        out.verdict = judged.verdict or out.verdict
    return out
