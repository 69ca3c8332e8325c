"""Other ways to raise an alarm, measured on the same runs: what CollapseBench compares with.

RAGEN's stop rules with its constants (five empty selections; ten steps with a reward std below a
tenth of the first ten; five evaluations with a success below 0.01), a threshold on entropy, and a
z-score against the first twenty steps. All causal. Trigger-happy alerts always lead, so the two
that have a threshold can be given one at which they raise no more false alarms than allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .collapsebench import LabelledRun
from .metric_table import MetricTable

Alert = Callable[[LabelledRun], int | None]
"""A run -> the step of its first alarm."""

_OPENING = 20
_PERSIST = 3
_Z_METRICS = (
    "rollout/success_rate",
    "reward/return_mean",
    "reward/group_std_mean",
    "policy/entropy",
    "optim/grad_norm",
    "rollout/num_sampled_tokens_mean",
    "rollout/response_length_mean",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """A baseline over a set of runs."""

    name: str
    num_detected: int
    num_collapsed: int
    median_lead: float
    """Over collapsed runs with an alarm, late ones included; NaN without any."""
    num_false: int
    num_controls: int


def ragen_stop(run: LabelledRun) -> int | None:
    """The first of RAGEN's stops: where its metrics are missing, as recorded with the run."""
    found = [step for step in run.recorded_stops.values() if step is not None]
    for rule in (_reward_variance_stop, _low_validation_stop, _empty_stop):
        step = rule(run.table)
        if step is not None:
            found.append(step)
    return min(found, default=None)


def _reward_variance_stop(table: MetricTable) -> int | None:
    steps, values = _series(table, "reward/group_std_mean")
    if len(values) < 20:
        return None
    is_low = values < 0.1 * float(values[:10].mean())
    return _nth_in_a_row(steps[10:], is_low[10:], 10)


def _low_validation_stop(table: MetricTable) -> int | None:
    keys = [k for k in table.columns if k.startswith("eval/") and k.endswith("/success_rate")]
    found = []
    for key in keys:
        steps, values = _series(table, key)
        trained = steps > 0
        found.append(_nth_in_a_row(steps[trained], values[trained] < 0.01, 5))
    return min((step for step in found if step is not None), default=None)


def _empty_stop(table: MetricTable) -> int | None:
    steps, values = _series(table, "selection/is_empty")
    return _nth_in_a_row(steps, values > 0, 5)


def entropy_threshold(factor: float) -> Alert:
    """Entropy more than `factor` times, or less than 1/`factor` of, its first ten steps' median."""

    def alert(run: LabelledRun) -> int | None:
        steps, values = _series(run.table, "policy/entropy")
        if len(values) <= 10:
            return None
        start = max(float(np.median(values[:10])), 1e-9)
        ratio = np.abs(np.log(np.maximum(values, 1e-9) / start))
        return _nth_in_a_row(steps[10:], ratio[10:] > math.log(factor), _PERSIST)

    return alert


def z_score(threshold: float) -> Alert:
    """Any watched metric further than `threshold` standard deviations from its first 20 steps."""

    def alert(run: LabelledRun) -> int | None:
        found = []
        for key in _Z_METRICS:
            steps, values = _series(run.table, key)
            if len(values) <= _OPENING:
                continue
            opening = values[:_OPENING]
            spread = float(opening.std(ddof=1))
            if spread > 0:
                z = np.abs(values - float(opening.mean())) / spread
                far = z[_OPENING:] > threshold
                found.append(_nth_in_a_row(steps[_OPENING:], far, _PERSIST))
        return min((step for step in found if step is not None), default=None)

    return alert


def _series(table: MetricTable, key: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    values = table.columns.get(key)
    if values is None:
        return np.empty(0, dtype=np.int64), np.empty(0)
    there = np.isfinite(values)
    return table.steps[there], values[there]


def _nth_in_a_row(steps: NDArray[np.int64], is_on: NDArray[np.bool_], n: int) -> int | None:
    """The step at which a condition has held n times in a row."""
    count = 0
    for step, on in zip(steps.tolist(), is_on.tolist(), strict=True):
        count = count + 1 if on else 0
        if count >= n:
            return int(step)
    return None


def measure(name: str, alert: Alert, runs: Sequence[LabelledRun]) -> BaselineResult:
    """How a baseline does on the runs that count."""
    counted = [run for run in runs if run.counts]
    collapsed = [run for run in counted if run.is_collapsed]
    controls = [run for run in counted if not run.is_collapsed]
    alarms = [(run, alert(run)) for run in collapsed]
    leads = [
        run.halved_step - step
        for run, step in alarms
        if step is not None and run.halved_step is not None
    ]
    detected = [
        run
        for run, step in alarms
        if step is not None and (run.halved_step is None or step <= run.halved_step)
    ]
    return BaselineResult(
        name=name,
        num_detected=len(detected),
        num_collapsed=len(collapsed),
        median_lead=float(np.median(leads)) if leads else math.nan,
        num_false=sum(alert(run) is not None for run in controls),
        num_controls=len(controls),
    )


def baselines(runs: Sequence[LabelledRun], allowed_false: int) -> list[BaselineResult]:
    """All baselines; those with a threshold at a usual one, and at one that is matched.

    Matched: the most sensitive threshold with at most `allowed_false` false alarms on these very
    runs, which favours the baseline.
    """
    out = [
        measure("RAGEN's stop rules", ragen_stop, runs),
        measure("entropy x2 or /2", entropy_threshold(2.0), runs),
        measure("z-score 3", z_score(3.0), runs),
    ]
    for name, family, grid in (
        ("entropy, matched", entropy_threshold, np.geomspace(1.2, 400, 60)),
        ("z-score, matched", z_score, np.geomspace(1.5, 1000, 60)),
    ):
        for threshold in grid:
            result = measure(f"{name} ({threshold:.3g})", family(float(threshold)), runs)
            if result.num_false <= allowed_false:
                out.append(result)
                break
    return out
