"""What a training run tells whoever watches it in this process."""

from __future__ import annotations

from typing import Protocol

from echoscope.store.records import StepMetrics


class TrainEvents(Protocol):
    """Receives the run's progress. It never steers, and it must not raise."""

    def message(self, text: str) -> None:
        """One sentence worth reading."""
        ...

    def phase(self, step: int, name: str) -> None:
        """What the loop does now: rollout, update, evaluate, probe, checkpoint, paused."""
        ...

    def metrics(self, metrics: StepMetrics) -> None:
        """Numbers of a finished step or evaluation."""
        ...


class SilentEvents:
    """Nobody watches."""

    def message(self, text: str) -> None:
        pass

    def phase(self, step: int, name: str) -> None:
        pass

    def metrics(self, metrics: StepMetrics) -> None:
        pass
