"""The alarm engine: metrics of one step in, alarms raised and cleared out. Purely causal.

The live monitor, `echoscope diagnose` and the dashboard all feed the same engine, so they say the
same at the same step. Feeding a run step by step or all at once makes no difference, and `state()`
continues it after a restart.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ..store.records import ALARM_AUTHOR, Alarm, AlarmSeverity, AlarmState, Command, CommandAction
from . import rules_reasoning, rules_signal, rules_task
from .changes import Channel, ChannelSpec
from .channels import CHANNELS, at_distance, derived
from .config import AlarmConfig, RuleName
from .observations import observed
from .rules import Finding, Rule, View

ALL_RULES: tuple[Rule, ...] = (*rules_reasoning.RULES, *rules_signal.RULES, *rules_task.RULES)
RULE_ORDER: tuple[str, ...] = RuleName.__args__  # type: ignore[attr-defined]
RANK = {AlarmSeverity.INFO: 0, AlarmSeverity.WARNING: 1, AlarmSeverity.CRITICAL: 2}
SYMPTOMS = ("LOW_SUCCESS", "DEGENERATE_TEXT")
DOWNGRADE_AFTER = 10
"""Rows in a row without a second channel after which a critical alarm is a warning again."""

Exemplars = Callable[[str], tuple[str, ...]]
"""Rule name -> ids of trajectories that show it, at this step."""


class RunState(StrEnum):
    """What the open alarms mean for the run."""

    HEALTHY = "healthy"
    WATCH = "watch"
    COLLAPSING = "collapsing"
    COLLAPSED = "collapsed"
    CONVERGED = "converged"
    INSUFFICIENT = "insufficient evidence"

    @property
    def is_collapse(self) -> bool:
        return self in (RunState.COLLAPSING, RunState.COLLAPSED)


@dataclass(slots=True, kw_only=True)
class OpenAlarm:
    """A rule that is raised at present, and how it came to be."""

    alarm_id: str
    rule: str
    severity: AlarmSeverity
    raised_step: int
    onset_step: int | None
    earliest_onset: int | None
    """The departure began after this observation; None if it was there from the beginning."""
    critical_step: int | None = None
    metric: str = ""
    words: str = ""
    channels: list[str] = field(default_factory=list)
    """The channels that carry it, the main one first."""
    calm_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blindness:
    """A rule that cannot judge this run, or not fully, and why."""

    rule: str
    wanted: tuple[str, ...]
    """Any one of these metrics would do."""
    is_blind: bool
    """False: it can warn, but cannot become critical."""

    @property
    def reason(self) -> str:
        start = "needs" if self.is_blind else "cannot be confirmed without"
        return f"{start} {' or '.join(self.wanted)}"


class AlarmEngine:
    """Judges a run step by step.

    >>> engine = AlarmEngine()
    >>> for step in range(60):
    ...     valid = 0.95 if step < 40 else 0.3
    ...     _ = engine.observe(step, {"rollout/action_valid_frac": valid})
    >>> [(alarm.rule, alarm.severity.value) for alarm in engine.open_alarms]
    [('FORMAT_COLLAPSE', 'warning')]
    """

    def __init__(
        self,
        config: AlarmConfig | None = None,
        *,
        run_id: str = "",
        channels: Sequence[ChannelSpec] = CHANNELS,
    ) -> None:
        self.run_id = run_id
        self._specs = {spec.name: spec for spec in channels}
        self.channels = {spec.name: Channel(spec=spec) for spec in channels}
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.num_rows = 0
        self.first_watch_step: int | None = None
        self.first_critical_step: int | None = None
        self._open: dict[str, OpenAlarm] = {}
        self.config = config or AlarmConfig()
        self._obey(self.config)

    def configure(self, config: AlarmConfig) -> None:
        """Judge by these settings from the next step on; what was seen so far is kept.

        What a new threshold no longer reaches ends as it would have of itself.
        """
        if config != self.config:
            self.config = config
            self._obey(config)

    def _obey(self, config: AlarmConfig) -> None:
        self._rules = [rule for rule in ALL_RULES if rule.name not in config.disabled]
        for name, spec in self._specs.items():
            distance = config.thresholds.get(name)  # type: ignore[call-overload]
            self.channels[name].spec = spec if distance is None else at_distance(spec, distance)

    def observe(
        self, step: int, values: Mapping[str, float], exemplars: Exemplars | None = None
    ) -> list[Alarm]:
        """Take in the metrics of one step and return what was raised, worsened or cleared.

        Args:
            step: Greater than every step before.
            values: Metrics by key; NaN counts as absent.
            exemplars: Where to find trajectories that show what a rule says.

        Raises:
            ValueError: the step does not come after the last one.
        """
        if self.last_step is not None and step <= self.last_step:
            raise ValueError(
                f"step {step} follows step {self.last_step}: feed steps in order, once"
            )
        self.first_step = step if self.first_step is None else self.first_step
        self.last_step = step
        full = {**values, **derived(values)}
        for channel in self.channels.values():
            channel.update(step, full)
        self.num_rows += 1
        view = self.view()
        events = [event for rule in self._rules for event in self._apply(rule, view, exemplars)]
        state = self.run_state
        if self.first_watch_step is None and (state is RunState.WATCH or state.is_collapse):
            self.first_watch_step = step
        if self.first_critical_step is None and state.is_collapse:
            self.first_critical_step = step
        return events

    def view(self) -> View:
        """The channels as they stand."""
        step = self.last_step or 0
        return View(
            step=step,
            first_step=step if self.first_step is None else self.first_step,
            warmup_steps=self.config.warmup_steps,
            channels=self.channels,
        )

    @property
    def open_alarms(self) -> list[OpenAlarm]:
        """Worst first: by severity, by when they became critical or were raised, by rule.

        Symptoms of what the others name come after them.
        """
        return sorted(
            self._open.values(),
            key=lambda a: (
                -RANK[a.severity],
                a.rule in SYMPTOMS,
                a.raised_step if a.critical_step is None else a.critical_step,
                RULE_ORDER.index(a.rule),
            ),
        )

    @property
    def run_state(self) -> RunState:
        """What the open alarms mean, now."""
        worst = max((RANK[alarm.severity] for alarm in self._open.values()), default=0)
        if worst == RANK[AlarmSeverity.CRITICAL]:
            lost = self.view().is_success_lost
            return RunState.COLLAPSED if lost else RunState.COLLAPSING
        if worst == RANK[AlarmSeverity.WARNING]:
            return RunState.WATCH
        return RunState.CONVERGED if "CONVERGED" in self._open else RunState.HEALTHY

    def _apply(self, rule: Rule, view: View, exemplars: Exemplars | None) -> list[Alarm]:
        finding = rule.judge(view)
        known = self._open.get(rule.name)
        if finding is None:
            if known is None:
                return []
            del self._open[rule.name]
            return [self._event(rule, known, view, AlarmState.CLEARED, None)]
        severity = finding.severity
        if known is not None and RANK[severity] < RANK[known.severity]:
            known.calm_rows += 1
            if known.calm_rows < DOWNGRADE_AFTER:
                severity = known.severity
        elif known is not None:
            known.calm_rows = 0
        is_news = known is None or known.severity is not severity
        alarm = self._opened(rule, finding, severity, known, view)
        self._open[rule.name] = alarm
        if not is_news:
            return []
        shown = exemplars(rule.name) if exemplars else ()
        return [self._event(rule, alarm, view, AlarmState.RAISED, shown)]

    def _opened(
        self,
        rule: Rule,
        finding: Finding,
        severity: AlarmSeverity,
        known: OpenAlarm | None,
        view: View,
    ) -> OpenAlarm:
        main = finding.main
        if known is None:
            known = OpenAlarm(
                alarm_id=f"{rule.name.lower()}-{view.step:08d}",
                rule=rule.name,
                severity=severity,
                raised_step=view.step,
                onset_step=view.step if main.onset_step is None else main.onset_step,
                earliest_onset=main.last_quiet_step,
            )
        if severity is AlarmSeverity.CRITICAL and known.critical_step is None:
            known.critical_step = view.step
        elif severity is not AlarmSeverity.CRITICAL:
            known.critical_step = None
        known.severity = severity
        known.metric = main.key
        known.words = finding.words
        names = [main.spec.name, *(c.spec.name for c in finding.agreeing)]
        known.channels = list(dict.fromkeys(names))
        return known

    def _event(
        self,
        rule: Rule,
        alarm: OpenAlarm,
        view: View,
        state: AlarmState,
        evidence: tuple[str, ...] | None,
    ) -> Alarm:
        main = self.channels[alarm.channels[0]]
        ended = state is AlarmState.CLEARED
        return Alarm(
            alarm_id=alarm.alarm_id,
            rule=rule.name,
            severity=alarm.severity,
            state=state,
            step=view.step,
            onset_step=alarm.onset_step,
            metric=alarm.metric,
            value=main.shown_level if math.isfinite(main.level) else main.value,
            baseline=main.baseline if math.isfinite(main.baseline) else None,
            threshold=main.threshold,
            window=main.window,
            message=f"{rule.title} {'is over' if ended else 'at step ' + str(view.step)}: "
            + alarm.words,
            advice="" if ended else rule.advice,
            suggested=None if ended else suggestion(rule, alarm, self.run_id),
            evidence=evidence or (),
            refuted_by=rule.refuted_by,
            earliest_onset_step=view.first_step
            if alarm.earliest_onset is None
            else alarm.earliest_onset + 1,
        )

    def state(self) -> dict[str, Any]:
        """All it must remember, as JSON values."""
        return {
            "first_step": self.first_step,
            "last_step": self.last_step,
            "num_rows": self.num_rows,
            "first_watch_step": self.first_watch_step,
            "first_critical_step": self.first_critical_step,
            "channels": {name: channel.state() for name, channel in self.channels.items()},
            "open": {rule: asdict(alarm) for rule, alarm in self._open.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state()` said, of this or an older version.

        Channels and rules that did not exist then start afresh.
        """
        self.first_step, self.last_step = state["first_step"], state["last_step"]
        self.num_rows = state["num_rows"]
        self.first_watch_step = state["first_watch_step"]
        self.first_critical_step = state["first_critical_step"]
        for name, saved in state["channels"].items():
            if name in self.channels:
                self.channels[name].restore(saved)
        known = {rule.name for rule in self._rules}
        self._open = {
            rule: OpenAlarm(**{**saved, "severity": AlarmSeverity(saved["severity"])})
            for rule, saved in state["open"].items()
            if rule in known
        }


def suggestion(rule: Rule, alarm: OpenAlarm, run_id: str) -> Command | None:
    """The command a person could send; None where only a person can know."""
    if rule.action is None:
        return None
    return Command(
        command_id=f"suggested-{alarm.alarm_id}",
        run_id=run_id,
        issued_at=0.0,
        issued_by="echoscope",
        action=rule.action,
        settings=dict(rule.settings),
        reason=f"{rule.name} since step {alarm.onset_step}",
    )


def command_line(command: Command, run: str = "RUN") -> str:
    """What a person types to send a command.

    >>> from echoscope.store.records import CommandAction
    >>> command_line(Command(command_id="c", run_id="r", issued_at=0, issued_by="me",
    ...     action=CommandAction.SET, settings={"selection.value": 0.9}))
    'echoscope ctl RUN set selection.value=0.9'
    """
    settings = "".join(f" {key}={value}" for key, value in command.settings.items())
    action = {"stop_now": "stop --now"}.get(command.action.value, command.action.value)
    return f"echoscope ctl {run} {action}{settings}"


def action_commands(
    events: Iterable[Alarm], config: AlarmConfig, *, run_id: str, now: float
) -> list[Command]:
    """What rules that are set to act want done: the worst of pause and stop, once.

    A rule acts when it is raised as a warning or worse, not as information. The command goes the
    way of a person's, so it is acknowledged and recorded like one.

    Args:
        now: Seconds since the epoch.
    """
    wanted = {
        config.actions.get(event.rule, "notify"): event  # type: ignore[call-overload]
        for event in events
        if event.state is AlarmState.RAISED and event.severity is not AlarmSeverity.INFO
    }
    for name, action in (("stop", CommandAction.STOP), ("pause", CommandAction.PAUSE)):
        if name in wanted:
            event = wanted[name]
            return [
                Command(
                    # Never that of an earlier attempt, which has been answered: it acts again.
                    command_id=f"alarm-{event.alarm_id}-{event.step}-{uuid.uuid4().hex[:8]}",
                    run_id=run_id,
                    issued_at=now,
                    issued_by=f"{ALARM_AUTHOR}{event.rule}",
                    action=action,
                    reason=event.message,
                )
            ]
    return []


def blindness(keys: Iterable[str], config: AlarmConfig | None = None) -> list[Blindness]:
    """Which rules cannot judge a source with these metric keys, and what they would need.

    A rule about something that the run does not have (a regulariser, say) is not blind.
    """
    known = dict.fromkeys(keys, 1.0)
    known |= derived(dict.fromkeys(known, 1.0))
    disabled = (config or AlarmConfig()).disabled
    specs = {spec.name: spec for spec in CHANNELS}
    seen = {name for name, spec in specs.items() if observed(known, spec.keys)}
    out = []
    for rule in ALL_RULES:
        if rule.name in disabled or (rule.is_moot is not None and rule.is_moot(known)):
            continue
        is_blind = not seen & set(rule.needs)
        if is_blind or (rule.confirms and not _can_confirm(seen, rule)):
            names = rule.needs if is_blind else rule.confirms
            wanted = tuple(dict.fromkeys(specs[name].keys[0] for name in names))
            out.append(Blindness(rule=rule.name, wanted=wanted, is_blind=is_blind))
    return out


def _can_confirm(seen: set[str], rule: Rule) -> bool:
    confirming = seen & set(rule.confirms)
    return bool(confirming) and len(seen & {*rule.needs, *rule.confirms}) > (
        1 if set(rule.needs) != set(rule.confirms) else 0
    )


RULES_BY_NAME: Mapping[str, Rule] = {rule.name: rule for rule in ALL_RULES}
