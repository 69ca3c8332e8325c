"""What a training step came to, how long it took, and what becomes of its numbers: they are judged,
written down, copied, told, and acted on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor

from echoscope.diagnostics.measure.machine import Machine
from echoscope.diagnostics.sinks.mirror import Mirror
from echoscope.store.errors import StoreError
from echoscope.store.records import (
    AlarmState,
    Command,
    CommandAction,
    DiagnosticRecord,
    StepMetrics,
    Trajectory,
    TrajectoryOutcome,
)
from echoscope.store.steer.commands import post
from echoscope.store.writer import RunWriter

from ..config.settings import RunConfig
from ..rollout.curriculum import curriculum_metrics, note_success
from ..update.assemble import fresh_tokens, outcomes
from ..update.kl import mean_kl
from ..update.metrics import rollout_metrics, staleness_metrics
from ..update.update import UpdateResult, mismatch_metrics
from .checkpoint import Progress
from .guard import Guard
from .keeping import Checkpoints
from .observers import (
    Judged,
    Observed,
    StepObservation,
    StepObserver,
    TrainEvents,
    judge,
)


@dataclass(slots=True)
class Stopwatch:
    """Seconds of a step by phase."""

    on_phase: Callable[[str], None] = lambda name: None
    """Told each phase as it begins."""
    # Looked up when a step starts: a benchmark lets the clock count processor time.
    started: float = field(default_factory=lambda: time.perf_counter())
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.on_phase(name)
        begun = time.perf_counter()
        yield
        key = f"time/{name}_s"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - begun

    def total(self) -> float:
        return time.perf_counter() - self.started


@dataclass(slots=True, kw_only=True)
class RunClock:
    """How long this process has trained, evaluations left out."""

    machine: Machine
    """Says how busy it was meanwhile."""
    total_s: float = 0.0
    diagnostics_s: float = 0.0
    """... of which it measured and judged."""

    def timed(self, seen: StepObservation, watch: Stopwatch) -> StepObservation:
        """What observers see, with the seconds until now."""
        trained_s = self.total_s - self.diagnostics_s + watch.total()
        return replace(seen, rollout_s=watch.seconds["time/rollout_s"], trained_s=trained_s)

    def durations(
        self, watch: Stopwatch, observed: Observed, num_tokens: float
    ) -> dict[str, float]:
        """`time/*` and `system/*` of a step that ends now."""
        seconds = watch.total()
        self.diagnostics_s += watch.seconds["time/diagnostics_s"]
        self.total_s += seconds
        of_step = {
            "time/step_s": seconds,
            "time/diagnostics_frac": self.diagnostics_s / self.total_s,
            "time/tokens_per_s": num_tokens / seconds,
        }
        return watch.seconds | observed.durations_s | of_step | self.machine.take_metrics()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A step after its update."""

    seen: StepObservation
    """... and before: its configuration has the groups that each environment got."""
    observed: Observed
    result: UpdateResult
    annotated: Tensor | None
    """(B, T) log-probs of the trainer that `annotate` has computed; None where it had no need."""

    @property
    def logprobs(self) -> Tensor | None:
        """(B, T) of the trainer at the weights before the update; None where no pass made them."""
        return self.result.trainer_logprobs if self.annotated is None else self.annotated

    def after(self, progress: Progress) -> Progress:
        """What the loop carries on to the next step."""
        return replace(
            progress,
            num_nonfinite=progress.num_nonfinite + 1 if self.result.num_skipped else 0,
            success_by_tag=note_success(progress.success_by_tag, self.seen.rollouts),
        )

    def metrics(self, success_by_tag: Mapping[str, float]) -> dict[str, float]:
        """All numbers of the step but durations.

        Args:
            success_by_tag: the curriculum's running success, this step included.
        """
        config, rollouts, version = self.seen.config, self.seen.rollouts, self.result.version
        selection, batch = self.seen.selection, self.seen.batch
        values = self.observed.values | self.result.metrics | rollout_metrics(rollouts)
        values |= selection.metrics()
        is_fresh = None
        if config.from_run is None:
            is_fresh = fresh_tokens(batch, rollouts, selection, version)
            values |= staleness_metrics(rollouts, version)
        values |= mismatch_metrics(self.logprobs, batch, is_fresh)
        counts = [entry.groups for entry in config.envs.train]
        values |= curriculum_metrics(config, counts, success_by_tag)
        if config.dynamic_sampling.max_rounds > 1:
            values["rollout/num_rounds"] = rollouts.num_groups / sum(counts)
        if config.reward.kl is not None:
            values["reward/kl"] = mean_kl(batch, config.reward.kl)
        return values

    def outcomes(self) -> list[TrajectoryOutcome]:
        """What was learned of each trajectory."""
        seen, information = self.seen, self.observed.information
        return outcomes(seen.rollouts, seen.selection, seen.batch, self.logprobs, information)

    def messages(self, num_nonfinite: int, most_tokens: int | None) -> Iterator[str]:
        """Sentences about an update that was not as planned.

        Args:
            num_nonfinite: such steps in a row, this one included.
            most_tokens: of a forward pass, since memory ran out.
        """
        values, step, seen = self.result.metrics, self.seen.step, self.seen
        if not seen.batch.num_rows:
            yield f"step {step}: no update, {seen.selection.reason or 'nothing to train'}"
        if values["optim/num_oom_retries"]:
            yield (
                f"step {step}: the update ran out of memory and was made again with at most "
                f"{most_tokens} tokens per forward pass, as later ones will be; "
                f"optim.max_microbatch_tokens={most_tokens} avoids this"
            )
        if self.result.num_skipped:
            kinds = ("num_updates", "num_skipped", "num_without_gradient")
            num_tried = round(sum(values[f"optim/{kind}"] for kind in kinds))
            yield (
                f"step {step}: {self.result.num_skipped} of {num_tried} updates skipped, the "
                f"gradient was NaN or infinite ({num_nonfinite} such steps in a row)"
            )


@dataclass(slots=True, kw_only=True)
class StepLog:
    """Where the numbers of a step go."""

    writer: RunWriter
    observers: Sequence[StepObserver]
    """Judge them."""
    events: TrainEvents
    """Tells people."""
    mirror: Mirror
    """Copies each step to other tools."""
    guard: Guard
    checkpoints: Checkpoints
    clock: RunClock

    def commit(
        self,
        config: RunConfig,
        metrics: Sequence[StepMetrics],
        trajectories: Sequence[Trajectory],
        learned: Sequence[TrajectoryOutcome] = (),
        diagnostics: Sequence[DiagnosticRecord] = (),
    ) -> None:
        """Judge a step and write it down; then post what alarms want done."""
        started = time.perf_counter()
        judged = judge(self.observers, metrics, config)
        self.clock.diagnostics_s += time.perf_counter() - started
        self.writer.commit_step(
            metrics=metrics,
            trajectories=trajectories,
            outcomes=learned,
            alarms=judged.alarms,
            diagnostics=diagnostics,
        )
        self.mirror.step(
            metrics, trajectories=trajectories, alarms=judged.alarms, verdict=judged.verdict
        )
        for alarm in judged.alarms:
            is_raised = alarm.state is AlarmState.RAISED
            self.events.message(f"{alarm.severity}: " * is_raised + alarm.message)
            advice = self.checkpoints.last_good_words(alarm, config.checkpoint.every)
            if advice:
                self.events.message(advice)
        for command in (*judged.commands, *self._guarded(judged, config)):
            try:
                post(self.writer.path, command)
            except StoreError as error:
                self.events.message(f"cannot {command.action} for {command.issued_by}: {error}")

    def _guarded(self, judged: Judged, config: RunConfig) -> Sequence[Command]:
        """What the guard does about an alarm that stays; a stop that a rule ordered comes first."""
        is_over = any(command.action is CommandAction.STOP for command in judged.commands)
        if is_over or not judged.critical or config.guard.mode == "off":
            return ()
        self.writer.flush()  # it reads the run, this step included
        self.checkpoints.settle(waits=True)
        return self.guard.commands(judged.critical, config)
