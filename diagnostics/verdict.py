"""The verdict: what is happening to a run, since when, how one knows, and what to do.

    >>> import numpy as np
    >>> from echoscope.diagnostics.metric_table import MetricTable
    >>> from echoscope.diagnostics.verdict import diagnose
    >>> steps = np.arange(80)
    >>> valid = np.where(steps < 50, 0.95, 0.2)
    >>> success = np.where(steps < 50, 0.6, 0.1)
    >>> table = MetricTable(steps=steps, kind="csv", sources={}, columns={
    ...     "rollout/action_valid_frac": valid, "rollout/success_rate": success})
    >>> verdict = diagnose(table)
    >>> verdict.state.value, verdict.kinds[0], verdict.first_critical_step
    ('collapsed', 'FORMAT_COLLAPSE', 57)

The same code serves the live monitor (`Diagnosis`, step by step), `echoscope diagnose`, the
dashboard and the report. Everything is causal: at each step only the past is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..store.records import Alarm
from .alarms import (
    RULES_BY_NAME,
    AlarmEngine,
    Exemplars,
    OpenAlarm,
    RunState,
    blindness,
    command_line,
    suggestion,
)
from .changes import Channel, ChannelSpec
from .channels import CHANNELS
from .config import AlarmConfig
from .metric_names import Meaning
from .metric_table import MetricTable
from .regimes import RegimeTracker
from .verdict_record import Action, Evidence, Shown, Verdict
from .verdict_words import confidence_words, verdict_text

if TYPE_CHECKING:
    from ..store.reader import RunReader
    from .sources import Rescore

MIN_ROWS = 8
"""Fewer steps are no evidence of anything."""

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
        self.regimes.observe(step, values)
        return events

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
        unseen = blindness(self._keys, self.engine.config)
        state = self._state()
        onset, interval = _onset(open_alarms)
        evidence = self._evidence(open_alarms)
        rules = [RULES_BY_NAME[alarm.rule] for alarm in open_alarms]
        serious = [rule for rule in rules if rule.name not in ("CONVERGED", "STALLED")]
        confidence, rests_on = self._confidence(open_alarms, state)
        actions = self._actions(open_alarms)
        return Verdict(
            state=state,
            kinds=tuple(alarm.rule for alarm in open_alarms),
            regime=self.regimes.regime,
            onset_step=onset,
            onset_interval=interval,
            first_watch_step=self.engine.first_watch_step,
            first_critical_step=self.engine.first_critical_step,
            last_step=self.engine.last_step,
            confidence=confidence,
            rests_on=rests_on,
            had=tuple(name for name, starts in INPUTS.items() if self._has(starts)),
            could_not_see=tuple(f"{blind.rule}: {blind.reason}" for blind in unseen),
            evidence=evidence,
            exemplars=tuple(exemplars),
            causes=tuple(dict.fromkeys(cause for rule in serious for cause in rule.causes)),
            actions=actions,
            refuted_by=tuple(rule.refuted_by for rule in rules),
            notes=tuple(notes),
            text=verdict_text(
                state=state,
                num_rows=self.engine.num_rows,
                measured=sorted({channel.key for channel in self._judged()}),
                open_alarms=open_alarms,
                onset=(onset, interval),
                channels=self.engine.channels,
                regimes=self.regimes,
                template=template,
                actions=actions,
                unseen=unseen,
            ),
        )

    def _has(self, starts: tuple[str, ...]) -> bool:
        return any(key.startswith(starts) for key in self._keys)

    def _state(self) -> RunState:
        state = self.engine.run_state
        seen = any(channel.count >= channel.spec.warmup for channel in self._judged())
        is_short = self.engine.num_rows < MIN_ROWS and not state.is_collapse
        return RunState.INSUFFICIENT if is_short or not seen else state

    def _judged(self) -> list[Channel]:
        """Channels that some rule needs, and that were measured."""
        names = {name for rule in RULES_BY_NAME.values() for name in rule.needs}
        found = [self.engine.channels[name] for name in names - {"non_finite", "empty_selection"}]
        return [channel for channel in found if channel.count]

    def _evidence(self, open_alarms: Sequence[OpenAlarm]) -> tuple[Evidence, ...]:
        names = dict.fromkeys(name for alarm in open_alarms for name in alarm.channels)
        found = (_evidence(self.engine.channels[name]) for name in names)
        by_metric: dict[str, Evidence] = {}
        for evidence in found:
            if evidence is not None:
                by_metric.setdefault(evidence.metric, evidence)
        return tuple(by_metric.values())

    def _confidence(self, open_alarms: Sequence[OpenAlarm], state: RunState) -> tuple[str, str]:
        families = {family(name) for alarm in open_alarms for name in alarm.channels}
        measured = {family(channel.spec.name) for channel in self._judged()}
        return confidence_words(state, len(families), sorted(measured), self.engine.num_rows)

    def _actions(self, open_alarms: Sequence[OpenAlarm]) -> tuple[Action, ...]:
        out = []
        for alarm in open_alarms:
            rule = RULES_BY_NAME[alarm.rule]
            command = suggestion(rule, alarm, self.engine.run_id)
            line = command_line(command, self.run) if command else ""
            out.append(Action(text=rule.advice, command=line))
        return tuple(out)

    def state(self) -> dict[str, Any]:
        """All it must remember, as JSON values: part of every checkpoint."""
        return {
            "engine": self.engine.state(),
            "regimes": self.regimes.state(),
            "keys": list(self._keys),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state()` said."""
        self.engine.restore(state["engine"])
        self.regimes.restore(state["regimes"])
        self._keys = dict.fromkeys(state["keys"])


FAMILIES: Mapping[str, str] = {
    "closed": "format",
    "format": "format",
    "action": "validity",
    "eval_action": "validity",
    "success_probe": "success",
    "success_eval": "success",
    "success_train": "success",
    "entropy_up": "entropy",
    "entropy_down": "entropy",
    "truncated": "length",
    "capped": "length",
    "zero_spread": "spread",
}
"""Channels that measure the same thing in two ways count once."""


def family(channel: str) -> str:
    return FAMILIES.get(channel, channel)


def _onset(
    open_alarms: Sequence[OpenAlarm],
) -> tuple[int | None, tuple[int, int] | None]:
    """The onset of the worst alarm, between the last quiet observation and the first loud one."""
    if not open_alarms or open_alarms[0].onset_step is None:
        return None, None
    worst = open_alarms[0]
    onset = open_alarms[0].onset_step
    early = onset if worst.earliest_onset is None else min(worst.earliest_onset + 1, onset)
    return onset, (early, max(onset, worst.raised_step))


def _evidence(channel: Channel) -> Evidence | None:
    if not channel.count or channel.last_step is None:
        return None
    spec = channel.spec
    best = channel.high_step if spec.direction == "fall" else channel.low_step
    if spec.against == "start":
        best = channel.first_step
    before = math.nan if spec.against in ("zero", "recent") else channel.baseline
    return Evidence(
        metric=channel.key,
        before=before,
        after=channel.shown_level,
        interval=channel.interval,
        steps=(channel.last_step if best is None else best, channel.last_step),
    )


def diagnose(
    source: MetricTable | RunReader | str | Path,
    *,
    config: AlarmConfig | None = None,
    mapping: Mapping[str, Meaning] | None = None,
    progress: Callable[[int, int], None] | None = None,
    rescore: Rescore | None = None,
) -> Verdict:
    """Judge a run, a metrics file, or a table of metrics.

    Args:
        source: A table; an open run; or the path of a run's folder, or of a trainer's metrics file
            or console log (see `metrics_file.read_metrics`).
        config: Which rules judge, and by which thresholds; None for those of the run itself.
        mapping: Names of columns in a file that are not known (see `metric_names.parse_map`).
        progress: Called with (done, of) while trajectories are read.
        rescore: Adds what a model at hand says of a stored run (see `rescoring.py`).

    Raises:
        MetricsFileError: no metrics can be read from the file; one line.
        StoreError: the run cannot be read.
        OSError: there is no such file.
    """
    from .sources import open_source

    opened = open_source(source, mapping, progress, rescore)
    own = _own_settings(opened.reader)
    diagnosis = Diagnosis(config, run_id=opened.run_id, run=opened.name)
    for step, values in opened.table.rows():
        if config is None:
            diagnosis.engine.configure(own(step))
        diagnosis.observe(step, values)
    shown = opened.exemplars([alarm.rule for alarm in diagnosis.engine.open_alarms])
    verdict = diagnosis.verdict(
        exemplars=shown.places, template=shown.template, notes=opened.table.notes
    )
    return _with_caveats(verdict, opened.table.caveats)


def _own_settings(reader: RunReader | None) -> Callable[[int], AlarmConfig]:
    """By which settings each step is judged: the defaults where there is no stored run."""
    if reader is None:
        return lambda step: _DEFAULTS
    from .alarm_settings import alarm_settings  # imports the store, which a file does not need

    return alarm_settings(reader).at


_DEFAULTS = AlarmConfig()


def _with_caveats(verdict: Verdict, caveats: Mapping[str, str]) -> Verdict:
    """What rests on weak evidence says so, and is not confident."""
    metrics = [evidence.metric for evidence in verdict.evidence]
    met = [
        words for start, words in caveats.items() if any(key.startswith(start) for key in metrics)
    ]
    if not met:
        return verdict
    return replace(verdict, confidence="low", text=" ".join([verdict.text, *met]))
