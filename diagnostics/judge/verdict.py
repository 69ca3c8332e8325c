"""The verdict: what is happening to a run, since when, how one knows, and what to do.

    >>> import numpy as np
    >>> from echoscope.diagnostics.read.table import MetricTable
    >>> from echoscope.diagnostics.judge.verdict import diagnose
    >>> steps = np.arange(80)
    >>> valid = np.where(steps < 50, 0.95, 0.2)
    >>> success = np.where(steps < 50, 0.6, 0.1)
    >>> table = MetricTable(steps=steps, sources={}, columns={
    ...     "rollout/action_valid_frac": valid, "rollout/success_rate": success})
    >>> verdict = diagnose(table)
    >>> verdict.state.value, verdict.kinds[0], verdict.first_critical_step
    ('collapsed', 'FORMAT_COLLAPSE', 51)

The same code serves the live monitor (`Diagnosis`, step by step), `echoscope diagnose`, the
dashboard and the report. Everything is causal: at each step only the past is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from echoscope.store.records import Alarm, AlarmSeverity, AlarmState
from echoscope.text.amounts import counted

from ..config import AlarmConfig
from ..read.foreign_names import Meaning
from ..read.table import MetricTable
from .advice.actions import way_on
from .alarms import RULES_BY_NAME, AlarmEngine, Exemplars, OpenAlarm, RunState, blindness
from .calibration import Calm, collapse_words, kinds_of, quiet_level, quiet_words
from .claims import Claim
from .courses.changes import HALF, Channel
from .courses.channels import CHANNELS, ChannelSpec
from .courses.outcome import Outcome
from .courses.outcome_claims import claims_of
from .record import THEN, Evidence, Shown, Verdict
from .regimes import Regime, RegimeTracker
from .rules.base import Sign, averaged, describe
from .rules.reasoning import independence
from .rules.task import disagreement
from .verdict_text import (
    AT_THE_END,
    NOTHING_READ,
    OF_REPLIES,
    Onset,
    in_other_words,
    left_out_words,
    verdict_text,
)

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader

    from ..read.sources import Opened, Rescore
    from .lineage import AlarmSettings, Before

LEAST_KINDS = 4
"""Kinds of signals beside a return that stays where it is, for a run to be called healthy."""
LEAST_SUCCESS = 0.01
"""A run in which no row has more success than this shows no health."""
MIN_ROWS = 8
"""Fewer steps are no evidence of anything."""
FROM_THE_START = "PROMPT_INDEPENDENT"
"""The rule about what has held since the first step."""

INPUTS: Mapping[str, tuple[str, ...]] = {
    "success": ("rollout/success_rate", "eval/", "probe/"),
    "reward": ("reward/",),
    "format": ("rollout/action_valid_frac", "rollout/format_valid_frac", "rollout/reasoning_"),
    "entropy": ("policy/entropy",),
    "gradients": ("optim/grad_norm", "gradient/"),
    "information": ("info/",),
    "text": ("text/",),
}
"""What a verdict may have had, by the metrics that make it so."""


class Diagnosis:
    """A run under observation: alarms and regime step by step, a verdict at any time."""

    def __init__(
        self,
        config: AlarmConfig | None = None,
        *,
        run_id: str = "",
        run: str = "RUN",
        channels: Sequence[ChannelSpec] = CHANNELS,
    ) -> None:
        self.engine = AlarmEngine(config, run_id=run_id, channels=channels)
        self.regimes = RegimeTracker()
        self.run = run
        """How commands name the run."""
        self._keys: dict[str, None] = {}

    def observe(
        self, step: int, values: Mapping[str, float], exemplars: Exemplars | None = None
    ) -> list[Alarm]:
        """Take in a step's metrics (see `AlarmEngine.observe`)."""
        self._keys.update(dict.fromkeys(k for k, v in values.items() if math.isfinite(v)))
        events = self.engine.observe(step, values, exemplars)
        self.regimes.observe(values)
        return events

    def claims(self) -> tuple[Claim, ...]:
        """What is so at this step, beyond chance; what decides about the run comes first."""
        view = self.engine.view()
        deciding = view.deciding
        outcomes = sorted(view.outcomes.values(), key=lambda outcome: outcome not in deciding)
        others = (disagreement(view), independence(view), self.engine.situation.fate)
        return (
            *(claim for outcome in outcomes for claim in claims_of(outcome)),
            *(other for other in others if other is not None),
        )

    @property
    def stated_onset(self) -> Onset:
        """Since when the headline says it is so: the likeliest step, and the first and the last.

        Nothing of a run that is not in trouble, or that was so from its start.
        """
        open_alarms = self.engine.open_alarms
        state = self.run_state()
        is_trouble = state is RunState.WATCH or state.is_collapse
        is_dated = is_trouble and bool(open_alarms) and open_alarms[0].rule != FROM_THE_START
        return _onset(open_alarms) if is_dated else (None, None)

    def verdict(
        self, *, exemplars: Sequence[Shown] = (), notes: Sequence[str] = (), template: str = ""
    ) -> Verdict:
        """What is known at this step.

        Args:
            exemplars: Places in trajectories that show it.
            notes: What was said about the source.
            template: The sentence about the template that reasonings share, with slots, if any.
        """
        open_alarms = self.engine.open_alarms
        state = self.run_state()
        confirmed = {alarm.rule for alarm in open_alarms} if state.is_collapse else set()
        unseen = [
            blind
            for blind in blindness(self._keys, self.engine.config)
            if blind.is_blind or blind.rule not in confirmed
        ]
        onset, interval = _onset(open_alarms)
        evidence = self._evidence(open_alarms)
        rules = [RULES_BY_NAME[alarm.rule] for alarm in open_alarms]
        confidence, rests_on = self.confidence()
        is_known = state is not RunState.INSUFFICIENT
        causes = self.engine.causes() if is_known else []
        # Notes alone are no problem, so there is nothing to do about them.
        has_problem = is_known and state is not RunState.HEALTHY
        actions = self.engine.actions() if has_problem else way_on(self.engine.situation)
        regime = self._regime(open_alarms)
        nearest = tuple(dict.fromkeys(channel.spec.label for channel in self.nearest()))
        verdict = Verdict(
            state=state,
            kinds=tuple(alarm.rule for alarm in open_alarms),
            regime=regime,
            onset_step=onset,
            onset_interval=interval,
            first_watch_step=self.engine.first_watch_step,
            first_critical_step=self.engine.first_critical_step,
            last_step=self.engine.last_step,
            confidence=confidence,
            rests_on=rests_on,
            had=tuple(
                name
                for name, starts in INPUTS.items()
                if any(key.startswith(starts) for key in self._keys)
            ),
            nearest=nearest,
            could_not_see=tuple(f"{blind.rule}: {blind.reason}" for blind in unseen),
            evidence=evidence,
            exemplars=tuple(exemplars),
            causes=tuple(cause.text for cause in causes),
            actions=actions,
            refuted_by=(
                *(rule.refuted_by for rule in rules),
                *(f"cause {n}: {cause.refuted_by}" for n, cause in enumerate(causes, 1)),
            ),
            notes=(*notes, *left_out_words(self.engine.view())),
            claims=self.claims(),
            text=verdict_text(
                self.engine,
                state=state,
                needed=self._needed(),
                num_measured=len({sign.key for sign in self._judged()}),
                onset=self.stated_onset,
                nearest=nearest,
                regime=regime,
                template=template,
                causes=causes,
                actions=actions,
                unseen=unseen,
            ),
        )
        if reads_whole_replies(self._keys):
            verdict = _reworded(verdict, OF_REPLIES)
        if self.engine.situation.has_ended:
            verdict = replace(_reworded(verdict, AT_THE_END), has_ended=True)
        return verdict

    def _regime(self, open_alarms: Sequence[OpenAlarm]) -> Regime:
        """What the plane of reasoning says; undetermined where the headline contradicts it."""
        measured = self.regimes.regime if self.regimes.is_current else Regime.UNDETERMINED
        if not open_alarms or open_alarms[0].severity is AlarmSeverity.INFO:
            return measured
        named = {
            "TEMPLATE_COLLAPSE": Regime.TEMPLATE_COLLAPSE,
            "LOW_ENTROPY_COLLAPSE": Regime.LOW_ENTROPY_COLLAPSE,
        }
        return named.get(open_alarms[0].rule, measured)

    def run_state(self) -> RunState:
        """What the run is at this step."""
        state = self.engine.run_state
        seen = any(sign.count >= _least(sign) for sign in self._judged())
        is_short = self.engine.num_rows < MIN_ROWS and not state.is_collapse
        if is_short or not seen:
            return RunState.INSUFFICIENT
        if state is RunState.HEALTHY and not self._shows_health:
            return RunState.INSUFFICIENT
        return state

    @property
    def _shows_health(self) -> bool:
        """A success rate was judged; or a return that rose, or that has other signals beside it.

        A return that stays where it is may be all there is to reach, or nothing: nobody knows.
        """
        outcomes = [o for o in self.engine.outcomes.values() if o.count and o.was_ready]
        rates = [outcome for outcome in outcomes if outcome.is_rate]
        if rates:
            return any(outcome.peak >= LEAST_SUCCESS for outcome in rates)
        has_risen = any(outcome.turns.mode == "up" for outcome in outcomes)
        return bool(outcomes) and (has_risen or len(self.kinds) >= LEAST_KINDS)

    def _needed(self) -> tuple[str, int, int]:
        """The metric that needs fewest further steps for a verdict: its steps, and how many.

        No metric is named where steps of any kind are all that is missing.
        """
        least = min(self._judged(), key=lambda sign: _least(sign) - sign.count, default=None)
        num_rows = self.engine.num_rows
        if least is None:
            return NOTHING_READ, num_rows, MIN_ROWS
        if MIN_ROWS - num_rows >= _least(least) - least.count:
            return "", num_rows, MIN_ROWS
        return least.key, least.count, _least(least)

    def _judged(self) -> list[Sign]:
        """Channels and outcomes that some rule needs, and that were measured."""
        names = {name for rule in RULES_BY_NAME.values() for name in rule.needs}
        names -= {"non_finite", "empty_selection"}
        # In one order: sets have another in every process.
        signs = self.engine.signs.items()
        return [sign for name, sign in signs if name in names and sign.count]

    def _evidence(self, open_alarms: Sequence[OpenAlarm]) -> tuple[Evidence, ...]:
        view = self.engine.view()
        moved = (view.of(name, alarm.metric) for alarm in open_alarms for name in alarm.channels)
        pieces = (_evidence(sign) for sign in moved if sign.stands_out)
        by_metric: dict[str, Evidence] = {}
        for evidence in pieces:
            if evidence is not None:
                by_metric.setdefault(evidence.metric, evidence)
        return tuple(by_metric.values())

    def confidence(self) -> tuple[str, str]:
        """high, medium, low or none, and what it rests on: as often right as `calibration` says."""
        state = self.run_state()
        if state is RunState.INSUFFICIENT:
            return "none", counted(self.engine.num_rows, "step")
        measured, over = self.kinds, f"over {counted(self.engine.num_rows, 'step')}"
        if state.is_collapse:
            names = {name for alarm in self.engine.open_alarms for name in alarm.channels}
            view = self.engine.view()
            # What leans agrees with an alarm; what is raised is sure by itself.
            first = self.engine.open_alarms[0].channels[:1]
            agreeing = kinds_of(n for n in names if view[n].is_raised) | kinds_of(first)
            level = "high" if len(agreeing) >= 3 else "medium"
            of = _kinds_words(measured | agreeing)  # some only agree, and are no rule's own
            past = "is past its threshold" if len(agreeing) == 1 else "are past their thresholds"
            return level, f"{len(agreeing)} of {of} {past} {over}; {collapse_words(level)}"
        over = f"{_kinds_words(measured)} {over}"
        if state is RunState.NOT_LEARNING:
            return "high", over
        if state is RunState.WATCH:
            return "low", f"{over}; a warning is not yet a collapse"
        if state is RunState.RECOVERING:
            return "medium", over
        calm, num_kinds = self.calm(), len(measured)
        near = "some signals are near an alarm; " if calm == "half way" else ""
        return quiet_level(calm, num_kinds), f"{near}{over}; {quiet_words(calm, num_kinds)}"

    @property
    def kinds(self) -> set[str]:
        """Kinds of signals that were measured and that a rule reads."""
        return kinds_of(sign.spec.name for sign in self._judged())

    def calm(self) -> Calm:
        """How calm the signals are where no alarm is open."""
        view = self.engine.view()
        if self.nearest():
            return "half way"
        is_past = view.step - view.first_step >= self.engine.config.warmup_steps
        return "at best" if view.is_success_at_best and is_past else "calm"

    def nearest(self) -> list[Sign]:
        """Signals at least half way to an alarm, the nearest first."""
        signs = self.engine.signs.values()
        moved = [sign for sign in signs if sign.is_raised or sign.strength >= HALF]
        return sorted(moved, key=lambda sign: -sign.strength)

    def recall(self, history: Sequence[Before]) -> None:
        """Begin with what came before a branch (see `lineage.py`)."""
        for before in history:
            for step, values in before.rows:
                self.observe(step, values)
            self.engine.begin_branch(before.restarted)


def _kinds_words(kinds: Collection[str]) -> str:
    return f"{counted(len(kinds), 'kind')} of {'signal' if len(kinds) == 1 else 'signals'}"


def reads_whole_replies(keys: Collection[str]) -> bool:
    """Whether text was measured, and no reply marks its reasoning.

    >>> reads_whole_replies(["text/dependence"])
    True
    >>> reads_whole_replies(["text/dependence", "text/closed_reasoning_frac"])
    False
    """
    has_reasoning = any(key.startswith("info/") or key in _REASONING_KEYS for key in keys)
    return any(key.startswith("text/") for key in keys) and not has_reasoning


_REASONING_KEYS = ("rollout/reasoning_closed_frac", "text/closed_reasoning_frac")


def _reworded(verdict: Verdict, phrases: Sequence[tuple[str, str]]) -> Verdict:
    """The same verdict in other words, wherever it is said in words."""
    words = partial(in_other_words, phrases=phrases)
    return replace(
        verdict,
        text=words(verdict.text),
        nearest=tuple(map(words, verdict.nearest)),
        evidence=tuple(replace(e, words=words(e.words)) for e in verdict.evidence),
        actions=tuple(replace(a, text=words(a.text)) for a in verdict.actions),
    )


def _onset(open_alarms: Sequence[OpenAlarm]) -> Onset:
    """The onset of the worst alarm: its earliest step, and the steps between which it lies."""
    if not open_alarms or open_alarms[0].onset_step is None:
        return None, None
    worst, onset = open_alarms[0], open_alarms[0].onset_step
    if worst.onset_interval is not None:
        return onset, worst.onset_interval
    early = onset if worst.earliest_onset is None else min(worst.earliest_onset + 1, onset)
    return onset, (early, max(onset, worst.raised_step))


def _least(sign: Sign) -> int:
    """Measurements that a sign needs before it says anything."""
    return sign.least_rows if isinstance(sign, Outcome) else sign.spec.warmup


def _evidence(sign: Sign) -> Evidence | None:
    if not sign.count or sign.last_step is None:
        return None
    if isinstance(sign, Outcome):
        now = sign.level_of(sign.since_turn)
        held = sign.level_of(sign.best)
        return Evidence(
            metric=sign.key,
            before=held.value,
            after=now.value,
            interval=(now.low, now.high),
            steps=(held.steps[1], now.steps[1]),
            words=describe(sign),
        )
    spec = sign.spec
    best = sign.high_step if spec.direction == "fall" else sign.low_step
    if spec.against == "start":
        best = sign.first_step
    before = math.nan if spec.against in ("zero", "recent") else sign.baseline
    return Evidence(
        metric=sign.key,
        before=before,
        after=sign.shown_level,
        interval=sign.interval,
        steps=(sign.last_step if best is None else best, sign.last_step),
        averaged=_averaged(sign),
        words=describe(sign),
    )


def _averaged(channel: Channel) -> str:
    over = averaged(channel)
    if channel.spec.against != "start" or len(channel.first_values) == 1:
        return over
    first = f"median of the first {len(channel.first_values)} rows"
    return f"{first}{THEN}{over or 'the value of this step'}"


def diagnose(
    source: MetricTable | RunReader | Opened | str | Path,
    *,
    config: AlarmConfig | None = None,
    mapping: Mapping[str, Meaning] | None = None,
    progress: Callable[[int, int], None] | None = None,
    rescore: Rescore | None = None,
    run: str = "",
    at: int | None = None,
) -> Verdict:
    """Judge a run, a metrics file, or a table of metrics.

    Args:
        source: A table; an open run, or what `sources.open_source` made of one; or the path of a
            run's folder, of a trainer's metrics file or console log (see
            `metrics_file.read_metrics`), of a trainer's rollouts (see
            `rollouts.of_another_trainer`), or of a folder with metrics, rollouts, or both.
        config: Which rules judge, and by which thresholds; None for those of the run itself.
        mapping: Names of columns in a file that are not known (see `metric_names.parse_map`).
        progress: Called with (done, of) while rollouts of another trainer are read.
        rescore: Adds what a model at hand says of a stored run (see `rescoring.py`).
        run: Which run's metrics to judge, where a file or folder holds those of several.
        at: The step after which to judge, as the verdict was then; None for the last one.

    Raises:
        MetricsFileError: no metrics can be read from the file; one line.
        StoreError: the run cannot be read.
        OSError: there is no such file.
    """
    from ..read.rollouts import of_another_trainer
    from ..read.sources import Opened, open_source

    if isinstance(source, Opened):
        return Judgement(config).verdict(source, at)
    if isinstance(source, str | Path):
        with of_another_trainer(Path(source), progress, rescore, mapping, run) as opened:
            if opened is not None:
                return Judgement(config).verdict(opened, at)
    return Judgement(config).verdict(open_source(source, mapping, rescore, run), at)


def judged_again(
    opened: Opened,
    diagnosis: Diagnosis,
    config: AlarmConfig | None = None,
    *,
    until: int | None = None,
    first_row: int = 0,
) -> Iterator[tuple[int, list[Alarm]]]:
    """Judge a source that is open, step by step: each step, and what it raises and clears.

    Args:
        diagnosis: a new one; it takes in what came before the run, and then each step.
        config: as of `diagnose`.
        until: the last step to judge; None for all.
        first_row: rows that the diagnosis has taken in before, when the source was shorter.
    """
    thresholds = _thresholds(opened)
    diagnosis.engine.situation = opened.situation
    if opened.reader is not None and not first_row:
        from .lineage import history_of  # reads stores, which a metrics file does not need

        diagnosis.recall(history_of(opened.reader)[0])
    for step, values in opened.table.rows(first_row):
        if until is not None and step > until:
            return
        if config is None:
            diagnosis.engine.configure(thresholds.at(step) if thresholds else _DEFAULTS)
        yield step, diagnosis.observe(step, values)


class Judgement:
    """The verdict of a source that grows: it says what `diagnose` says, and takes in each row once.

    It begins anew where what was judged before has changed: rows, or thresholds.
    """

    def __init__(self, config: AlarmConfig | None = None) -> None:
        self._config = config
        self._diagnosis: Diagnosis | None = None
        self._table: MetricTable | None = None
        """The rows that the diagnosis has taken in."""
        self._thresholds: AlarmSettings | None = None

    @property
    def has_begun(self) -> bool:
        return self._table is not None

    def num_new(self, opened: Opened) -> int:
        """Rows that a verdict of this source has to take in."""
        return opened.table.num_rows - self._num_taken_in(opened)

    def verdict(self, opened: Opened, at: int | None = None) -> Verdict:
        """After the last step of a source that is open, or after an earlier one."""
        from ..read.records import MetricsFileError

        note = ""
        if opened.reader is not None:
            from ..tools.stored_outcomes import evaluation_sentence  # reads stores
            from .lineage import history_of

            sentence = evaluation_sentence(opened.reader.info().config, opened.name)
            if sentence:
                empty = Diagnosis(self._config, run_id=opened.run_id, run=opened.name).verdict()
                nothing = replace(empty, actions=(), could_not_see=(), text=sentence)
                return replace(nothing, state=RunState.EVALUATION, rests_on="nothing is trained")
            note = history_of(opened.reader)[1]
        steps = opened.table.steps
        if at is not None and len(steps):
            if at < steps[0]:
                raise MetricsFileError(f"no step until {at} to judge: the first one is {steps[0]}")
            if at < steps[-1]:  # what became of the run was not known then
                changes = tuple(c for c in opened.situation.changes if c.step <= at)
                situation = replace(opened.situation, fate=None, has_ended=False, changes=changes)
                opened = replace(opened, situation=situation)
        diagnosis = self._taken_in(opened, at)
        exemplars_now = opened.exemplars(
            [alarm.rule for alarm in diagnosis.engine.open_alarms], upto=at
        )
        verdict = diagnosis.verdict(
            exemplars=exemplars_now.places,
            template=exemplars_now.template,
            notes=(*opened.table.notes, *([note] if note else [])),
        )
        return _with_caveats(verdict, opened.table.caveats)

    def _taken_in(self, opened: Opened, at: int | None) -> Diagnosis:
        """The diagnosis after the rows of a source, or after those until a step."""
        first_row = 0 if at is not None else self._num_taken_in(opened)
        diagnosis, self._diagnosis, self._table = self._diagnosis, None, None
        if diagnosis is None or not first_row:
            diagnosis = Diagnosis(self._config, run_id=opened.run_id, run=opened.name)
        for _ in judged_again(opened, diagnosis, self._config, until=at, first_row=first_row):
            pass
        if at is None:
            self._diagnosis, self._table = diagnosis, opened.table
            self._thresholds = _thresholds(opened)
        return diagnosis

    def _num_taken_in(self, opened: Opened) -> int:
        """Rows of a source with which it began when it was judged before; 0 where it did not."""
        earlier = self._table
        if earlier is None or not opened.table.begins_with(earlier):
            return 0
        last = int(earlier.steps[-1]) if earlier.num_rows else -1
        held, now = (
            settings.until(last) if settings else ()
            for settings in (self._thresholds, _thresholds(opened))
        )
        return earlier.num_rows if held == now else 0


def _thresholds(opened: Opened) -> AlarmSettings | None:
    """By which settings a stored run is judged, step by step; None for the defaults."""
    if opened.reader is None:
        return None
    from .lineage import alarm_settings  # imports the store, which a file does not need

    return alarm_settings(opened.reader)


_DEFAULTS = AlarmConfig()


def recorded_state(
    alarms: Iterable[tuple[str, str, str, str]], *, last_step: int, success: Sequence[float]
) -> RunState:
    """What a run's own alarms leave of it, without reading its metrics again: for lists of runs.

    Args:
        alarms: (alarm id, rule, severity, state) of every event, in order.
        last_step: Of the run.
        success: On the fixed tasks, in order; empty without evaluations.
    """
    last = {alarm_id: (rule, severity, state) for alarm_id, rule, severity, state in alarms}
    shut = AlarmState.CLEARED.value
    still = [(rule, severity) for rule, severity, state in last.values() if state != shut]
    rules = {rule for rule, _ in still}
    severities = {severity for _, severity in still}
    if AlarmSeverity.CRITICAL.value in severities:
        is_lost = bool(success) and success[-1] < HALF * max(success)
        return RunState.COLLAPSED if is_lost else RunState.COLLAPSING
    if "NOT_LEARNING" in rules:
        return RunState.NOT_LEARNING
    if AlarmSeverity.WARNING.value in severities:
        return RunState.WATCH
    if last_step < MIN_ROWS:
        return RunState.INSUFFICIENT
    return RunState.CONVERGED if "CONVERGED" in rules else RunState.HEALTHY


def _with_caveats(verdict: Verdict, caveats: Mapping[str, str]) -> Verdict:
    """What rests on weak evidence says so, and is not confident."""
    metrics = [evidence.metric for evidence in verdict.evidence]
    met = [
        caveat for start, caveat in caveats.items() if any(key.startswith(start) for key in metrics)
    ]
    if not met:
        return verdict
    return replace(verdict, confidence="low", text=" ".join([verdict.text, *met]))
