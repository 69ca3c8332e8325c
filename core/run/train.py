"""The training loop of StarPO.

commands -> collect -> select -> pack -> annotate -> advantages -> observe -> update -> sync -> log
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from echoscope.diagnostics.selection.filter import select_groups
from echoscope.envs.reserving import few_tasks
from echoscope.store.records import REQUESTED, CommandAction, RolloutBatch, Split, StepMetrics
from echoscope.text.user_code import UserCodeError

from ..config.settings import RunConfig
from ..engines.base import Engine, EngineError
from ..policy import Policy
from ..rollout.ahead import SharedEngine
from ..rollout.chat import ChatFormat
from ..rollout.curriculum import with_groups
from ..rollout.evaluate import evaluation_metrics
from ..rollout.sources import RolloutSource, StepDroppedError
from ..update.assemble import pack_kept, with_advantages
from ..update.batch import TokenBatch
from ..update.learners.alone import Learner
from ..update.update import UpdateResult, updates_per_step
from .checkpoint import CheckpointError, Progress, TrainState
from .control import Control, StepInterruptedError, Wishes
from .guard import paused_text, why_no_rewind
from .keeping import Checkpoints
from .observers import StepObservation, StepObserver, TrainEvents, observe
from .step import RunClock, StepLog, Stopwatch, TrainedStep

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the rollouts of each split come from, and the engine that samples them."""

    engine: Engine | SharedEngine
    train: RolloutSource
    eval: RolloutSource | None
    probe: RolloutSource

    def unreserved(self) -> str:
        """One line about environments where evaluation has no tasks of its own; empty if all have.

        Stored trajectories speak for themselves, and without an evaluation there is nothing to say.
        """
        trained = self.train.varieties() if self.eval is not None else []
        return few_tasks([*trained, *self.eval.varieties()]) if self.eval and trained else ""

    def take_metrics(self) -> dict[str, float]:
        """What sampling for training has done since the last call of this."""
        return self.engine.take_metrics() | self.train.take_metrics()

    def close(self) -> None:
        for source in (self.train, self.eval, self.probe):
            if source is not None:
                source.close()
        self.engine.close()


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One run in this process. Build it with `start` or `resume` of `core.run.launch`."""

    config: RunConfig
    model: Model
    sources: Sources
    control: Control
    events: TrainEvents
    observers: Sequence[StepObserver] = ()
    checkpoints: Checkpoints
    log: StepLog
    clock: RunClock
    progress: Progress = field(default_factory=Progress)
    weights_are_of_step: bool = True
    """The weights are those of the last finished step; not while a step moves them."""

    @property
    def step(self) -> int:
        """The last finished step."""
        return self.progress.step

    def begin_at(self, state: TrainState) -> None:
        """Go on from a checkpoint whose weights are in place."""
        self.sources.engine.sync_weights(self.model.policy)
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
            self.checkpoints.recall(up_to=self.step)
        try:
            status = self._until_over()
        except BaseException:
            with suppress(OSError):  # the run ends for another reason
                self.checkpoints.settle(waits=True)
            raise
        self.checkpoints.settle(waits=True)
        why = f"the run has {status}" if status == "failed" else f"the run is {status}"
        self.log.writer.record_acks(*self.control.refuse_waiting(self.step + 1, why))
        return status

    def _say_unreserved(self) -> None:
        try:
            with self.control.droppable():
                line = self.sources.unreserved()
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
        config, learner = with_groups(self.config, self.progress.success_by_tag), self.model.learner
        watch = Stopwatch(partial(self.events.phase, step))
        with watch("rollout"):
            rollouts = self._collect(self.sources.train, step, config)
        with watch("annotate"):
            selection = select_groups(rollouts, config.selection)
            batch, left_out = pack_kept(rollouts, selection, config, self.model.chat)
            batch, logprobs = learner.annotate(batch, config)
            batch = with_advantages(batch, config, left_out)
        seen = StepObservation(
            step=step, config=config, rollouts=rollouts, selection=selection, batch=batch
        )
        with watch("diagnostics"):
            observed = observe(self.observers, self.clock.timed(seen, watch))
        with watch("update"):
            result = self._update(batch, config, step)
            self.sources.engine.sync_weights(self.model.policy)
        done = TrainedStep(seen=seen, observed=observed, result=result, annotated=logprobs)
        self._finish_step(done, watch)

    def _update(self, batch: TokenBatch, config: RunConfig, step: int) -> UpdateResult:
        # Nothing fails after the only update of a step.
        self.weights_are_of_step = updates_per_step(config) == 1
        result = self.model.learner.update(batch, config, step)
        self.weights_are_of_step = False
        return result

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

    def _finish_step(self, trained: TrainedStep, watch: Stopwatch) -> None:
        """Evaluate and probe if it is time, write the step down, then checkpoint if it is time."""
        step, policy = trained.seen.step, self.model.policy
        self.progress = trained.after(self.progress)
        values = trained.metrics(self.progress.success_by_tag) | self.sources.take_metrics()
        num_tokens = values["rollout/num_sampled_tokens"]
        durations = self.clock.durations(watch, trained.observed, num_tokens)
        metrics = [self._metrics(step, "train", values, durations)]
        trajectories = trained.seen.rollouts.trajectories
        every = self.config.eval.every  # 0 for none, at the end neither
        is_last = step >= self.config.steps
        is_due = self.control.evaluates_next or _is_due(step, every) or (is_last and every > 0)
        for split, played, of_split in self._measure(
            step, evaluates=is_due, probes=_is_due(step, self.config.probe.every)
        ):
            metrics.append(of_split)
            trajectories += played.trajectories
            self.control.evaluates_next &= split is not Split.EVAL
        self.log.commit(
            self.config, metrics, trajectories, trained.outcomes(), trained.observed.diagnostics
        )
        self.progress, self.weights_are_of_step = replace(self.progress, step=step), True
        self._tell(metrics)
        self.checkpoints.unsaved_s += watch.total()
        if reason := self.checkpoints.due(step, self.config.checkpoint):
            self._checkpoint(reason)
        for sentence in trained.messages(self.progress.num_nonfinite, policy.most_tokens):
            self.events.message(sentence)

    def _tell(self, metrics: Sequence[StepMetrics]) -> None:
        for each in metrics:
            self.events.metrics(each)
        self.checkpoints.note(metrics)

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
            trajectories = [t for _, played, _ in out for t in played.trajectories]
            self.log.commit(config, metrics, trajectories)
        self._tell(metrics)
        self.checkpoints.weights_are_kept()

    def _metrics(
        self, step: int, phase: str, values: dict[str, float], durations: dict[str, float]
    ) -> StepMetrics:
        return StepMetrics(
            run_id=self.log.writer.run_id,
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
            on_acks=self.log.writer.record_acks,
            on_pause=lambda who: self.events.phase(self.step, f"paused by {who}"),
            why_no_rewind=partial(why_no_rewind, self.log.writer.path),
        )
        self.config = wishes.config
        if CommandAction.CHECKPOINT in wishes.asked:
            self._checkpoint(REQUESTED)
        elif wishes.paused_by_alarm:
            self._checkpoint("alarm")
        if wishes.paused_by_alarm:
            path = self.log.writer.path
            self.events.message(paused_text(path, self.step, wishes.paused_by_alarm))
        return wishes

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


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
