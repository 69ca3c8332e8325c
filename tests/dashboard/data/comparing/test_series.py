"""Curves and levels of groups from tables: what is drawn is what SQL says."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_run import make_run

from echoscope.dashboard.data import queries
from echoscope.dashboard.data.comparing import series
from echoscope.dashboard.data.comparing.groups import RunGroup
from echoscope.dashboard.data.comparing.series import (
    bucketed,
    drawn_axis,
    mean_curve,
    run_level,
)
from echoscope.dashboard.data.curves import step_axis
from echoscope.store.query.metric_keys import ENTROPY, SUCCESS_RATE

EVALUATED = "eval/lake/success_rate"


def table(*rows: tuple[str, int, float]) -> pd.DataFrame:
    return pd.DataFrame(
        [(*row, 1) for row in rows], columns=["key", "bucket", "value", "num_points"]
    )


@pytest.fixture
def runs(tmp_path: Path, serve_root: Callable[..., None]) -> tuple[str, ...]:
    for n, name in enumerate(("a", "b")):
        make_run(tmp_path / name, 4 + n, values=lambda step, n=n: {ENTROPY: step + 10.0 * n})
    serve_root(tmp_path)
    return "a", "b"


def test_a_curve_is_the_mean_of_the_runs_that_have_a_step(runs: tuple[str, ...]) -> None:
    drawn = mean_curve(
        RunGroup(runs=runs, name="both"),
        ENTROPY,
        {run: bucketed(run, [ENTROPY], 1) for run in runs},
        {run: step_axis(queries.step_table(run)) for run in runs},
        width=1,
        smooth=0.0,
        color="red",
    )
    assert drawn.steps.tolist() == [0, 1, 2, 3, 4]
    assert drawn.values.tolist() == [5, 6, 7, 8, 14]
    assert drawn.low is not None
    assert np.isfinite(drawn.low).tolist() == [True, True, True, True, False]
    assert not drawn.is_sparse


def test_a_long_run_is_averaged_in_ranges_of_steps(runs: tuple[str, ...]) -> None:
    """Never its extremes: their mean would be another number."""
    rows = bucketed("a", [ENTROPY], 2)
    assert rows[rows["key"] == ENTROPY]["value"].tolist() == [0.5, 2.5]


def test_a_level_is_the_mean_over_the_window_and_counts_its_episodes(runs: tuple[str, ...]) -> None:
    (expected, count), *_ = queries.table(
        "b", f"SELECT avg(value), count(*) FROM metrics WHERE key = '{ENTROPY}' AND step >= 2"
    ).to_numpy()
    level = run_level("b", bucketed("b", [ENTROPY], 1), ENTROPY, (2, 4), width=1, seed="0")
    assert (level.mean, level.num_points) == (expected, count)
    rows = bucketed("b", [SUCCESS_RATE], 1)
    success = pd.concat([rows, table(*((SUCCESS_RATE, n, 0.5) for n in range(5)))])
    assert run_level("b", success, SUCCESS_RATE, (2, 4), width=1, seed="0").num_episodes == 12


def test_the_same_tasks_count_once_however_often_they_are_played() -> None:
    rows = table(
        (EVALUATED, 10, 0.2),
        (EVALUATED, 20, 0.4),
        ("eval/lake/num_tasks", 10, 32.0),
        ("eval/lake/num_tasks", 20, 32.0),
    )
    level = run_level("a", rows, EVALUATED, (10, 20), width=1, seed=None)
    assert level.num_tasks == 32
    assert level.mean == pytest.approx(0.3)


def test_points_never_go_backwards_when_a_quick_run_outlives_a_slow_one() -> None:
    steps = pd.DataFrame({"step": [0, 1, 2], "wall_time": [0.0, 100.0, 200.0], "step_s": [0.0] * 3})
    slow = step_axis(steps.head(2), "time")
    quick = step_axis(steps.assign(wall_time=[0.0, 1.0, 2.0]), "time")
    drawn = mean_curve(
        RunGroup(runs=("slow", "quick"), name="both"),
        ENTROPY,
        {
            "slow": table((ENTROPY, 0, 1.0), (ENTROPY, 1, 1.0)),
            "quick": table(*((ENTROPY, n, 1.0) for n in range(3))),
        },
        {"slow": slow, "quick": quick},
        width=1,
        smooth=0.0,
        color="red",
    )
    assert np.diff(np.asarray(drawn.steps, np.float64)).min() >= 0
    axis = drawn_axis({"quick": quick}, "time")
    assert axis.at(drawn.steps).tolist() == np.asarray(drawn.steps).tolist()


def test_evaluations_are_points_and_are_never_smoothed() -> None:
    rows = table(*((EVALUATED, n, n / 10) for n in range(5)))
    axis = step_axis(pd.DataFrame({"step": [0], "wall_time": [0.0], "step_s": [1.0]}))
    drawn = mean_curve(
        RunGroup(runs=("a",), name="a"),
        EVALUATED,
        {"a": rows},
        {"a": replace(axis)},
        width=1,
        smooth=0.9,
        color="red",
    )
    assert drawn.is_sparse
    assert drawn.values.tolist() == [0.0, 0.1, 0.2, 0.3, 0.4]


def test_examples_in_the_docstrings_hold() -> None:
    results = doctest.testmod(series)
    assert results.attempted > 0
    assert results.failed == 0
