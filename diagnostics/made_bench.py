"""CollapseBench on made runs, and the false-alarm rate on resampled healthy stretches of real runs.

Seeds below `REPORT_SEED` were looked at while rules were written; those from there on only report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .alarms import AlarmEngine
from .baselines import BaselineResult, baselines
from .collapsebench import LabelledRun, RunResult, Summary, result_of, summarise
from .made_runs import COLLAPSES, HEALTHY, make
from .metric_table import MetricTable
from .resampling import block_bootstrap, without_trend
from .verdict import diagnose

REPORT_SEED = 1000
WARM_ROWS = 20
"""Rows of a healthy stretch that are left out: the policy still changes fast there."""
MIN_STRETCH = 40
MARGIN = 10
"""Steps before the first sign of trouble that are left out, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeReport:
    """The diagnosis on made runs of every kind."""

    by_kind: Mapping[str, Summary]
    watched: Mapping[str, int]
    """Kind -> runs with a warning or worse."""
    total: Summary
    regimes: Mapping[tuple[str, str], int]
    """(regime made, regime named) -> runs."""
    beside: tuple[BaselineResult, ...]

    @property
    def regimes_right(self) -> float:
        total = sum(self.regimes.values())
        right = sum(n for (made, named), n in self.regimes.items() if made == named)
        return right / total if total else math.nan


def bench_made(seeds: Sequence[int]) -> MadeReport:
    """Judge a run of every kind for every seed."""
    by_kind: dict[str, Summary] = {}
    watched: dict[str, int] = {}
    regimes: Counter[tuple[str, str]] = Counter()
    results: list[RunResult] = []
    for kind in (*COLLAPSES, *HEALTHY):
        found = []
        for seed in seeds:
            made = make(kind, seed)
            verdict = diagnose(made.run.table)
            found.append(result_of(made.run, verdict))
            regimes[made.regime.value, verdict.regime.value] += 1
        by_kind[kind] = summarise(found)
        watched[kind] = sum(result.first_watch_step is not None for result in found)
        results += found
    total = summarise(results)
    return MadeReport(
        by_kind=by_kind,
        watched=watched,
        total=total,
        regimes=dict(regimes),
        beside=tuple(baselines([r.run for r in results], total.num_false_critical)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseAlarms:
    """Alarms on stretches where nothing happened."""

    num_stretches: int
    num_steps: int
    num_critical: int
    """Times that a critical alarm was raised."""
    num_warnings: int

    def per_1000(self, count: int) -> float:
        return 1000 * count / self.num_steps if self.num_steps else math.nan


def resampled_false_alarms(
    runs: Sequence[LabelledRun], *, draws: int, length: int = 200, block: int = 20, seed: int = 0
) -> FalseAlarms:
    """Alarms on block-bootstrapped healthy stretches: what happens to fire by chance alone.

    Of each run that did not collapse all rows after the first 20 are used, of one that did those
    up to ten steps before the first sign; trends are taken out, noise and its autocorrelation
    within a block stay.
    """
    rng = np.random.default_rng(seed)
    stretches = [stretch for run in runs if (stretch := healthy_stretch(run)) is not None]
    num_critical = num_warnings = num_steps = 0
    for _ in range(draws):
        for stretch in stretches:
            names, rows = stretch
            drawn = block_bootstrap(rows, length, min(block, len(rows)), rng)
            engine = AlarmEngine()
            for step, row in enumerate(drawn):
                values = dict(zip(names, row.tolist(), strict=True))
                for event in engine.observe(step, values):
                    is_raised = event.state.value == "raised"
                    num_critical += is_raised and event.severity.value == "critical"
                    num_warnings += is_raised and event.severity.value == "warning"
            num_steps += length
    return FalseAlarms(
        num_stretches=len(stretches),
        num_steps=num_steps,
        num_critical=num_critical,
        num_warnings=num_warnings,
    )


def healthy_stretch(run: LabelledRun) -> tuple[list[str], NDArray[np.float64]] | None:
    """Names and rows (r, C) without trends of the part where nothing happened; None if short."""
    if not run.counts:
        return None
    end = math.inf
    if run.is_collapsed:
        signs = [step for step in (run.onset_step, run.halved_step) if step is not None]
        end = min(signs, default=0) - MARGIN
    inside = run.table.steps < end
    inside[:WARM_ROWS] = False
    if inside.sum() < MIN_STRETCH:
        return None
    return _flat_rows(run.table, inside)


def _flat_rows(
    table: MetricTable, inside: NDArray[np.bool_]
) -> tuple[list[str], NDArray[np.float64]]:
    names = list(table.columns)
    columns = []
    for name in names:
        values = without_trend(table.columns[name][inside])
        is_rate = name.endswith(("_frac", "_rate", "dependence"))
        floor = 0.0 if np.nanmin(table.columns[name]) >= 0 else -math.inf
        columns.append(np.clip(values, floor, 1.0 if is_rate else math.inf))
    return names, np.column_stack(columns)
