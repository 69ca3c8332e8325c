"""A step of another trainer as it is written: by an import, a recorder or a watch."""

from __future__ import annotations

from dataclasses import dataclass, field

from echoscope.store.importers.steps.episodes import StepEpisodes
from echoscope.store.query.metric_keys import EVALUATIONS
from echoscope.store.records import Alarm, DiagnosticRecord, StepMetrics
from echoscope.store.writer import RunWriter


@dataclass(slots=True, kw_only=True)
class ForeignStep:
    """A step. Its reader adds what it measures to `values` and `records`."""

    content: StepEpisodes
    values: dict[str, float]
    """What is counted from the episodes, joined with what the trainer says."""
    records: list[DiagnosticRecord]
    alarms: list[Alarm] = field(default_factory=list)
    """Those that it raises or clears."""
    at: float
    """When it ended, in seconds since the epoch."""
    phase: str = ""
    """Of all numbers; "" where the key of each says whether it is of an evaluation."""

    def metrics(self, run_id: str) -> list[StepMetrics]:
        """Its numbers as records, one a phase."""
        phases: dict[str, dict[str, float]] = {self.phase or "train": {}}
        for key, value in self.values.items():
            phase = self.phase or ("eval" if key.startswith(EVALUATIONS) else "train")
            phases.setdefault(phase, {})[key] = value
        step, at = self.content.step, self.at
        return [
            StepMetrics(run_id=run_id, step=step, phase=phase, wall_time=at, values=values)
            for phase, values in phases.items()
        ]

    def write(self, writer: RunWriter) -> None:
        """Hand the step to the writer. Raises StoreError where the disk refuses."""
        writer.commit_step(
            metrics=self.metrics(writer.run_id),
            trajectories=self.content.trajectories,
            outcomes=self.content.outcomes,
            alarms=self.alarms,
            diagnostics=self.records,
        )
