"""Labelled runs: what CollapseBench measures the diagnosis on.

A folder of curves holds one CSV per run and `labels.json`: `{"runs": {"set/name": {"label": ...,
"collapsed": true, "onset_early": {"step": 60}, "onset_performance": {"interval": [70, 80]},
"regime": "diverse", "seed": 3}}}`; the last four may be missing. The runs that ship with the
package are kept in the same format (`runs/`); those of `synthetic_runs.py` are made anew.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from echoscope.store.query.metric_keys import EVALUATIONS, SUCCESS_RATE
from echoscope.store.records import BoolArray, FloatArray64, IntArray64
from echoscope.text.strict_json import value_at

from ..judge.regimes import Regime
from ..read.metrics_file import read_metrics
from ..read.records import MetricsFileError
from ..read.table import MetricTable

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
VERSION = 2
"""Of the runs and labels: figures are compared within one version only."""
STEP, DIGITS = "step", 4
ONSET_MARGIN = 10
"""Steps by which a labelled first sign may be late: it is one reader's judgement."""
SMALL_RUNS = Path(__file__).parent / "runs"
"""Real small runs of the shipped policy, recorded once."""
NEEDS_A_LOOK = "needs_a_look"
NEITHER = frozenset({"zero_signal", "slow_degradation", NEEDS_A_LOOK})
"""Labels that count neither as a collapse nor as a control.

Nothing was ever learned; success was on its way down when the run ended, with no verdict yet; or
something happened that deserves a look, such as a dip.
"""


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
    regime: Regime | None = None
    """That the reasoning ends in, where the label says."""
    seed: int | None = None

    @property
    def healthy_until(self) -> float:
        """Before this step nothing has happened, so that an alarm there is false.

        Never ends in a control; in a collapse it ends `ONSET_MARGIN` steps before the first sign or
        the halving, whichever comes first. Where no first sign is known none of it counts.
        """
        if not self.counts:
            return -math.inf
        if not self.is_collapsed:
            return math.inf
        if self.onset_step is None:
            return -math.inf
        halved = math.inf if self.halved_step is None else self.halved_step
        return min(self.onset_step, halved) - ONSET_MARGIN

    @property
    def num_healthy_steps(self) -> int:
        return int((self.table.steps < self.healthy_until).sum())


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
    return [labelled(folder, str(name), entry) for name, entry in runs.items()]


def save_curves(folder: Path, runs: Sequence[LabelledRun], note: str) -> None:
    """Write runs as `load_curves` reads them."""
    entries: dict[str, dict[str, Any]] = {}
    for run in runs:
        write_csv(run.table, folder / f"{run.name}.csv")
        entries[run.name] = {"label": run.label, "collapsed": run.is_collapsed}
        if run.onset_step is not None:
            entries[run.name]["onset_early"] = {"step": run.onset_step}
        if run.halved_step is not None:  # the evaluation before it plays no part
            entries[run.name]["onset_performance"] = {"interval": [None, run.halved_step]}
        if run.recorded_stops:
            entries[run.name]["facts"] = dict(run.recorded_stops)
        if run.regime is not None:
            entries[run.name]["regime"] = run.regime.value
        if run.seed is not None:
            entries[run.name]["seed"] = run.seed
    write_labels(folder, note, entries)


def write_labels(folder: Path, note: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what is known of a folder's runs, by their names."""
    labels = {"version": VERSION, "note": note, "runs": entries}
    text = json.dumps(labels, indent=1, allow_nan=False) + "\n"
    (folder / "labels.json").write_text(text, encoding="utf-8")


def write_csv(table: MetricTable, path: Path, digits: int = DIGITS) -> None:
    """Write a table as CSV, with so many digits; a metric is empty where it was not measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([STEP, *table.columns])
        for row, step in enumerate(table.steps):
            values = [column[row] for column in table.columns.values()]
            cells = ["" if math.isnan(value) else f"{value:.{digits}g}" for value in values]
            writer.writerow([int(step), *cells])


def labelled(folder: Path, name: str, entry: Mapping[str, Any]) -> LabelledRun:
    """The run of this name in a folder, with its entry of `labels.json`.

    Raises:
        MetricsFileError: it cannot be read, or lies outside of the folder.
    """
    file = (folder / f"{name}.csv").resolve()
    if not file.is_relative_to(folder.resolve()):
        raise MetricsFileError(f"{folder}/labels.json: run {name!r} lies outside of the folder")
    table = read_metrics(file)
    label = str(entry.get("label", ""))
    is_collapsed = bool(entry.get("collapsed"))
    interval = value_at(entry, list, "onset_performance", "interval")
    halved = interval[1] if interval and len(interval) == 2 else None
    if halved is None and is_collapsed:
        halved = halved_for_good(table)
    stops = entry.get("facts") or {}
    regime = entry.get("regime")
    if regime is not None and regime not in [regime_.value for regime_ in Regime]:
        regime_ = ", ".join(regime_name.value for regime_name in Regime)
        raise MetricsFileError(f"run {name!r}: regime is {regime!r}, but must be one of {regime_}")
    return LabelledRun(
        name=name,
        label=label,
        is_collapsed=is_collapsed,
        counts=label not in NEITHER,
        halved_step=halved,
        onset_step=value_at(entry, int, "onset_early", "step"),
        recorded_stops={
            str(key): int(step)
            for key, step in stops.items()
            if str(key).endswith("_stop") and isinstance(step, int)
        },
        table=table,
        regime=None if regime is None else Regime(regime),
        seed=value_at(entry, int, "seed"),
    )


def halved_for_good(table: MetricTable) -> int | None:
    """First evaluation below half of the running peak and never above again; None if none.

    >>> import numpy as np
    >>> success = np.array([0.1, 0.4, 0.1, 0.3, 0.15, 0.1])
    >>> table = MetricTable(steps=np.arange(0, 60, 10), sources={},
    ...     columns={"eval/lake/success_rate": success})
    >>> halved_for_good(table)
    40
    """
    steps, values = success_of(table, EVALUATIONS, "probe/")
    if not len(values):
        return None
    last_high = np.flatnonzero(~is_halved(values))[-1]
    return int(steps[last_high + 1]) if last_high + 1 < len(steps) else None


def success_of(table: MetricTable, *prefixes: str) -> tuple[IntArray64, FloatArray64]:
    """The steps at which all tags were evaluated, and the mean of their success rates there; where
    none is, success in training."""
    keys = [k for k in table.columns if k.startswith(prefixes) and k.endswith("/success_rate")]
    rates = [table.columns[k] for k in keys or [SUCCESS_RATE] if k in table.columns]
    success = np.mean(rates, axis=0) if rates else np.full(table.num_rows, np.nan)
    is_there = np.isfinite(success)
    return table.steps[is_there], success[is_there]


def is_halved(success: FloatArray64) -> BoolArray:
    """Where success is below half of its peak so far."""
    return np.asarray(success < 0.5 * np.maximum.accumulate(success))
