"""The training loop of StarPO.

commands -> collect -> select -> pack -> annotate -> advantages -> observe -> update -> sync -> log
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from echoscope.diagnostics.measure.machine import Machine
from echoscope.diagnostics.selection.filter import select_groups
from echoscope.diagnostics.sinks.mirror import Mirror
from echoscope.store.checkpoints import evaluation_success
from echoscope.store.errors import StoreError
from echoscope.store.log.layout import shown_path
from echoscope.store.reader import open_run
from echoscope.store.records import (
    REQUESTED,
    AlarmState,
    Command,
    CommandAction,
    DiagnosticRecord,
    RolloutBatch,
    SettingsRecord,
    Split,
    StepMetrics,
    Trajectory,
    TrajectoryOutcome,
)
from echoscope.store.steer.commands import post
from echoscope.store.steer.rewinds import asked_rewind
from echoscope.store.writer import RunWriter
from echoscope.text.user_code import UserCodeError

from ..config.loading import live_values
from ..config.settings import RunConfig
from ..engines.base import Engine, EngineError
from ..policy import Policy
from ..rollout.ahead import SharedEngine
from ..rollout.chat import ChatFormat
from ..rollout.curriculum import with_groups
from ..rollout.evaluate import evaluation_metrics
from ..rollout.sources import RolloutSource, Sources, StepDroppedError, unreserved
from ..update.assemble import pack_kept, with_advantages
from ..update.learners.alone import Learner
from ..update.update import updates_per_step
from .checkpoint import CheckpointError, Checkpoints, Progress, TrainState
from .control import Control, StepInterruptedError, Wishes
from .evaluations import Evaluations
from .guard import Guard, why_no_rewind
from .observers import Judged, StepObservation, StepObserver, TrainEvents, judge, observe
from .step import Stopwatch, TrainedStep

MAX_NONFINITE_STEPS = 5
"""Steps in a row with a NaN or infinite gradient after which a run stops."""
_BY_SETTINGS = ("start", "schedule", "time", "best")
"""Reasons of checkpoints that nobody waits for."""
_Played = tuple[Split, RolloutBatch, StepMetrics]
"""An evaluation or a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is slow to load: the policy at its starting weights, what trains it, how it chats."""

    learner: Learner
    chat: ChatFormat

    @property
    def policy(self) -> Policy:
        """The whole weights, which sample and are scored."""
        return self.learner.policy


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One run in this process. Build it with `start` or `resume` of `core.run.launch`."""

    config: RunConfig
    run_path: Path
    writer: RunWriter
    model: Model
    engine: Engine | SharedEngine
    sources: Sources
    control: Control
    events: TrainEvents
    checkpoints: Checkpoints
    observers: Sequence[StepObserver] = ()
    machine: Machine
    mirror: Mirror
    """Copies each step to other tools."""
    progress: Progress = field(default_factory=Progress)
    total_s: float = 0.0
    """Seconds of this process so far, evaluations left out."""
    diagnostics_s: float = 0.0
    """... of which it measured and judged."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    guard: Guard
    journaled_settings: Mapping[str, Any] | None = None
    """The live settings that this attempt has written down."""
    weights_are_of_step: bool = True
    """The weights are those of the last finished step; not while a step moves them."""
    evaluate_next: bool = False
    """A command asked for an evaluation with the next step."""

    @property
    def step(self) -> int:
        """The last finished step."""
        return self.progress.step

    def begin_at(self, state: TrainState) -> None:
        """Go on from a checkpoint whose weights are in place."""
        self.engine.sync_weights(self.model.policy)
        self.progress = state.progress
        self.checkpoints.saved_step = state.step

    def run(self, *, is_new: bool) -> str:
        """Train to the last step, or until told to stop; returns the run's final status.

        Args:
            is_new: evaluate and probe the starting policy, as step 0, if so configured.
        """
        self._say_unreserved()
        if is_new:
            self._measure_start()
            if self.config.checkpoint.every or self.config.guard.mode != "off":
                self._write_checkpoint("start")  # a collapse may come before the next one
        else:
            self._recall_success()
        try:
            status = self._until_over()
        except BaseException:
            with suppress(OSError):  # the run ends for another reason
                self.checkpoints.settle(waits=True)
            raise
        self.checkpoints.settle(waits=True)
        why = f"the run has {status}" if status == "failed" else f"the run is {status}"
        self.writer.record_acks(*self.control.refuse_waiting(self.step + 1, why))
        return status

    def _say_unreserved(self) -> None:
        try:
            with self.control.droppable():
                line = unreserved(self.sources.train, self.sources.eval)
        except StepInterruptedError:
            return  # the command that asked for it is applied at the boundary
        if line:
            self.events.message(line)

    def _until_over(self) -> str:
        while True:
            wishes = self._boundary()
            if CommandAction.STOP_NOW in wishes.asked:
                self._checkpoint("interrupt")
                return "stopped"
            if CommandAction.REWIND in wishes.asked:
                self._checkpoint_before_rewind()
                return "stopped"
            is_last = self.step >= self.config.steps
            if CommandAction.STOP in wishes.asked or (is_last and not self.control.is_paused):
                self._checkpoint("final" if is_last else "stop")
                return "finished" if is_last else "stopped"
            if self.control.is_paused:
                continue
            try:
                self._train_step(self.step + 1)
            except StepDroppedError:
                continue  # the command that asked for it is applied at the boundary
            except (UserCodeError, EngineError):
                self._save_before_failing()
                raise
            num_nonfinite = self.progress.num_nonfinite
            if num_nonfinite >= MAX_NONFINITE_STEPS:
                self.events.message(
                    f"stopped: {num_nonfinite} steps in a row had a NaN or infinite gradient; "
                    "lower optim.lr and resume from the last checkpoint"
                )
                return "failed"

    def _checkpoint_before_rewind(self) -> None:
        """So that whoever wants the untreated run back may resume it; not worth the treated one."""
        try:
            self._checkpoint("stop")
        except CheckpointError as error:
            self.events.message(f"the last step has no checkpoint: {error}")

    def _save_before_failing(self) -> None:
        """The weights of the last finished step, if the step that failed has not moved them."""
        if not self.weights_are_of_step:
            return
        self.model.learner.forget_gradients()
        try:
            self._checkpoint("interrupt")
        except UserCodeError as error:  # of an observer's state; another one is being told already
            self.events.message(f"no checkpoint was written: {error}")

    def _train_step(self, step: int) -> None:
        config, watch = with_groups(self.config, self.progress.success_by_tag), Stopwatch()
        version = self.model.policy.version
        with self._phase(step, "rollout", watch):
            rollouts = self._collect(self.sources.train, step, config)
        with self._phase(step, "annotate", watch):
            selection = select_groups(rollouts, config.selection)
            batch, left_out = pack_kept(rollouts, selection, config, self.model.chat)
            batch, logprobs = self.model.learner.annotate(batch, config)
            batch = with_advantages(batch, config, left_out)
        with self._phase(step, "diagnostics", watch):
            seen = StepObservation(
                step=step,
                config=config,
                rollouts=rollouts,
                selection=selection,
                batch=batch,
                rollout_s=watch.seconds["time/rollout_s"],
                trained_s=self.total_s - self.diagnostics_s + watch.total(),
            )
            observed = observe(self.observers, seen)
        with self._phase(step, "update", watch):
            # Nothing fails after the only update of a step.
            self.weights_are_of_step = updates_per_step(config) == 1
            result = self.model.learner.update(batch, config, step)
            self.weights_are_of_step = False
            self.engine.sync_weights(self.model.policy)
        trained = TrainedStep(
            step=step,
            config=config,
            version=version,
            rollouts=rollouts,
            selection=selection,
            batch=batch,
            observed=observed,
            result=result,
            logprobs=result.trainer_logprobs if logprobs is None else logprobs,
        )
        self.progress = trained.after(self.progress)
        values = trained.metrics(self.progress.success_by_tag)
        values |= self.engine.take_metrics() | self.sources.train.take_metrics()
        self._finish_step(trained, values, watch)
        for sentence in trained.messages(
            num_nonfinite=self.progress.num_nonfinite, most_tokens=self.model.policy.most_tokens
        ):
            self.events.message(sentence)

    @contextmanager
    def _phase(self, step: int, name: str, watch: Stopwatch) -> Iterator[None]:
        self.events.phase(step, name)
        with watch(name):
            yield

    def _collect(self, source: RolloutSource, step: int, config: RunConfig) -> RolloutBatch:
        """Play episodes; the weights rest meanwhile, so they may be cut off at any instant.

        Raises:
            StepDroppedError: a command dropped them, or a second Ctrl-C cut in.
        """
        try:
            with self.control.droppable():
                return source.collect(step, config)
        except StepInterruptedError:
            raise StepDroppedError from None

    def _finish_step(
        self, trained: TrainedStep, values: dict[str, float], watch: Stopwatch
    ) -> None:
        """Evaluate and probe if it is time, write the step down, then checkpoint if it is time."""
        step = trained.step
        is_last = step >= self.config.steps
        seconds = watch.total()
        self.diagnostics_s += watch.seconds["time/diagnostics_s"]
        self.total_s += seconds
        durations = watch.seconds | trained.observed.durations_s
        durations |= {
            "time/step_s": seconds,
            "time/diagnostics_frac": self.diagnostics_s / self.total_s,
            "time/tokens_per_s": values["rollout/num_sampled_tokens"] / seconds,
        } | self.machine.take_metrics()
        metrics = [self._metrics(step, "train", values, durations)]
        trajectories = trained.rollouts.trajectories
        every = self.config.eval.every  # 0 for none, at the end neither
        is_due = self.evaluate_next or _is_due(step, every) or (is_last and every > 0)
        for split, played, of_split in self._measure(
            step, evaluates=is_due, probes=_is_due(step, self.config.probe.every)
        ):
            metrics.append(of_split)
            trajectories += played.trajectories
            self.evaluate_next &= split is not Split.EVAL
        self._commit(metrics, trajectories, trained.outcomes(), trained.observed.diagnostics)
        self.progress, self.weights_are_of_step = replace(self.progress, step=step), True
        for each in metrics:
            self.events.metrics(each)
        self.evaluations.note(metrics)
        self.checkpoints.unsaved_s += watch.total()
        if _is_due(step, self.config.checkpoint.every):
            self._checkpoint("schedule")
        elif 0 < 60 * self.config.checkpoint.minutes <= self.checkpoints.unsaved_s:
            self._checkpoint("time")
        elif self.config.checkpoint.best and self.evaluations.is_best:
            self._checkpoint("best")

    def _measure(self, step: int, *, evaluates: bool, probes: bool) -> list[_Played]:
        """Play what is wanted of evaluation and probe, unless a command drops it."""
        out: list[_Played] = []
        kinds = (
            (Split.EVAL, evaluates, self.sources.eval, "evaluate", "evaluation"),
            (Split.PROBE, probes, self.sources.probe, "probe", "probe"),
        )
        for split, is_due, source, verb, noun in kinds:
            if source is None or not is_due:
                continue
            self.events.phase(step, verb)
            watch = Stopwatch()
            try:
                played = self._collect(source, step, self.config)
            except StepDroppedError:
                when = f"of step {step}" if step else "before the first step"
                self.events.message(f"the {noun} {when} was dropped")
                break
            pass_at = self.config.eval.pass_at_k if split is Split.EVAL else ()
            values = evaluation_metrics(played, split, pass_at=pass_at)
            metrics = self._metrics(step, "eval", values, {f"time/{verb}_s": watch.total()})
            out.append((split, played, metrics))
        return out

    def _measure_start(self) -> None:
        """The starting policy's success, as step 0."""
        config = self.config
        out = self._measure(0, evaluates=config.eval.before, probes=config.probe.every > 0)
        metrics = [of_split for _, _, of_split in out]
        if metrics:
            self._commit(metrics, [t for _, played, _ in out for t in played.trajectories])
        self.evaluations.note(metrics)
        self.evaluations.saved()
        for each in metrics:
            self.events.metrics(each)

    def _recall_success(self) -> None:
        """What an earlier attempt has evaluated, up to the step that this one goes on from."""
        rates = evaluation_success(open_run(self.run_path))
        before = {step: rate for step, rate in rates.items() if step <= self.step}
        self.evaluations = Evaluations.recalled(before, self.checkpoints.steps())

    def _commit(
        self,
        metrics: Sequence[StepMetrics],
        trajectories: Sequence[Trajectory],
        learned: Sequence[TrajectoryOutcome] = (),
        diagnostics: Sequence[DiagnosticRecord] = (),
    ) -> None:
        """Judge a step and write it down; then post what alarms want done."""
        started = time.perf_counter()
        judged = judge(self.observers, metrics, self.config)
        self.diagnostics_s += time.perf_counter() - started
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
            advice = self.checkpoints.last_good_words(alarm, self.config.checkpoint.every)
            if advice:
                self.events.message(advice)
        for command in (*judged.commands, *self._guarded(judged)):
            try:
                post(self.run_path, command)
            except StoreError as error:
                self.events.message(f"cannot {command.action} for {command.issued_by}: {error}")

    def _guarded(self, judged: Judged) -> Sequence[Command]:
        """What the guard does about an alarm that stays; a stop that a rule ordered comes first."""
        is_over = any(command.action is CommandAction.STOP for command in judged.commands)
        if is_over or not judged.critical or self.config.guard.mode == "off":
            return ()
        self.writer.flush()  # it reads the run, this step included
        self.checkpoints.settle(waits=True)
        return self.guard.commands(judged.critical, self.config)

    def _metrics(
        self, step: int, phase: str, values: dict[str, float], durations: dict[str, float]
    ) -> StepMetrics:
        return StepMetrics(
            run_id=self.writer.run_id,
            step=step,
            phase=phase,
            policy_version=self.model.policy.version,
            values=values,
            durations_s=durations,
        )

    def _boundary(self) -> Wishes:
        """Apply waiting commands; they take effect with the next step."""
        self.checkpoints.settle()
        wishes = self.control.boundary(
            self.step + 1,
            self.config,
            on_acks=lambda acks, commands, config: self.writer.record_acks(
                acks, commands, self._new_settings(config)
            ),
            on_pause=lambda who: self.events.phase(self.step, f"paused by {who}"),
            why_no_rewind=partial(why_no_rewind, self.run_path),
        )
        self.config = wishes.config
        # What an attempt begins with, and what it applies again, nobody has to be answered for.
        self.writer.record_acks((), settings=self._new_settings(wishes.config))
        self.evaluate_next |= CommandAction.EVALUATE in wishes.asked
        if CommandAction.CHECKPOINT in wishes.asked:
            self._checkpoint(REQUESTED)
        elif wishes.paused_by_alarm:
            self._checkpoint("alarm")
        if wishes.paused_by_alarm:
            ctl = f"echoscope ctl {shown_path(self.run_path)}"
            asks = asked_rewind(open_run(self.run_path)) is not None
            self.events.message(
                f"{wishes.paused_by_alarm} paused the run after step {self.step}, with a "
                f"checkpoint; {f'`{ctl} rewind` treats it, ' * asks}`{ctl} resume` goes on"
                f"{' without' * asks}, `{ctl} stop` ends it"
            )
        return wishes

    def _new_settings(self, config: RunConfig) -> SettingsRecord | None:
        """The live settings from the next step on; None where the journal has them already."""
        values = live_values(config)
        if values == self.journaled_settings:
            return None
        self.journaled_settings = values
        return SettingsRecord(step=self.step + 1, values=values)

    def _checkpoint(self, reason: str) -> None:
        """Write the state after the last finished step, once that step is acknowledged.

        What is due by the settings reaches the disk beside the next steps; what somebody waits for
        is there when this returns.
        """
        if self.checkpoints.saved_step != self.step:
            self._write_checkpoint(reason)
        elif reason == REQUESTED and not self.checkpoints.keep_for_good(self.step):
            self._write_checkpoint(reason)  # nothing is trained yet: no file was needed
        self.checkpoints.settle(waits=reason not in _BY_SETTINGS)

    def _write_checkpoint(self, reason: str) -> None:
        self.events.phase(self.step, "checkpoint")
        policy, model = self.model.policy, self.model
        state = TrainState(
            **asdict(self.progress),
            policy_version=policy.version,
            config=self.config,
            observers={observer.name: observer.state() for observer in self.observers},
        )
        self.checkpoints.save(state, model.learner, model.chat.tokenizer, reason=reason)
        self.evaluations.saved()


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
