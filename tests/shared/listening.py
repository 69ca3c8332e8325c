"""Someone who watches a training run and keeps everything he is told."""

from __future__ import annotations

from echoscope.core.run.observers import SilentEvents
from echoscope.store.records import StepMetrics


class Listener(SilentEvents):
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.phases: list[tuple[int, str]] = []
        self.seen: list[StepMetrics] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def phase(self, step: int, name: str) -> None:
        self.phases.append((step, name))

    def metrics(self, metrics: StepMetrics) -> None:
        self.seen.append(metrics)
