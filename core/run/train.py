"""The training loop of StarPO.

commands -> collect -> select -> pack -> annotate -> advantages -> observe -> update -> sync -> log
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from echoscope.diagnostics.selection.filter import select_groups
from echoscope.diagnostics.sinks.mirror import Mirror
from echoscope.store.checkpoints import (
    earliest_onset,
    evaluation_success,
    newest_before,
    none_before,
    surplus_steps,
)
from echoscope.store.errors import StoreError
from echoscope.store.log.layout import shown_path
from echoscope.store.reader import open_run
from echoscope.store.records import (
    REQUESTED,
    Alarm,
    AlarmSeverity,
    AlarmState,
    Command,
    CommandAck,
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
from echoscope.store.writer import RunWriter
from echoscope.text.user_code import UserCodeError

from ..config.loading import live_values
from ..config.settings import KlRewardConfig, RunConfig
from ..engines.base import EngineError, GenerationEngine, Measured
from ..optim import Optimizer
from ..policy import Policy
from ..rollout.chat import ChatFormat
from ..rollout.curriculum import curriculum_metrics, group_counts, note_success
from ..rollout.evaluate import evaluation_metrics, success_over_tags
from ..rollout.sources import (
    CountsWaiting,
    EnvSource,
    RolloutSource,
    StepDroppedError,
    unreserved,
)
from ..update.assemble import fresh_tokens, outcomes, pack_kept, with_advantages
from ..update.batch import TokenBatch
from ..update.kl_reward import mean_kl, next_coef, with_coef
from ..update.metrics import rollout_metrics, staleness_metrics
from ..update.update import annotate, mismatch_metrics, update, updates_per_step
from .checkpoint import (
    CheckpointAge,
    TrainState,
    list_checkpoints,
    remove_checkpoints,
    save_checkpoint,
    step_of,
)
from .control import Control, StepInterruptedError, Wishes
from .early_stopping import why_stop
from .observers import Observed, StepObservation, StepObserver, TrainEvents, judge, observe

MAX_NONFINITE_STEPS = 5
"""Steps in a row with a NaN or infinite gradient after which a run stops."""
BEST_MARGIN = 0.05
"""A checkpoint of the best evaluation is written where it is so much above that of every other:
without it each evaluation of a run that learns would write one."""
_Played = tuple[Split, RolloutBatch, StepMetrics]
"""An evaluation or a probe."""


@dataclass(slots=True)
class _Stopwatch:
    """Seconds of a step by phase."""

    # Looked up when a step starts: a benchmark lets the clock count processor time.
    started: float = field(default_factory=lambda: time.perf_counter())
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        key = f"time/{name}_s"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - begun

    def total(self) -> float:
        return time.perf_counter() - self.started


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One run in this process. Build it with `start` or `resume` of `core.run.launch`."""

    config: RunConfig
    run_path: Path
    writer: RunWriter
    policy: Policy
    optimizer: Optimizer
    engine: GenerationEngine
    chat: ChatFormat
    train_source: RolloutSource
    eval_source: RolloutSource | None
    probe_source: RolloutSource
    control: Control
    events: TrainEvents
    observers: Sequence[StepObserver] = ()
    mirror: Mirror | None = None
    """Copies each step to other tools."""
    step: int = 0
    """The last finished step."""
    num_nonfinite: int = 0
    """Consecutive steps skipped because of a NaN or infinite gradient."""
    success_by_tag: Mapping[str, float] = field(default_factory=dict)
    """Running success of each environment, for the curriculum."""
    kl_coef: float | None = None
    """Of the KL penalty in the reward at the next step; None for the configured one."""
    checkpointed_step: int = 0
    """The last step whose state is on disk; the starting weights need no file."""
    diagnostics_s: float = 0.0
    """Seconds that measuring and judging took in this process, of `total_s`."""
    total_s: float = 0.0
    checkpoint_age: CheckpointAge = field(default_factory=CheckpointAge)
    journaled_settings: Mapping[str, Any] | None = None
    """The live settings that this attempt has written down."""
    best_success: float = -math.inf
    """Evaluation success of the best weights on the disk, the starting ones included."""
    last_success: float = math.nan
    """Of the last evaluation."""
    evaluated: dict[int, float] = field(default_factory=dict)
    """Step to the success of its evaluation, in this run."""
    weights_are_of_step: bool = True
    """The weights are those of the last finished step; not while a step moves them."""
    evaluate_next: bool = False
    """A command asked for an evaluation with the next step."""

    def run(self, *, is_new: bool) -> str:
        """Train to the last step, or until told to stop; returns the run's final status.

        Args:
            is_new: evaluate and probe the starting policy, as step 0, if so configured.
        """
        self._say_unreserved()
        if is_new:
            self._measure_start()
        else:
            self._recall_success()
        status = self._until_over()
        why = f"the run has {status}" if status == "failed" else f"the run is {status}"
        self.writer.record_acks(*self.control.refuse_waiting(self.step + 1, why))
        return status

    def _say_unreserved(self) -> None:
        try:
            with self.control.droppable():
                line = unreserved(self.train_source, self.eval_source)
        except StepInterruptedError:
            return  # the command that asked for it is applied at the boundary
        if line:
            self.events.message(line)

    def _until_over(self) -> str:
        while True:
            wishes = self._boundary()
            if wishes.stop_now:
                self._checkpoint("interrupt")
                return "stopped"
            is_last = self.step >= self.config.steps
            if wishes.stop or (is_last and not self.control.is_paused):
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
            if self.num_nonfinite >= MAX_NONFINITE_STEPS:
                self.events.message(
                    f"stopped: {self.num_nonfinite} steps in a row had a NaN or infinite gradient; "
                    "lower optim.lr and resume from the last checkpoint"
                )
                return "failed"

    def _save_before_failing(self) -> None:
        """The weights of the last finished step, if the step that failed has not moved them."""
        if not self.weights_are_of_step:
            return
        self.optimizer.zero_grad()
        try:
            self._checkpoint("interrupt")
        except UserCodeError as error:  # of an observer's state; another one is being told already
            self.events.message(f"no checkpoint was written: {error}")

    def _train_step(self, step: int) -> None:
        config, watch = with_coef(self.config, self.kl_coef), _Stopwatch()
        self.events.phase(step, "rollout")
        counts = group_counts(config, self.success_by_tag)
        if isinstance(self.train_source, EnvSource):
            self.train_source.share(counts)
        with watch("rollout"):
            rollouts = self._collect(self.train_source, step)
        self.events.phase(step, "annotate")
        with watch("annotate"):
            selection = select_groups(rollouts, config.selection)
            batch, unpacked = pack_kept(rollouts, selection, config, self.chat)
            batch, logprobs = annotate(self.policy, batch.to(self.policy.device), config)
            batch = with_advantages(batch, config, unpacked)
        with watch("diagnostics"):  # all groups, before the update, at the weights that sampled
            self.events.phase(step, "diagnostics")
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
        self.events.phase(step, "update")
        self.weights_are_of_step = updates_per_step(config) == 1  # nothing fails after the only one
        version = self.policy.version
        with watch("update"):
            result = update(self.policy, self.optimizer, batch, config, step)
            self.weights_are_of_step = False
            self.engine.sync_weights(self.policy)
        self.num_nonfinite = self.num_nonfinite + 1 if result.num_skipped else 0
        logprobs = result.trainer_logprobs if logprobs is None else logprobs
        values = observed.values | result.metrics | rollout_metrics(rollouts) | selection.metrics()
        is_fresh = None if config.from_run else fresh_tokens(batch, rollouts, selection, version)
        values |= mismatch_metrics(logprobs, batch, is_fresh)
        self.success_by_tag = note_success(self.success_by_tag, rollouts)
        values |= curriculum_metrics(config, counts, self.success_by_tag)
        if config.dynamic_sampling.max_rounds > 1:
            of_a_round = sum(group.groups for group in config.envs.train)
            values["rollout/num_rounds"] = rollouts.num_groups / of_a_round
        if config.from_run is None:
            values |= staleness_metrics(rollouts, version)
        if isinstance(self.train_source, CountsWaiting):
            values |= self.train_source.waiting_metrics()
        if config.reward.kl is not None:
            values |= self._penalized(config.reward.kl, batch)
        for part in (self.engine, self.train_source):
            if isinstance(part, Measured):
                values |= part.take_metrics()
        learned = outcomes(rollouts, selection, batch, logprobs, observed.information)
        self._finish_step(step, values, watch, rollouts, learned, observed)
        if not batch.num_rows:
            self.events.message(f"step {step}: no update, {selection.reason or 'nothing to train'}")
        if result.metrics["optim/num_oom_retries"]:
            self.events.message(
                f"step {step}: the update ran out of memory and was made again with at most "
                f"{self.policy.most_tokens} tokens per forward pass, as later ones will be; "
                f"optim.max_microbatch_tokens={self.policy.most_tokens} avoids this"
            )
        if result.num_skipped:
            kinds = ("num_updates", "num_skipped", "num_without_gradient")
            num_tried = round(sum(result.metrics[f"optim/{kind}"] for kind in kinds))
            self.events.message(
                f"step {step}: {result.num_skipped} of {num_tried} updates skipped, the gradient "
                f"was NaN or infinite ({self.num_nonfinite} such steps in a row)"
            )

    def _penalized(self, settings: KlRewardConfig, batch: TokenBatch) -> dict[str, float]:
        """Metrics of the KL penalty in the reward; its coefficient follows the KL."""
        kl = mean_kl(batch, settings)
        num_trajectories = len(set(batch.trajectory_index.tolist()))
        self.kl_coef = next_coef(settings, kl, num_trajectories)
        return {"reward/kl": kl, "reward/kl_coef": settings.coef}

    def _collect(self, source: RolloutSource, step: int) -> RolloutBatch:
        """Play episodes; the weights rest meanwhile, so they may be cut off at any instant.

        Raises:
            StepDroppedError: a command dropped them, or a second Ctrl-C cut in.
        """
        try:
            with self.control.droppable():
                return source.collect(step, self.config)
        except StepInterruptedError:
            raise StepDroppedError from None

    def _finish_step(
        self,
        step: int,
        values: dict[str, float],
        watch: _Stopwatch,
        rollouts: RolloutBatch,
        learned: Sequence[TrajectoryOutcome],
        observed: Observed,
    ) -> None:
        """Evaluate and probe if it is time, write the step down, then checkpoint if it is time."""
        is_last = step >= self.config.steps
        seconds = watch.total()
        self.diagnostics_s += watch.seconds["time/diagnostics_s"]
        self.total_s += seconds
        durations = watch.seconds | observed.durations_s
        durations |= {
            "time/step_s": seconds,
            "time/diagnostics_frac": self.diagnostics_s / self.total_s,
            "time/tokens_per_s": values["rollout/num_sampled_tokens"] / seconds,
        }
        metrics = [self._metrics(step, "train", values, durations)]
        trajectories = rollouts.trajectories
        every = self.config.eval.every  # 0 for none, at the end neither
        is_due = self.evaluate_next or _is_due(step, every) or (is_last and every > 0)
        for split, played, found in self._measure(
            step, evaluates=is_due, probes=_is_due(step, self.config.probe.every)
        ):
            metrics.append(found)
            trajectories += played.trajectories
            self.evaluate_next &= split is not Split.EVAL
        self._commit(metrics, trajectories, learned, observed.diagnostics)
        self.step, self.weights_are_of_step = step, True
        for one in metrics:
            self.events.metrics(one)
        self._note_success(metrics)
        self.checkpoint_age.add(watch.total())
        if _is_due(step, self.config.checkpoint.every):
            self._checkpoint("schedule")
        elif self.checkpoint_age.is_due(self.config.checkpoint.minutes):
            self._checkpoint("time")
        elif self.config.checkpoint.best and self.last_success >= self.best_success + BEST_MARGIN:
            self._checkpoint("best")

    def _measure(self, step: int, *, evaluates: bool, probes: bool) -> list[_Played]:
        """Play what is wanted of evaluation and probe, unless a command drops it."""
        out: list[_Played] = []
        wanted = (
            (Split.EVAL, evaluates, self.eval_source, "evaluate", "evaluation"),
            (Split.PROBE, probes, self.probe_source, "probe", "probe"),
        )
        for split, is_wanted, source, verb, noun in wanted:
            if source is None or not is_wanted:
                continue
            self.events.phase(step, verb)
            watch = _Stopwatch()
            try:
                played = self._collect(source, step)
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
        metrics = [found for _, _, found in out]
        if metrics:
            self._commit(metrics, [t for _, played, _ in out for t in played.trajectories])
        self._note_success(metrics)
        self._hold_success()
        for one in metrics:
            self.events.metrics(one)

    def _note_success(self, metrics: Sequence[StepMetrics]) -> None:
        """Remember the success of the newest evaluation, if there is one among these."""
        for one in metrics:
            rate = success_over_tags(one.values, Split.EVAL)
            if math.isfinite(rate):
                self.last_success = self.evaluated[one.step] = rate
                self._stop_early(one.step)

    def _stop_early(self, step: int) -> None:
        """Ask for a stop if evaluations no longer improve; it is recorded like a person's."""
        reason = why_stop(self.evaluated, self.config.early_stopping)
        if reason and 0 < step < self.config.steps:
            self.events.message(f"stopping early: {reason}")
            self.control.request(CommandAction.STOP, reason, issued_by="early_stopping")

    def _hold_success(self) -> None:
        """The weights of the last evaluation are on the disk."""
        if self.last_success > self.best_success:
            self.best_success = self.last_success

    def _recall_success(self) -> None:
        """What an earlier attempt has evaluated, up to the step that this one goes on from."""
        evaluated = evaluation_success(open_run(self.run_path))
        rates = {step: rate for step, rate in evaluated.items() if step <= self.step}
        self.evaluated = {step: rate for step, rate in rates.items() if math.isfinite(rate)}
        for saved in sorted({0, *self._checkpoint_steps()}):
            before = [step for step in rates if step <= saved]
            if before:
                self.last_success = rates[max(before)]
                self._hold_success()
        self.last_success = rates[max(rates)] if rates else math.nan
        # A `stop --now` dropped it; the weights are kept all the same.
        is_due = self.step > 0 and _is_due(self.step, self.config.eval.every)
        self.evaluate_next = is_due and self.step not in rates

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
        if self.mirror is not None:
            self.mirror.step(
                metrics,
                trajectories=trajectories,
                alarms=judged.alarms,
                verdict=judged.verdict,
            )
        for alarm in judged.alarms:
            is_raised = alarm.state is AlarmState.RAISED
            self.events.message(f"{alarm.severity}: " * is_raised + alarm.message)
            self._tell_last_good(alarm)
        for command in judged.commands:
            try:
                post(self.run_path, command)
            except StoreError as error:
                self.events.message(f"cannot {command.action} for {command.issued_by}: {error}")

    def _metrics(
        self, step: int, phase: str, values: dict[str, float], durations: dict[str, float]
    ) -> StepMetrics:
        return StepMetrics(
            run_id=self.writer.run_id,
            step=step,
            phase=phase,
            policy_version=self.policy.version,
            wall_time=time.time(),
            values=values,
            durations_s=durations,
        )

    def _boundary(self) -> Wishes:
        """Apply waiting commands; they take effect with the next step."""

        def on_pause(is_paused: bool) -> None:
            self.events.phase(self.step, "paused" if is_paused else "rollout")

        def on_acks(
            acks: Sequence[CommandAck], commands: Sequence[Command], config: RunConfig
        ) -> None:
            self.writer.record_acks(acks, commands, self._new_settings(config))

        wishes = self.control.boundary(
            self.step + 1, self.config, on_acks=on_acks, on_pause=on_pause
        )
        self.config = wishes.config
        # What an attempt begins with, and what it applies again, nobody has to be answered for.
        self.writer.record_acks((), settings=self._new_settings(wishes.config))
        self.evaluate_next |= wishes.evaluate
        if wishes.checkpoint:
            self._checkpoint(REQUESTED)
        elif wishes.paused_by_alarm:
            self._checkpoint("alarm")
        if wishes.paused_by_alarm:
            folder = shown_path(self.run_path)
            self.events.message(
                f"{wishes.paused_by_alarm} paused the run after step {self.step}, with a "
                f"checkpoint; `echoscope ctl {folder} resume` goes on, `echoscope ctl {folder} "
                "stop` ends it"
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
        """Write the state after the last finished step, once that step is acknowledged."""
        if self.checkpointed_step == self.step:
            if reason == REQUESTED:
                self._keep_for_good()
            return
        self.events.phase(self.step, "checkpoint")
        self.writer.flush()
        state = TrainState(
            step=self.step,
            policy_version=self.policy.version,
            config=self.config,
            num_nonfinite=self.num_nonfinite,
            kl_coef=self.kl_coef,
            success_by_tag=self.success_by_tag,
            observers={observer.name: observer.state() for observer in self.observers},
        )
        tokenizer = self.chat.tokenizer
        with self.checkpoint_age.writing():
            record = save_checkpoint(
                self.run_path, state, self.policy, self.optimizer, tokenizer, reason=reason
            )
        self.writer.record_checkpoint(record)
        self.checkpointed_step = self.step
        self._hold_success()
        self.writer.flush()  # the new one is on record before an older one goes
        self._remove_surplus()

    def _keep_for_good(self) -> None:
        """The checkpoint of this step was asked for after it had been written."""
        self.writer.flush()
        for record in open_run(self.run_path).checkpoints():
            if record.step == self.step and record.reason != REQUESTED:
                self.writer.record_checkpoint(
                    replace(record, reason=REQUESTED, wall_time=time.time())
                )

    def _remove_surplus(self) -> None:
        steps = [step for step in self._checkpoint_steps() if step <= self.step]
        keep = self.config.checkpoint.keep
        if len(steps) <= keep and self.writer.attempt == 1:
            return  # all are among the newest, and no rewind hid one
        try:
            surplus = surplus_steps(self.run_path, steps, keep=keep)
        except StoreError as error:
            self.events.message(f"no old checkpoint was deleted: {error}")
            return
        for record in remove_checkpoints(self.run_path, surplus):
            self.writer.record_checkpoint(record)

    def _checkpoint_steps(self) -> list[int]:
        return [step_of(path) for path in list_checkpoints(self.run_path)]

    def _tell_last_good(self, alarm: Alarm) -> None:
        """Which checkpoint a critical alarm leaves to go back to, or that it leaves none."""
        onset = earliest_onset(alarm)
        is_news = alarm.state is AlarmState.RAISED and alarm.severity is AlarmSeverity.CRITICAL
        if onset is None or not is_news:
            return
        step = newest_before(self._checkpoint_steps(), onset)
        if step is None:
            every = self.config.checkpoint.every
            self.events.message(f"{none_before(onset)} A shorter checkpoint.every ({every}) helps.")
        else:
            self.events.message(
                f"the checkpoint of step {step} is from before step {onset}, where the change may "
                "have begun; it is kept while the alarm is open"
            )


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
