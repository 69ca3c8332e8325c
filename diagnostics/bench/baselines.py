"""Other ways to raise an alarm, measured on the same runs: what CollapseBench compares with.

RAGEN's three stop rules with its constants (reward std below a tenth of the first ten steps', ten
steps in a row; success in five evaluations below 0.01; five empty selections), a threshold on
entropy, and a z-score against the first twenty steps. All causal. Trigger-happy alerts always lead,
so each is also given the threshold that does best among those that raise no more false alarms than
allowed, chosen on these very runs: in hindsight, which favours it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import BoolArray, IntArray64

from ..read.table import MetricTable
from .harness import LabelledRun
from .scores import Call, Scores, score

Alert = Callable[[LabelledRun], tuple[int, ...]]
"""A run -> the steps at which alarms begin."""

OPENING = 20
PERSIST = 3
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
class Family:
    """An alert with a threshold."""

    name: str
    alert: Callable[[float], Alert]
    usual: float
    """Its threshold as published, or as people set it."""
    grid: tuple[float, ...]
    recorded: str = ""
    """Name under which the source recorded this very rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """A baseline over a set of runs: as people use it, and at matched false alarms."""

    name: str
    usual: float
    """NaN where there is none to choose."""
    scores: Scores
    matched: float = math.nan
    """The best threshold among those with no more false alarms than allowed; NaN if none has."""
    matched_scores: Scores | None = None
    sweep: tuple[tuple[float, Scores], ...] = ()
    """Every threshold tried."""


def reward_variance_stop(share: float) -> Alert:
    """Reward std within groups below a share of its first ten steps', ten steps in a row."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        steps, values = _series(run.table, "reward/group_std_mean")
        if len(values) < 20:
            return ()
        is_low = values < share * float(values[:10].mean())
        return begins(steps[10:], is_low[10:], 10)

    return alert


def low_validation_stop(rate: float) -> Alert:
    """Success in evaluation below a rate, five times in a row, not counting the untrained model."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        keys = [k for k in run.table.columns if k.startswith("eval/")]
        alerts: set[int] = set()
        for key in (key for key in keys if key.endswith("/success_rate")):
            steps, values = _series(run.table, key)
            trained = steps > 0
            alerts |= set(begins(steps[trained], values[trained] < rate, 5))
        return tuple(sorted(alerts))

    return alert


def empty_selection_stop(times: float) -> Alert:
    """So many steps in a row without a selected group."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        steps, values = _series(run.table, "selection/is_empty")
        return begins(steps, values > 0, int(times))

    return alert


def entropy_threshold(factor: float) -> Alert:
    """Entropy more than `factor` times, or less than 1/`factor` of, its first ten steps' median."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        steps, values = _series(run.table, "policy/entropy")
        if len(values) <= 10:
            return ()
        start = max(float(np.median(values[:10])), 1e-9)
        ratio = np.abs(np.log(np.maximum(values, 1e-9) / start))
        return begins(steps[10:], ratio[10:] > math.log(factor), PERSIST)

    return alert


def z_score(threshold: float) -> Alert:
    """Any watched metric further than `threshold` standard deviations from its first 20 steps."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        alerts: set[int] = set()
        for key in _Z_METRICS:
            steps, values = _series(run.table, key)
            if len(values) <= OPENING:
                continue
            opening = values[:OPENING]
            spread = float(opening.std(ddof=1))
            if spread > 0:
                z = np.abs(values - float(opening.mean())) / spread
                far = z[OPENING:] > threshold
                alerts |= set(begins(steps[OPENING:], far, PERSIST))
        return tuple(sorted(alerts))

    return alert


def _grid(low: float, high: float, number: int = 60) -> tuple[float, ...]:
    return tuple(float(value) for value in np.geomspace(low, high, number))


FAMILIES: tuple[Family, ...] = (
    Family(
        name="RAGEN: reward variance",
        alert=reward_variance_stop,
        usual=0.1,
        grid=_grid(0.01, 1.0),
        recorded="ragen_reward_variance_stop",
    ),
    Family(
        name="RAGEN: low validation success",
        alert=low_validation_stop,
        usual=0.01,
        grid=_grid(0.001, 1.0),
        recorded="ragen_low_validation_stop",
    ),
    Family(
        name="RAGEN: empty selection",
        alert=empty_selection_stop,
        usual=5,
        grid=tuple(float(n) for n in range(1, 21)),
        recorded="ragen_empty_stop",
    ),
    Family(name="entropy", alert=entropy_threshold, usual=2.0, grid=_grid(1.2, 400)),
    Family(name="z-score", alert=z_score, usual=3.0, grid=_grid(1.5, 1000)),
)


def ragen_stop(run: LabelledRun) -> tuple[int, ...]:
    """The first of RAGEN's stops: where its metrics are missing, as recorded with the run."""
    steps = [step for family in FAMILIES if family.recorded for step in as_used(family)(run)]
    return (min(steps),) if steps else ()


def as_used(family: Family) -> Alert:
    """The alert at its usual threshold: as recorded by the source where it was, else computed."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        recorded = run.recorded_stops.get(family.recorded)
        return family.alert(family.usual)(run) if recorded is None else (recorded,)

    return alert


def _series(table: MetricTable, key: str) -> tuple[IntArray64, NDArray[np.float64]]:
    values = table.columns.get(key)
    if values is None:
        return np.empty(0, dtype=np.int64), np.empty(0)
    there = np.isfinite(values)
    return table.steps[there], values[there]


def begins(steps: IntArray64, is_on: BoolArray, times: int) -> tuple[int, ...]:
    """The steps at which a condition has held so many times in a row, once per stretch.

    >>> begins(np.arange(8), np.array([0, 1, 1, 1, 0, 1, 1, 0], dtype=bool), 2)
    (2, 6)
    """
    if len(is_on) < times:
        return ()
    total = np.concatenate([[0], np.cumsum(is_on)])
    is_full = total[times:] - total[:-times] == times
    is_new = is_full & ~np.concatenate([[False], is_full[:-1]])
    return tuple(int(step) for step in steps[times - 1 :][is_new])


def measure(alert: Alert, runs: Sequence[LabelledRun]) -> Scores:
    """How an alert does on the runs that count."""
    return score([Call(run=run, steps=alert(run)) for run in runs if run.counts])


def matched(sweep: Sequence[tuple[float, Scores]], allowed_per_1000: float) -> int | None:
    """The place of the best threshold with few enough false alarms; None if there is none.

    Best: most collapses called in time, then the longest lead.
    """
    fit = [
        (s.num_in_time, s.median_lead if not math.isnan(s.median_lead) else -math.inf, -n)
        for n, (_, s) in enumerate(sweep)
        if not s.false_per_1000 > allowed_per_1000
    ]
    return -max(fit)[2] if fit else None


def baselines(runs: Sequence[LabelledRun], allowed_per_1000: float) -> list[BaselineResult]:
    """Every family, as used and at no more than so many false alarms per 1,000 healthy steps."""
    any_stop = BaselineResult(
        name="RAGEN: the first of its three", usual=math.nan, scores=measure(ragen_stop, runs)
    )
    return [any_stop, *(_baseline(family, runs, allowed_per_1000) for family in FAMILIES)]


def _baseline(
    family: Family, runs: Sequence[LabelledRun], allowed_per_1000: float
) -> BaselineResult:
    sweep = tuple((value, measure(family.alert(value), runs)) for value in family.grid)
    chosen = matched(sweep, allowed_per_1000)
    return BaselineResult(
        name=family.name,
        usual=family.usual,
        scores=measure(as_used(family), runs),
        matched=math.nan if chosen is None else sweep[chosen][0],
        matched_scores=None if chosen is None else sweep[chosen][1],
        sweep=sweep,
    )
