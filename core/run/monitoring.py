"""The monitor of a training run: lends it the policy, and tells it every step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from echoscope.diagnostics.judge.advice.luck import undivided
from echoscope.diagnostics.judge.advice.situation import SettingsChange, Situation
from echoscope.diagnostics.judge.alarms import action_commands, blindness
from echoscope.diagnostics.judge.courses.channels import derived
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.measure.information.scoring import interrupting
from echoscope.diagnostics.monitor import Instruments, Monitor
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.tools.prospects import Signs, luck_of, prospects, terms_of
from echoscope.store.query.metric_keys import REGULARISER_RATIO
from echoscope.store.reader import open_run
from echoscope.store.records import AlarmSeverity, StepMetrics
from echoscope.store.steer.steering import override_words

from ..config.loading import live_schema
from ..config.settings import RunConfig
from ..rollout.chat import ChatFormat
from ..update.learners.alone import Learner
from .observers import Judged, Observed, StepObservation, StepObserver, TrainEvents


@dataclass(eq=False)
class MonitorObserver(StepObserver):
    """It measures and judges by `config.diagnostics`.

    It leaves the policy and every random generator as they were: a run is the same with and
    without it, alarms that act aside.
    """

    config: InitVar[RunConfig]
    learner: Learner
    chat: ChatFormat
    _: KW_ONLY
    run_id: str
    run_path: Path
    events: TrainEvents
    notifier: Notifier | None = None
    is_stopping: Callable[[], bool] = lambda: False
    name: str = "monitor"

    def __post_init__(self, config: RunConfig) -> None:
        self._monitor = Monitor(
            config.diagnostics, run_id=self.run_id, on_message=self.events.message
        )
        self._is_sighted = False
        self._situated: tuple[RunConfig, Situation] | None = None
        self._live: Mapping[str, Any] = {}
        self._changes: list[SettingsChange] = []
        self._branched: Mapping[str, tuple[Any, Any]] = {}
        """What a branch changed, until its first step is judged."""

    def observe(self, seen: StepObservation) -> Observed:
        settings = seen.config.diagnostics
        report = self._monitor.measure(seen.step, seen.rollouts, settings, self._instruments(seen))
        if seen.step == 1:
            self._tell_prospects(seen, report.values)
        return Observed(
            values=report.values,
            durations_s={f"time/diagnostics_{k}_s": s for k, s in report.seconds.items()},
            diagnostics=report.records,
            information=report.information,
        )

    def judge(self, metrics: Sequence[StepMetrics], config: RunConfig) -> Judged:
        step = metrics[0].step
        values = {
            key: value for step_metrics in metrics for key, value in step_metrics.values.items()
        }
        settings = config.diagnostics.alarms
        self._monitor.situate(self._situation(step, config))
        alarms = self._monitor.judge(step, values, settings)
        what = f"{len(alarms)} alarms"
        self._to_people(what, lambda them, verdict: them.observe(alarms, verdict))
        if step > 0 and not self._is_sighted:
            self._is_sighted = True
            self._tell_blind_rules(values, config)
        return Judged(
            alarms=alarms,
            commands=action_commands(alarms, settings, run_id=self.run_id, now=time.time()),
            critical=tuple(
                alarm.alarm_id
                for alarm in self._monitor.diagnosis.engine.open_alarms
                if alarm.severity is AlarmSeverity.CRITICAL
            ),
            verdict=self._monitor.diagnosis.verdict,
        )

    def tell(self, text: str) -> None:
        """What the guard does, to the people who are told of alarms."""
        self._to_people("the guard", lambda them, verdict: them.tell(text, verdict))

    def _situation(self, step: int, config: RunConfig) -> Situation:
        """What advice knows of this run; made again only when a setting has changed."""
        if self._situated is None or self._situated[0] is not config:
            live = {key: knob["value"] for key, knob in live_schema(config).items()}
            self._note_changes(step, live)
            situation = Situation(
                kind="live",
                run=self.run_id,
                config=config.model_dump(mode="json"),
                live=live,
                changes=tuple(self._changes),
            )
            self._situated = (config, situation)
        return self._situated[1]

    def _note_changes(self, step: int, live: Mapping[str, Any]) -> None:
        """Remember what the step was the first to train with."""
        changed = {
            key: (self._live[key], value)
            for key, value in live.items()
            if key in self._live and self._live[key] != value and key not in self._branched
        }
        for values, is_branch in ((self._branched, True), (changed, False)):
            if values:
                self._changes.append(SettingsChange(step=step, values=values, is_branch=is_branch))
        self._live, self._branched = live, {}

    def state(self) -> Any:
        changes = [[change.step, change.values, change.is_branch] for change in self._changes]
        settings = {"live": self._live, "changes": changes}
        last = self._monitor.diagnosis.engine.last_step
        return {**self._monitor.state(), "last_judged": last, "settings": settings}

    def restore(self, state: Any) -> None:
        self._monitor.restore(state)
        if state["last_judged"] is not None:
            self._monitor.judge_again(open_run(self.run_path), state["last_judged"])
        settings = state["settings"]
        self._live = settings["live"]
        self._changes = [
            SettingsChange(
                step=step,
                values={key: (old, new) for key, (old, new) in values.items()},
                is_branch=is_branch,
            )
            for step, values, is_branch in settings["changes"]
        ]

    def close(self, status: str) -> None:
        """The end of the run: the last messages are sent."""
        self._to_people("the end", lambda them, verdict: them.close(status, verdict))

    def _to_people(
        self, what: str, send: Callable[[Notifier, Callable[[], Verdict]], None]
    ) -> None:
        if self.notifier is None:
            return
        try:
            send(self.notifier, self._monitor.diagnosis.verdict)
        except Exception as error:  # noqa: BLE001 - a message is never worth a run
            self.events.message(f"could not tell people of {what}: {error}")

    def begin_branch(self, changed: Mapping[str, tuple[Any, Any]]) -> None:
        self._branched = changed

    def _instruments(self, seen: StepObservation) -> Instruments:
        config, policy = seen.config, self.learner.policy

        return Instruments(
            scorer=None
            if config.from_run is not None
            else partial(self.learner.scorer, config.sampling.temperature),
            decode=self.chat.decode,
            gradients=lambda: self.learner.gradients(seen.rollouts, config, self.chat),
            rollout_s=seen.rollout_s,
            trained_s=seen.trained_s,
            num_steps=config.steps,
            is_stopping=self.is_stopping,
            interrupting=lambda check: interrupting(policy.model, check),
            on_progress=lambda name, done, of: self.events.progress(
                done, of, f"tokens of the {name} diagnostics"
            ),
        )

    def _tell_prospects(self, seen: StepObservation, values: Mapping[str, float]) -> None:
        """Whether the first rollouts say that the run is likely to collapse soon.

        How far updates move the policy is not known yet: preflight measures that.
        """
        bonus = derived(values).get(REGULARISER_RATIO, math.nan)
        signs = Signs(
            luck=luck_of([seen.rollouts]),
            undivided=undivided(seen.config.advantage.kind, seen.config.reward.normalization),
            bonus=bonus if seen.config.loss.entropy_coef > 0 else math.nan,
            terms=terms_of([seen.rollouts], seen.config.reward.weight_keys),
        )
        for prospect in prospects(signs):
            overrides = " ".join(override_words(prospect.settings))
            self.events.message(f"{prospect.text} {prospect.advice} ({overrides})")

    def _tell_blind_rules(self, values: dict[str, float], config: RunConfig) -> None:
        """Say at the start which rules will never judge, and what they would need."""
        unseen = blindness([*values, *_promised(config)], config.diagnostics.alarms)
        blind = [
            f"{unseen_rule.rule} {unseen_rule.reason}"
            for unseen_rule in unseen
            if unseen_rule.is_blind
        ]
        if blind:
            self.events.message(f"alarms that this run cannot raise: {'; '.join(blind)}")


def _promised(config: RunConfig) -> list[str]:
    """Metrics that rules read and that come at later steps only."""
    out = []
    if config.probe.every:
        out.append("probe/success_rate")
    if config.envs.eval and config.eval.every:
        out.append("eval/success_rate")
    if config.diagnostics.gradient.every and (config.loss.kl_coef or config.loss.entropy_coef):
        out.append(REGULARISER_RATIO)
    return out
