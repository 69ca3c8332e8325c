"""The alarm engine: metrics of one step in, alarms raised and cleared out. Purely causal.

The live monitor, `echoscope diagnose` and the dashboard all feed the same engine, so they say the
same at the same step. Feeding a run step by step or all at once makes no difference. After a
restart the stored steps of the run are fed again.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from echoscope.store.records import (
    ALARM_AUTHOR,
    SEVERITY_RANK,
    Alarm,
    AlarmSeverity,
    AlarmState,
    Command,
    CommandAction,
)
from echoscope.text.sentences import capitalised, in_sentence
from echoscope.text.strict_json import finite_or_none

from ..config import AlarmConfig
from .advice.actions import Action, advise, live_command
from .advice.causes import Cause, causes_of
from .advice.situation import History, Situation
from .courses.changes import Channel
from .courses.channels import (
    CHANNELS,
    OUTCOMES,
    SPECS,
    ChannelSpec,
    OutcomeSpec,
    at_distance,
    derived,
)
from .courses.course import observed
from .courses.outcome import LARGE_SHARE, Outcome
from .rules import reasoning as rules_reasoning
from .rules import signal as rules_signal
from .rules import task as rules_task
from .rules.alarm_texts import RULE_TEXTS
from .rules.base import FIXED, Finding, Rule, Sign, View, describe
from .rules.meanwhile import Surroundings
from .rules.metrics_needed import logged_keys

ALL_RULES: tuple[Rule, ...] = (*rules_reasoning.RULES, *rules_signal.RULES, *rules_task.RULES)
RULE_ORDER: tuple[str, ...] = tuple(RULE_TEXTS)
"""Most serious first."""
CONVERGED, NOT_LEARNING = "CONVERGED", "NOT_LEARNING"
"""The rule that says that a run is done."""
SYMPTOMS = ("LOW_SUCCESS", "DEGENERATE_TEXT")
CLEAR_AFTER = 5
"""Rows in a row without a finding after which an alarm is cleared: one good batch ends nothing."""
LEAST_CRITICAL = 3
"""Rows for which an alarm was critical, from which it is told after it has cleared."""
DOWNGRADE_AFTER = 10
"""Rows in a row without a second channel after which a critical alarm is a warning again."""

_SIGNS_OF_A_FALL = tuple(name for name in rules_task.SIGNS if name != "zero_spread")
"""Signs that show a change: where few tasks are solved, most groups are alike from the start."""
AGREED_RELIEF = 1.0
"""Standard errors that a fall on fixed tasks takes less while text, signal or training show one."""
SAGGING_ROWS = 2
"""Rows in a row in which training success is half way to a large fall, to agree with one."""
MAX_TERMS = 32

Exemplars = Callable[[str], tuple[str, ...]]
"""Rule name -> ids of trajectories that show it, at this step."""


COLLAPSED_IN_PART = "collapsed in part"
"""What `RunState.COLLAPSING` is called once the run has ended: signals have collapsed, and that
less than half of the best success is left is not proven."""


class RunState(StrEnum):
    """What the open alarms mean for the run."""

    HEALTHY = "healthy"
    WATCH = "watch"
    COLLAPSING = "collapsing"
    COLLAPSED = "collapsed"
    CONVERGED = "converged"
    NOT_LEARNING = "not learning"
    RECOVERING = "recovering"
    INSUFFICIENT = "insufficient evidence"
    EVALUATION = "evaluation"
    """Nothing is trained, so nothing is judged."""

    @property
    def is_collapse(self) -> bool:
        return self in (RunState.COLLAPSING, RunState.COLLAPSED)

    def words(self, *, has_ended: bool) -> str:
        """As people read it: a run that has ended is not collapsing any more."""
        is_past = has_ended and self is RunState.COLLAPSING
        return COLLAPSED_IN_PART if is_past else self.value

    @property
    def is_failure(self) -> bool:
        """The run needs to be changed: it is lost, being lost, or learns nothing."""
        return self.is_collapse or self is RunState.NOT_LEARNING


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
    onset_interval: tuple[int, int] | None = None
    """First and last step at which it may have begun (nominal 90 %)."""
    critical_step: int | None = None
    first_critical_step: int | None = None
    num_critical_rows: int = 0
    metric: str = ""
    words: str = ""
    title: str = ""
    meaning: str = ""
    channels: list[str] = field(default_factory=list)
    """The channels that carry it, the main one first."""
    calm_rows: int = 0
    absent_rows: int = 0
    """Rows in a row in which the rule found nothing."""

    def take(self, finding: Finding, rule: Rule, view: View) -> None:
        """What the rule finds at this step. Less serious it becomes only after some rows."""
        severity, main = finding.severity, finding.main
        is_calmer = SEVERITY_RANK[severity] < SEVERITY_RANK[self.severity]
        self.absent_rows, self.calm_rows = 0, self.calm_rows + 1 if is_calmer else 0
        if not is_calmer or self.calm_rows >= DOWNGRADE_AFTER:
            self.severity = severity
        if self.severity is not AlarmSeverity.CRITICAL:
            self.critical_step = None
        else:
            self.num_critical_rows += 1
            if self.critical_step is None:
                self.critical_step = view.step
            if self.first_critical_step is None:
                self.first_critical_step = view.step
        if (dates := main.onset_interval) is not None:
            self.onset_interval, self.onset_step = dates, main.onset_step
        self.metric, self.words = main.key, finding.words
        self.title, self.meaning = finding.title or rule.title, finding.meaning or rule.meaning
        names = [main.spec.name, *(sign.spec.name for sign in finding.agreeing)]
        self.channels = list(dict.fromkeys(names))


def _new_alarm(rule: Rule, finding: Finding, view: View) -> OpenAlarm:
    main = finding.main
    return OpenAlarm(
        alarm_id=f"{rule.name.lower()}-{view.step:08d}",
        rule=rule.name,
        severity=finding.severity,
        raised_step=view.step,
        onset_step=view.step if main.onset_step is None else main.onset_step,
        earliest_onset=main.last_quiet_step,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAlarm:
    """An alarm that was critical for some rows, and has cleared."""

    rule: str
    title: str
    steps: tuple[int, int]
    """At which it first was critical, and at which it cleared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blindness:
    """A rule that cannot judge this run, or not fully, and why."""

    rule: str
    wanted: tuple[str, ...]
    """Any one of these metrics would do, under the keys that are logged."""
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
        self.outcomes = {spec.name: Outcome(spec=spec) for spec in OUTCOMES}
        self.terms: dict[str, Outcome] = {}
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.num_rows = 0
        self.first_watch_step: int | None = None
        self.first_critical_step: int | None = None
        self._open: dict[str, OpenAlarm] = {}
        self.ended: list[EndedAlarm] = []
        """Alarms that were critical, in the order in which they ended."""
        self._opening = ""  # rule of the alarm that led when the present collapse began
        self.history = History()
        self.beside = Surroundings()
        self.situation = Situation()
        """What advice knows of the run; set by whoever opens it."""
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
            distance = config.thresholds.get(name)
            self.channels[name].spec = spec if distance is None else at_distance(spec, distance)
        for name, outcome in self.outcomes.items():
            share = config.thresholds.get(name)
            outcome.large_share = LARGE_SHARE if share is None else share

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
        self._observe_outcomes(step, full)
        self._observe_terms(step, full)
        self.num_rows += 1
        view = self.view()
        self.history.observe(view, full)
        self.beside.observe(step, full)
        events = [event for rule in self._rules for event in self._apply(rule, view, exemplars)]
        state = self.run_state
        if self.first_watch_step is None and (state is RunState.WATCH or state.is_failure):
            self.first_watch_step = step
        if self.first_critical_step is None and state.is_collapse:
            self.first_critical_step = step
        if not state.is_collapse:
            self._opening = ""
        elif self._opening in ("", *SYMPTOMS):
            self._opening = self.open_alarms[0].rule
        return events

    def _observe_outcomes(self, step: int, values: Mapping[str, float]) -> None:
        """Take in what the run achieves; training first, which shows falls on fixed tasks too."""
        reward = self.outcomes["reward"]
        for outcome in (self.outcomes["success_train"], reward):
            outcome.update(step, values)
        training = self.view().training
        signs = AGREED_RELIEF * any(self.channels[name].leans for name in _SIGNS_OF_A_FALL)
        sags = AGREED_RELIEF * (training.num_sagging >= SAGGING_ROWS)
        beside = training.sigmas_sagging_beyond_looks
        for outcome in self.outcomes.values():
            if outcome.spec.name in ("success_train", "reward"):
                continue
            if outcome.spec.is_fixed:
                outcome.turns.relief = max(signs, sags)
                is_both = beside > 0 and outcome.is_rate
                outcome.turns.beside = beside + math.sqrt(2) * signs if is_both else 0.0
            outcome.update(step, values)

    def _observe_terms(self, step: int, values: Mapping[str, float]) -> None:
        """Follow every term of the reward, as a return of its own."""
        for key, value in values.items():
            if not key.startswith(rules_task.TERM) or not math.isfinite(value):
                continue
            if key not in self.terms and len(self.terms) < MAX_TERMS:
                spec = OutcomeSpec(name=key, keys=(key,), kind="amount")
                self.terms[key] = Outcome(spec=spec)
            if key in self.terms:
                self.terms[key].update(step, values)

    def view(self) -> View:
        """The channels as they stand."""
        step = self.last_step or 0
        return View(
            step=step,
            first_step=step if self.first_step is None else self.first_step,
            warmup_steps=self.config.warmup_steps,
            channels=self.channels,
            outcomes=self.outcomes,
            terms=self.terms,
            open_rules=self._open.keys(),
        )

    @property
    def signs(self) -> dict[str, Sign]:
        """All that rules rest on, by name."""
        return {**self.outcomes, **self.channels}

    @property
    def open_alarms(self) -> list[OpenAlarm]:
        """Worst first: by severity, by when they became critical or were raised, by rule.

        Symptoms of what the others name come after them. Of warnings, the one that is a state of
        its own comes first.
        """
        return sorted(
            self._open.values(),
            key=lambda a: (
                -SEVERITY_RANK[a.severity],
                a.rule in SYMPTOMS,
                a.rule != NOT_LEARNING,
                a.raised_step if a.critical_step is None else a.critical_step,
                RULE_ORDER.index(a.rule),
            ),
        )

    @property
    def leading_rules(self) -> list[str]:
        """Rules that advice goes by: what a collapse began with, then the open ones, worst first.

        What is raised in a run that is lost is mostly a consequence.
        """
        names = [self._opening, *(alarm.rule for alarm in self.open_alarms)]
        return list(dict.fromkeys(name for name in names if name))

    @property
    def run_state(self) -> RunState:
        """What the open alarms mean, now."""
        severities = self._severities
        if self.view().is_recovering:
            return RunState.RECOVERING
        if AlarmSeverity.CRITICAL in severities:
            lost = self.view().is_success_lost
            return RunState.COLLAPSED if lost else RunState.COLLAPSING
        if NOT_LEARNING in self._open:
            return RunState.NOT_LEARNING
        if AlarmSeverity.WARNING in severities:
            return RunState.WATCH
        return RunState.CONVERGED if CONVERGED in self._open else RunState.HEALTHY

    @property
    def _severities(self) -> set[AlarmSeverity]:
        return {alarm.severity for alarm in self._open.values()}

    def causes(self) -> list[Cause]:
        """Causes of what is open, those that the run shows first; none where nothing differs."""
        return self._causes_of(self.open_alarms)

    def _causes_of(self, alarms: Sequence[OpenAlarm]) -> list[Cause]:
        """The worst alarm first, of equals the one that began first: nothing later caused it."""
        view = self.view()
        intervals = [(alarm, _onset_interval(alarm, view)) for alarm in alarms]
        intervals.sort(key=lambda each: (-SEVERITY_RANK[each[0].severity], each[1][::-1]))
        onsets = {alarm.rule: interval for alarm, interval in intervals}
        return causes_of(onsets, view, self.history, self.situation)

    def open_records(self) -> list[Alarm]:
        """The open alarms as records, the worst first."""
        return [self._record(alarm) for alarm in self.open_alarms]

    def actions(self) -> tuple[Action, ...]:
        """The one thing to do about what is open; none where nothing is."""
        return self._advice(
            self.open_alarms,
            self.leading_rules,
            is_lost=self.run_state.is_collapse,
            is_recovering=self.run_state is RunState.RECOVERING,
            still_rises=not self.view().is_success_flat(rules_task.FLAT_STEPS),
        )

    def _advice(
        self,
        alarms: Sequence[OpenAlarm],
        rules: Sequence[str],
        *,
        is_lost: bool,
        is_recovering: bool = False,
        still_rises: bool = True,
    ) -> tuple[Action, ...]:
        return advise(
            [RULES_BY_NAME[name] for name in rules],
            self._causes_of(alarms),
            [self._record(alarm) for alarm in alarms],
            self.situation,
            is_lost=is_lost,
            is_recovering=is_recovering,
            still_rises=still_rises,
        )

    def _apply(self, rule: Rule, view: View, exemplars: Exemplars | None) -> list[Alarm]:
        """What a rule raises, worsens or clears at this step."""
        finding = rule.judge(view)
        if rule.name == CONVERGED and AlarmSeverity.CRITICAL in self._severities:
            finding = None  # what collapses beside it is no way to converge
        alarm = self._open.get(rule.name)
        if finding is None:
            if alarm is None:
                return []
            alarm.absent_rows += 1
            is_note = alarm.severity is AlarmSeverity.INFO or rule.clears_at_once
            if not is_note and alarm.absent_rows < CLEAR_AFTER:
                return []
            del self._open[rule.name]
            if alarm.first_critical_step is not None and alarm.num_critical_rows >= LEAST_CRITICAL:
                self.ended.append(
                    EndedAlarm(
                        rule=alarm.rule,
                        title=alarm.title,
                        steps=(alarm.first_critical_step, view.step),
                    )
                )
            return [self._record(alarm, AlarmState.CLEARED)]
        before = None if alarm is None else alarm.severity
        if alarm is None:
            alarm = self._open[rule.name] = _new_alarm(rule, finding, view)
        alarm.take(finding, rule, view)
        if alarm.severity is before:
            return []
        return [self._raised(alarm, exemplars(rule.name) if exemplars else ())]

    def _raised(self, alarm: OpenAlarm, evidence: tuple[str, ...]) -> Alarm:
        """An alarm that is news, with what to do about it."""
        record = replace(self._record(alarm), evidence=evidence)
        actions = self._advice(
            [alarm], [alarm.rule], is_lost=alarm.severity is AlarmSeverity.CRITICAL
        )
        if not actions:
            return record
        return replace(
            record,
            advice=" ".join(filter(None, (actions[0].text, actions[0].command))),
            suggested=live_command(actions[0], alarm.alarm_id, self.run_id, alarm.rule),
        )

    def _record(self, alarm: OpenAlarm, state: AlarmState = AlarmState.RAISED) -> Alarm:
        """An open alarm as it stands, or one that has ended."""
        view, rule = self.view(), RULES_BY_NAME[alarm.rule]
        main = view.of(alarm.channels[0], alarm.metric)
        message = f"{alarm.title} (after step {view.step}): {alarm.words}"
        return Alarm(
            alarm_id=alarm.alarm_id,
            rule=alarm.rule,
            severity=alarm.severity,
            state=state,
            step=view.step,
            onset_step=alarm.onset_step,
            metric=alarm.metric,
            value=main.shown_level if math.isfinite(main.level) else main.value,
            baseline=finite_or_none(main.baseline),
            threshold=main.threshold,
            window=main.window,
            message=message if state is AlarmState.RAISED else self._ending(alarm, view),
            refuted_by=rule.refuted_by,
            earliest_onset_step=self._earliest_update(alarm, view),
        )

    def _earliest_update(self, alarm: OpenAlarm, view: View) -> int:
        """The first step whose update may have made the change: older checkpoints are healthy.

        An evaluation shows the weights after its step. A training row shows those that sampled it:
        the weights after the step before, or still older ones where the sampler is behind.
        """
        earliest = _earliest(alarm, view)
        if alarm.metric.startswith(("eval/", "probe/")):
            return earliest
        lag = self.history.lag if math.isfinite(self.history.lag) else 0.0
        return max(0, earliest - 1 - math.ceil(lag))

    def _ending(self, alarm: OpenAlarm, view: View) -> str:
        """What was cleared, how serious it was, when it held, and why it ended.

        Either it is over, or the run is lost and hides it.
        """
        was = f"cleared: {in_sentence(alarm.title)}, was {alarm.severity.value}, "
        was += f"steps {alarm.raised_step} to {view.step}."
        worse = [a for a in self.open_alarms if a.severity is AlarmSeverity.CRITICAL]
        if not worse and not view.is_success_lost:
            return f"{was} {capitalised(describe(view.of(alarm.channels[0], alarm.metric)))}"
        by = f" {RULES_BY_NAME[worse[0].rule].title} has taken over." if worse else ""
        success = view.success
        now = "" if success is None else f" {capitalised(describe(success))}."
        return f"{was} It can no longer be measured: the run is lost.{by}{now}"

    def begin_branch(self, restarted: Collection[str] = ()) -> None:
        """A branch begins here: what was measured stays, and what is still so is raised again.

        Args:
            restarted: Channels whose tasks changed, so that they begin anew.
        """
        self._open, self._opening, self.ended = {}, "", []
        for name in restarted:
            self.view()[name].restart()
        self.first_watch_step = self.first_critical_step = None


def _onset_interval(alarm: OpenAlarm, view: View) -> tuple[int, int]:
    """First and last step at which what an alarm reports may have begun."""
    if alarm.onset_interval is not None:
        return alarm.onset_interval
    onset = alarm.raised_step if alarm.onset_step is None else alarm.onset_step
    return _earliest(alarm, view), max(onset, alarm.raised_step)


def _earliest(alarm: OpenAlarm, view: View) -> int:
    """The earliest row in which it may have begun."""
    if alarm.onset_interval is not None:
        return alarm.onset_interval[0]
    return view.first_step if alarm.earliest_onset is None else alarm.earliest_onset + 1


def action_commands(
    events: Iterable[Alarm], config: AlarmConfig, *, run_id: str, now: float
) -> list[Command]:
    """What rules that are set to act want done: the worst of pause and stop, once.

    A rule acts when it is raised as a warning or worse, not as information. The command goes the
    way of a person's, so it is acknowledged and recorded like one.

    Args:
        now: Seconds since the epoch.
    """
    raised_actions = {
        config.actions.get(event.rule, "notify"): event
        for event in events
        if event.state is AlarmState.RAISED and event.severity is not AlarmSeverity.INFO
    }
    for name, action in (("stop", CommandAction.STOP), ("pause", CommandAction.PAUSE)):
        if name in raised_actions:
            event = raised_actions[name]
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
    logged = dict.fromkeys(keys, 1.0)
    logged |= derived(dict.fromkeys(logged, 1.0))
    disabled = (config or AlarmConfig()).disabled
    seen = {spec.name for spec in SPECS if observed(logged, spec.keys)}
    out = []
    for rule in ALL_RULES:
        if rule.name in disabled or (rule.is_moot is not None and rule.is_moot(logged)):
            continue
        is_blind = not seen & set(rule.needs)
        if is_blind or (rule.confirms and not _can_confirm(seen, rule)):
            names = rule.needs if is_blind else rule.confirms
            if not is_blind and seen & set(rule.confirms):
                # One confirms: something else must agree with it.
                had = {*seen, *(FIXED if seen & set(FIXED) else ())}
                names = tuple(name for name in (*rule.needs, *names) if name not in had)
            needed = logged_keys(names, logged)
            out.append(Blindness(rule=rule.name, wanted=needed, is_blind=is_blind))
    return out


def _can_confirm(seen: set[str], rule: Rule) -> bool:
    confirming = seen & set(rule.confirms)
    return bool(confirming) and len(seen & {*rule.needs, *rule.confirms}) > (
        1 if set(rule.needs) != set(rule.confirms) else 0
    )


RULES_BY_NAME: Mapping[str, Rule] = {rule.name: rule for rule in ALL_RULES}
