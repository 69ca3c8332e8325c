"""The sinks of one run: W&B, TensorBoard and trackio beside the store.

Each sink has a process and a thread of its own, so that one that hangs, refuses or dies holds up
neither the training nor another sink. Calls return at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from echoscope.store.records import Alarm, StepMetrics, Trajectory

from ..judge.record import Verdict
from .process import SinkProcess
from .records import alarm_record, episodes_record, opening, step_record, verdict_record
from .settings import SinkName, SinksConfig, require_packages
from .status import FOLDER, SinkStatus, read_status


class Mirror:
    """Copies a run to every sink that is on.

    Args:
        run_path: the run's folder; sinks without a folder of their own write below it.
        run_config: what the run was started with, as JSON values.
        on_message: told of what goes wrong, from threads of the sinks.

    Raises:
        SinkError: a sink is on whose package is not installed.
    """

    def __init__(
        self,
        config: SinksConfig,
        *,
        run_path: Path,
        run_config: Mapping[str, Any],
        on_message: Callable[[str], None],
    ) -> None:
        require_packages(config)
        self._config, self._run_path = config, run_path
        self._run_config, self._say = run_config, on_message
        self._sinks: list[SinkProcess] | None = None

    @property
    def is_on(self) -> bool:
        return bool(self._config.active())

    def step(
        self,
        metrics: Sequence[StepMetrics],
        *,
        trajectories: Sequence[Trajectory] = (),
        alarms: Sequence[Alarm] = (),
        verdict: Callable[[], Verdict] | None = None,
    ) -> None:
        """Copy a step: its numbers, what was raised and cleared, the verdict, some episodes.

        Args:
            metrics: of one step, training and evaluation.
            verdict: what is known of the run now; called only where a sink is on.
        """
        if not self.is_on:
            return
        try:
            self._put(metrics, trajectories, alarms, verdict)
        except Exception as error:  # noqa: BLE001 - a copy is never worth a run; it is said
            self._say(f"sinks: a step was not copied: {type(error).__name__}: {error}")

    def _put(
        self,
        metrics: Sequence[StepMetrics],
        trajectories: Sequence[Trajectory],
        alarms: Sequence[Alarm],
        verdict: Callable[[], Verdict] | None,
    ) -> None:
        config, step = self._config, metrics[0].step
        values = {key: value for one in metrics for key, value in one.values.items()}
        for one in metrics:
            values |= one.durations_s
        known = None if verdict is None else verdict()
        for sink in self._started():
            for alarm in alarms:
                sink.put(partial(alarm_record, alarm))
            if known is not None:
                sink.put(partial(verdict_record, known))
            if config.episodes and trajectories and is_due(step, config.episodes_every):
                sink.put(partial(episodes_record, step, trajectories, config))
            # The numbers come last: they end the row of a step.
            sink.put(
                partial(step_record, step, values, trajectories, ragen_names=config.ragen_names)
            )

    def statuses(self) -> list[SinkStatus]:
        """How far each sink has come."""
        return [sink.status for sink in self._sinks or ()]

    @property
    def num_waiting(self) -> int:
        """Records that the slowest sink has not taken yet."""
        return max((sink.num_waiting for sink in self._sinks or ()), default=0)

    def close(self, status: str) -> None:
        """End all sinks together; waits at most `finish_s`."""
        for sink in self._sinks or ():
            sink.close(status)
        deadline = time.monotonic() + self._config.finish_s
        for sink in self._sinks or ():
            sink.join(max(0.0, deadline - time.monotonic()))

    def _started(self) -> list[SinkProcess]:
        """The sinks. Their processes start with the first step, so a failed start leaves none."""
        if self._sinks is None:
            self._sinks = [self._start(name) for name in self._config.active()]
        return self._sinks

    def _start(self, name: SinkName) -> SinkProcess:
        before = read_status(self._run_path, name) or SinkStatus(sink=name)
        record = opening(
            self._config,
            name,
            run=self._run_path.name,
            folder=str(self._run_path.resolve() / FOLDER),
            run_config=self._run_config,
        )
        return SinkProcess(
            record | {"identity": before.identity, "last_step": before.last_step},
            run_path=self._run_path,
            status=before.changed(state="running", problem=""),
            timeout_s=self._config.timeout_s,
            on_message=self._say,
        )


def is_due(step: int, every: int) -> bool:
    """At the first step, and at every multiple."""
    return step == 1 or step % every == 0
