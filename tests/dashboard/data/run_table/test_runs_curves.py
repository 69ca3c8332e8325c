"""The mean and the band of several runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_run import make_run

from echoscope.dashboard.data.comparing.levels import Trials, evaluated_estimate, share_estimate
from echoscope.dashboard.data.run_table.curves import (
    Series,
    _read,
    band_of,
    evenly,
    members_each,
)
from echoscope.diagnostics.measure.outcomes import mean_estimate
from echoscope.store.query.listing import RunList

ENTROPY, SUCCESS = "policy/entropy", "rollout/success_rate"


def series(values: dict[int, float]) -> Series:
    return Series(steps=np.array([*values]), values=np.array([*values.values()]))


def test_a_band_is_of_the_runs_that_have_the_step() -> None:
    band = band_of([series({0: 1.0, 1: 2.0}), series({1: 4.0, 2: 5.0})], ENTROPY)
    assert band.steps.tolist() == [0, 1, 2]
    assert band.values.tolist() == [1.0, 3.0, 5.0]
    assert np.isnan(band.low).tolist() == [True, False, True]


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.6], [0.0, 0.0, 0.1], [1.0, 0.9, 1.0]])
def test_the_band_is_the_interval_of_the_table(values: list[float]) -> None:
    for key, estimate in (
        (ENTROPY, mean_estimate(values)),
        (SUCCESS, share_estimate(values, Trials(num=3, is_known=False))),
    ):
        band = band_of([series({7: value}) for value in values], key)
        assert band.low[0] == pytest.approx(estimate.low)
        assert band.high[0] == pytest.approx(estimate.high)


def test_a_band_of_a_share_stays_a_share() -> None:
    band = band_of([series({0: 0.0, 1: 1.0}), series({0: 0.1, 1: 0.9})], SUCCESS)
    assert (band.low >= 0).all()
    assert (band.high <= 1).all()


def test_the_band_of_an_evaluation_is_never_narrower_than_its_tasks_allow() -> None:
    shares = [0.5, 0.5, 0.51]
    members = [
        Series(steps=np.array([7]), values=np.array([share]), num_tasks=np.array([64.0]))
        for share in shares
    ]
    band = band_of(members, "eval/all/success_rate")
    estimate = evaluated_estimate(shares, [64] * 3)
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
        evaluated = {"eval/all/success_rate": step / 10, "eval/all/num_tasks": 60.0 + step}
        return {ENTROPY: float(step)} | (evaluated if is_evaluated else {})

    make_run(tmp_path / "a", 7, values=values)
    (row,) = RunList(tmp_path).rows()
    entropy = _read(row, ENTROPY, 3)
    assert (entropy.steps.tolist(), entropy.values.tolist()) == ([0, 3, 6], [1.0, 4.0, 6.0])
    assert entropy.num_tasks is None
    success = _read(row, "eval/all/success_rate", 3)
    assert success.steps.tolist() == [0, 3, 6]
    assert success.values.tolist() == pytest.approx([0.1, 0.4, 0.6])
    assert success.num_tasks is not None
    assert success.num_tasks.tolist() == [62, 64, 66]  # the most of each range
    assert _read(row, "absent", 1).steps.tolist() == []
