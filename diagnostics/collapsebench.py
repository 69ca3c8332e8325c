"""CollapseBench: the diagnosis measured on labelled runs, beside other ways to raise an alarm.

A folder of curves holds one CSV per run and `labels.json`: `{"runs": {"set/name": {"label": ...,
"collapsed": true, "onset_early": {"step": 60}, "onset_performance": {"interval": [70, 80]}}}}`.
A collapsed run is detected if it is called collapsing or collapsed at or before the step where
evaluation success has halved for good. A run that did not collapse is a control: a warning is
allowed there, a critical alarm is false.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .alarms import RunState
from .metric_table import MetricTable
from .metrics_file import MetricsFileError, read_metrics
from .verdict import diagnose
from .verdict_record import Verdict

KINDS: Mapping[str, str] = {
    "format_collapse": "FORMAT_COLLAPSE",
    "never_learned_format_collapse": "FORMAT_COLLAPSE",
    "entropy_explosion": "ENTROPY_EXPLOSION",
    "never_learned_entropy_explosion": "ENTROPY_EXPLOSION",
    "template_collapse": "TEMPLATE_COLLAPSE",
    "low_entropy_collapse": "LOW_ENTROPY_COLLAPSE",
    "echo_trap": "ECHO_TRAP",
}
"""Label -> the rule that names this kind of collapse."""
NEITHER = frozenset({"zero_signal"})
"""Labels that count neither as a collapse nor as a control: nothing was ever learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRun:
    """A run and what is known about it."""

    name: str
    label: str
    is_collapsed: bool
    counts: bool
    """False: neither a collapse to find nor a control."""
    halved_step: int | None
    """First measurement of success below half of its running peak, and never above again."""
    onset_step: int | None
    """First sign, as labelled."""
    recorded_stops: Mapping[str, int]
    """Where the system that trained it stopped by itself, by rule, as recorded with the label."""
    table: MetricTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What the diagnosis said about one labelled run."""

    run: LabelledRun
    state: RunState
    first_watch_step: int | None
    first_critical_step: int | None
    kinds: tuple[str, ...]
    onset_step: int | None

    @property
    def is_detected(self) -> bool:
        """Critical at or before the step where success has halved for good."""
        halved = self.run.halved_step
        if self.first_critical_step is None:
            return False
        return halved is None or self.first_critical_step <= halved

    @property
    def lead(self) -> int | None:
        """Steps from the first critical alarm to the halving; negative if late."""
        halved = self.run.halved_step
        if self.first_critical_step is None or halved is None:
            return None
        return halved - self.first_critical_step

    @property
    def is_kind_right(self) -> bool:
        """The most serious rule is the one that the label names."""
        return bool(self.kinds) and KINDS.get(self.run.label) == self.kinds[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Over a set of results."""

    num_collapsed: int
    num_detected: int
    num_kind_right: int
    median_lead: float
    """Over collapsed runs that were called at all; NaN without any."""
    num_controls: int
    num_false_critical: int
    """Controls with a critical alarm."""
    num_control_steps: int
    median_onset_error: float
    """Steps between the onset named and the first sign labelled, absolute."""

    @property
    def false_per_1000(self) -> float:
        """Critical alarms per 1,000 steps of controls; NaN without any."""
        if not self.num_control_steps:
            return math.nan
        return 1000 * self.num_false_critical / self.num_control_steps


def load_curves(folder: str | Path) -> list[LabelledRun]:
    """The labelled runs of a folder.

    Raises:
        MetricsFileError: no labels, labels that are none, or a run that cannot be read; one line.
    """
    folder = Path(folder)
    path = folder / "labels.json"
    if not path.is_file():
        raise MetricsFileError(f"{folder}: holds no labels.json that says which runs collapsed")
    try:
        labels = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise MetricsFileError(f"{path}: is not JSON: {error}") from None
    runs = labels.get("runs") if isinstance(labels, dict) else None
    if not isinstance(runs, dict) or not all(isinstance(entry, dict) for entry in runs.values()):
        raise MetricsFileError(f"{path}: has no `runs` with an object for every run")
    return [_labelled(folder, str(name), entry) for name, entry in runs.items()]


def _labelled(folder: Path, name: str, entry: Mapping[str, Any]) -> LabelledRun:
    file = (folder / f"{name}.csv").resolve()
    if not file.is_relative_to(folder.resolve()):
        raise MetricsFileError(f"{folder}/labels.json: run {name!r} lies outside of the folder")
    table = read_metrics(file)
    label = str(entry.get("label", ""))
    is_collapsed = bool(entry.get("collapsed"))
    interval = _inside(entry.get("onset_performance"), "interval")
    halved = interval[1] if isinstance(interval, list) and len(interval) == 2 else None
    if halved is None and is_collapsed:
        halved = halved_for_good(table)
    stops = entry.get("facts") or {}
    return LabelledRun(
        name=name,
        label=label,
        is_collapsed=is_collapsed,
        counts=label not in NEITHER,
        halved_step=halved,
        onset_step=_whole(_inside(entry.get("onset_early"), "step")),
        recorded_stops={
            str(key): int(step)
            for key, step in stops.items()
            if str(key).endswith("_stop") and isinstance(step, int)
        },
        table=table,
    )


def _inside(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def halved_for_good(table: MetricTable) -> int | None:
    """First evaluation below half of the running peak and never above again; None if none.

    >>> import numpy as np
    >>> success = np.array([0.1, 0.4, 0.1, 0.3, 0.15, 0.1])
    >>> table = MetricTable(steps=np.arange(0, 60, 10), kind="csv", sources={},
    ...     columns={"eval/lake/success_rate": success})
    >>> halved_for_good(table)
    40
    """
    keys = [key for key in table.columns if key.startswith(("eval/", "probe/"))]
    keys = [key for key in keys if key.endswith("/success_rate")] or ["rollout/success_rate"]
    known = [table.columns[key] for key in keys if key in table.columns]
    if not known:
        return None
    success = np.mean(known, axis=0)
    there = np.isfinite(success)
    steps, values = table.steps[there], success[there]
    if not len(values):
        return None
    is_low = values < 0.5 * np.maximum.accumulate(values)
    last_high = np.flatnonzero(~is_low)[-1]
    return int(steps[last_high + 1]) if last_high + 1 < len(steps) else None


def judge(run: LabelledRun) -> RunResult:
    """The verdict on a run, which sees its metrics and not its label."""
    return result_of(run, diagnose(run.table))


def result_of(run: LabelledRun, verdict: Verdict) -> RunResult:
    """A verdict beside the label."""
    return RunResult(
        run=run,
        state=verdict.state,
        first_watch_step=verdict.first_watch_step,
        first_critical_step=verdict.first_critical_step,
        kinds=verdict.kinds,
        onset_step=verdict.onset_step,
    )


def summarise(results: Sequence[RunResult]) -> Summary:
    """Detection, lead, kinds and false alarms of a set of results."""
    counted = [result for result in results if result.run.counts]
    collapsed = [result for result in counted if result.run.is_collapsed]
    controls = [result for result in counted if not result.run.is_collapsed]
    leads = [result.lead for result in collapsed if result.lead is not None]
    errors = [
        abs(r.onset_step - r.run.onset_step)
        for r in collapsed
        if r.onset_step is not None and r.run.onset_step is not None
    ]
    return Summary(
        num_collapsed=len(collapsed),
        num_detected=sum(result.is_detected for result in collapsed),
        num_kind_right=sum(result.is_kind_right for result in collapsed),
        median_lead=float(np.median(leads)) if leads else math.nan,
        num_controls=len(controls),
        num_false_critical=sum(result.first_critical_step is not None for result in controls),
        num_control_steps=sum(result.run.table.num_rows for result in controls),
        median_onset_error=float(np.median(errors)) if errors else math.nan,
    )
