"""RAGEN's three stop rules with its constants, and the first of them to stop a run.

Reward std below a tenth of the first ten steps', ten steps in a row; success in five evaluations
below 0.01; five empty selections. Source: RAGEN's `ragen_trainer`, see docs/collapsebench.md.
"""

from __future__ import annotations

from echoscope.store.query.metric_keys import EVALUATIONS, GROUP_STD, NOTHING_SELECTED

from ..harness import LabelledRun
from .entry import Alert, Entry, begins, spaced


def reward_variance_stop(share: float) -> Alert:
    """Reward std within groups below a share of its first ten steps', ten steps in a row."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        steps, values = run.table.measured(GROUP_STD)
        if len(values) < 20:
            return ()
        is_low = values < share * float(values[:10].mean())
        return begins(steps[10:], is_low[10:], 10)

    return alert


def low_validation_stop(rate: float) -> Alert:
    """Success in evaluation below a rate, five times in a row, not counting the untrained model."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        keys = [k for k in run.table.columns if k.startswith(EVALUATIONS)]
        alerts: set[int] = set()
        for key in (key for key in keys if key.endswith("/success_rate")):
            steps, values = run.table.measured(key)
            trained = steps > 0
            alerts |= set(begins(steps[trained], values[trained] < rate, 5))
        return tuple(sorted(alerts))

    return alert


def empty_selection_stop(times: float) -> Alert:
    """So many steps in a row without a selected group."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        steps, values = run.table.measured(NOTHING_SELECTED)
        return begins(steps, values > 0, int(times))

    return alert


ENTRIES: tuple[Entry, ...] = (
    Entry(name="RAGEN: the first of its three", alert=lambda _: first_stop),
    Entry(
        name="RAGEN: reward variance",
        alert=reward_variance_stop,
        usual=0.1,
        grid=spaced(0.01, 1.0),
        recorded="ragen_reward_variance_stop",
    ),
    Entry(
        name="RAGEN: low validation success",
        alert=low_validation_stop,
        usual=0.01,
        grid=spaced(0.001, 1.0),
        recorded="ragen_low_validation_stop",
    ),
    Entry(
        name="RAGEN: empty selection",
        alert=empty_selection_stop,
        usual=5,
        grid=tuple(float(n) for n in range(1, 21)),
        recorded="ragen_empty_stop",
    ),
)


def first_stop(run: LabelledRun) -> tuple[int, ...]:
    """The first of RAGEN's stops: where its metrics are missing, as recorded with the run."""
    steps = [step for entry in ENTRIES if entry.recorded for step in entry.as_used(run)]
    return (min(steps),) if steps else ()
