"""Which runs of a group have a curve, and its mean and band."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_run import make_run

from echoscope.dashboard.data.comparing.groups import RunGroup
from echoscope.dashboard.data.comparing.levels import Trials, evaluated_estimate, share_estimate
from echoscope.dashboard.data.comparing.series import mean_curve
from echoscope.dashboard.data.curves import AS_STEPS, Curve
from echoscope.dashboard.data.run_table.curves import evenly, members_each, read_means
from echoscope.diagnostics.measure.outcomes import mean_estimate
from echoscope.store.query.listing import RunList

ENTROPY, SUCCESS = "policy/entropy", "rollout/success_rate"
EVALUATED, NUM_TASKS = "eval/all/success_rate", "eval/all/num_tasks"


def means(key: str, values: dict[int, float], num_tasks: float | None = None) -> pd.DataFrame:
    """What was read of a run."""
    rows = [(key, step, value, 1) for step, value in values.items()]
    rows += [(NUM_TASKS, step, num_tasks, 1) for step in values if num_tasks is not None]
    return pd.DataFrame(rows, columns=["key", "bucket", "value", "num_points"])


def band_of(key: str, *members: pd.DataFrame) -> Curve:
    runs = {f"run {n}": table for n, table in enumerate(members)}
    return mean_curve(
        RunGroup(runs=tuple(runs), name="all"),
        key,
        runs,
        dict.fromkeys(runs, AS_STEPS),
        width=1,
        smooth=0.0,
        color="red",
    )


def test_a_band_is_of_the_runs_that_have_the_step() -> None:
    band = band_of(ENTROPY, means(ENTROPY, {0: 1.0, 1: 2.0}), means(ENTROPY, {1: 4.0, 2: 5.0}))
    assert band.steps.tolist() == [0, 1, 2]
    assert band.values.tolist() == [1.0, 3.0, 5.0]
    assert band.low is not None
    assert np.isnan(band.low).tolist() == [True, False, True]


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.6], [0.0, 0.0, 0.1], [1.0, 0.9, 1.0]])
def test_the_band_is_the_interval_of_the_table(values: list[float]) -> None:
    for key, estimate in (
        (ENTROPY, mean_estimate(values)),
        (SUCCESS, share_estimate(values, Trials(num=3, is_known=False))),
    ):
        band = band_of(key, *(means(key, {7: value}) for value in values))
        assert band.low is not None
        assert band.high is not None
        assert band.low[0] == pytest.approx(estimate.low)
        assert band.high[0] == pytest.approx(estimate.high)


def test_a_band_of_a_share_stays_a_share() -> None:
    band = band_of(SUCCESS, means(SUCCESS, {0: 0.0, 1: 1.0}), means(SUCCESS, {0: 0.1, 1: 0.9}))
    assert band.low is not None
    assert band.high is not None
    assert (band.low >= 0).all()
    assert (band.high <= 1).all()


def test_what_is_called_a_share_and_is_none_keeps_its_values() -> None:
    band = band_of(SUCCESS, means(SUCCESS, {0: 40.0}), means(SUCCESS, {0: 60.0}))
    assert band.values.tolist() == [50.0]


def test_the_band_of_an_evaluation_is_never_narrower_than_its_tasks_allow() -> None:
    shares = [0.5, 0.5, 0.51]
    band = band_of(EVALUATED, *(means(EVALUATED, {7: share}, 64.0) for share in shares))
    estimate = evaluated_estimate(shares, [64] * 3)
    assert band.low is not None
    assert band.high is not None
    assert (band.low[0], band.high[0]) == pytest.approx((estimate.low, estimate.high))
    assert band.high[0] - band.low[0] > 2 * 1.96 * (0.25 / (3 * 64)) ** 0.5


def test_all_runs_of_a_group_are_read_up_to_a_thousand_and_then_evenly_chosen_ones() -> None:
    assert members_each([100, 17, 3]) == 100
    most = members_each([9_000, 500, 500])
    assert (most, 3 * most <= 1_000) == (333, True)
    chosen = evenly(range(9_000), most)
    assert len(chosen) == most
    assert np.mean(chosen) == pytest.approx(4_500, rel=0.01)
    assert np.ptp(np.diff(chosen)) <= 1


def test_a_curve_of_many_steps_is_the_means_of_equal_ranges(tmp_path: Path) -> None:
    def values(step: int) -> dict[str, float]:
        is_evaluated = step % 2 == 0
        evaluated = {EVALUATED: step / 10, NUM_TASKS: 60.0 + step}
        return {ENTROPY: float(step)} | (evaluated if is_evaluated else {})

    make_run(tmp_path / "a", 7, values=values)
    (row,) = RunList(tmp_path).rows()
    entropy = read_means(row, ENTROPY, 3)
    assert entropy["bucket"].tolist() == [0, 1, 2]
    assert entropy["value"].tolist() == [1.0, 4.0, 6.0]
    success = read_means(row, EVALUATED, 3).set_index("key")
    assert success.loc[EVALUATED, "bucket"].tolist() == [0, 1, 2]
    assert success.loc[EVALUATED, "value"].tolist() == pytest.approx([0.1, 0.4, 0.6])
    assert success.loc[NUM_TASKS, "value"].tolist() == [61, 64, 66]
    assert read_means(row, "absent", 1).empty
