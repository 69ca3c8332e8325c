"""Fewer points, the same picture; smoothing that starts where the curve starts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.dashboard.data.curves import downsample, full_range, smoothed

VALUES = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=1, max_size=300)


def test_a_short_curve_is_drawn_whole() -> None:
    assert downsample(np.arange(10.0), 10).tolist() == list(range(10))


@given(VALUES, st.integers(8, 60))
def test_the_extremes_and_the_ends_stay(values: list[float], most: int) -> None:
    curve = np.array(values)
    at = downsample(curve, most)
    assert len(at) <= most
    assert (np.diff(at) > 0).all()
    assert (at[0], at[-1]) == (0, len(curve) - 1)
    known = curve[np.isfinite(curve)]
    if len(known):
        drawn = curve[at]
        assert np.nanmin(drawn) == known.min()
        assert np.nanmax(drawn) == known.max()


@given(VALUES, st.integers(8, 60))
def test_a_gap_stays_a_gap(values: list[float], most: int) -> None:
    curve = np.array(values)
    assert np.isnan(curve[downsample(curve, most)]).any() == np.isnan(curve).any()


def test_one_spike_in_a_hundred_thousand_points_is_seen() -> None:
    curve = np.zeros(100_000)
    curve[77_123] = 5.0
    assert 77_123 in downsample(curve, 1_000)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="max_points is 7"):
        downsample(np.arange(10.0), 7)


def test_smoothing_is_a_mean_weighted_from_the_start() -> None:
    # w = 1/2: (2 + 4*2) / (1 + 2) and (2 + 4*2 + 8*4) / (1 + 2 + 4)
    assert smoothed(np.array([2.0, 4.0, 8.0]), 0.5) == pytest.approx([2.0, 10 / 3, 6.0])


def test_a_constant_stays_that_constant_from_its_first_point() -> None:
    assert smoothed(np.full(50, 3.0), 0.99) == pytest.approx(np.full(50, 3.0))


def test_smoothing_leaves_gaps_and_forgets_nothing_over_them() -> None:
    found = smoothed(np.array([2.0, np.nan, 4.0, np.inf]), 0.5)
    assert found[[0, 2]] == pytest.approx([2.0, 10 / 3])
    assert np.isnan(found[[1, 3]]).all()


@pytest.mark.parametrize("weight", [-0.1, 1.0, 2.0])
def test_a_weight_outside_of_the_range_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        smoothed(np.zeros(2), weight)


def test_a_logarithmic_range_leaves_out_what_has_no_logarithm() -> None:
    values = np.array([-5.0, 0.0, 0.01, 0.1, 1.0, 10.0])
    low, high = full_range(values, log_y=True) or (0.0, 0.0)
    assert -2.5 < low < -1.5
    assert 0.5 < high < 1.5


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0], [np.nan, np.inf]])
def test_nothing_to_range_over(values: list[float]) -> None:
    assert full_range(np.array(values), log_y=False) is None
