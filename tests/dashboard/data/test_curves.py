"""Fewer points, the same picture; smoothing that starts where the curve starts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.dashboard.data.curves import (
    full_range,
    smoothed,
    thinned,
    usual_range,
)

VALUES = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=20, max_size=300)


class Thin(NamedTuple):
    """What `thinned` gives."""

    indices: np.ndarray
    means: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray


def thin(values: np.ndarray, max_points: int) -> Thin:
    """Of a curve whose points are single steps."""
    return Thin(*thinned(values, values, values, max_points))


@given(VALUES, st.integers(3, 19))
def test_the_ends_stay_and_every_value_lies_in_the_range_of_its_point(
    values: list[float], most: int
) -> None:
    curve = np.array(values)
    drawn = thin(curve, most)
    assert len(drawn.indices) == most
    assert (np.diff(drawn.indices) > 0).all()
    ends = [0, -1]
    assert drawn.indices[ends].tolist() == [0, len(curve) - 1]
    np.testing.assert_array_equal(drawn.means[ends], curve[ends])
    finite = curve[np.isfinite(curve)]
    if len(finite):
        assert np.nanmin(drawn.lowest) == finite.min()
        assert np.nanmax(drawn.highest) == finite.max()


def test_points_between_are_means_of_equal_stretches() -> None:
    drawn = thin(np.array([9.0, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0, 0.0]), 4)
    assert drawn.means.tolist() == [9.0, 2.0, 7.0, 0.0]
    assert drawn.indices.tolist() == [0, 2, 5, 7]
    assert drawn.lowest.tolist() == [9.0, 1.0, 5.0, 0.0]
    assert drawn.highest.tolist() == [9.0, 3.0, 9.0, 0.0]


def test_white_noise_is_a_level_line_and_no_zigzag_of_extremes() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 30_000)
    means = thin(noise, 300).means[1:-1]
    assert np.abs(means).max() < 0.5  # about 100 steps a point; extremes lie near 2.5
    assert np.std(means) == pytest.approx(0.1, rel=0.2)


def test_a_stretch_without_a_value_is_a_gap_and_one_missing_value_is_none() -> None:
    curve = np.arange(100.0)
    curve[7], curve[40:70] = np.nan, np.nan
    missing = np.isnan(thin(curve, 22).means)
    assert 4 <= missing.sum() <= 6  # 30 of 100 values, 5 a point
    assert not missing[:5].any()


def test_one_spike_in_a_hundred_thousand_points_is_seen() -> None:
    curve = np.zeros(100_000)
    curve[77_123] = 5.0
    drawn = thin(curve, 300)
    assert drawn.highest.max() == 5.0
    assert abs(int(drawn.indices[drawn.highest.argmax()]) - 77_123) < 350


def test_one_spike_does_not_set_the_range_of_a_chart() -> None:
    norms = np.abs(np.random.default_rng(1).normal(1, 0.2, 4_000))
    norms[1_700] = 250.0
    low, high = usual_range(norms)
    assert low == norms.min()
    assert 1.5 < high < 2.0


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([1.0] * 50 + [250.0] * 5, id="a level that has changed"),
        pytest.param([1.0, 2.0, 3.0, 2.0, 1.0, 5.0], id="ordinary spread"),
        pytest.param([0.0] * 50 + [3.0], id="nothing but one event"),
        pytest.param([1.01**n for n in range(400)], id="exponential growth"),
    ],
)
def test_what_is_no_outlier_is_shown_whole(values: list[float]) -> None:
    assert usual_range(np.array(values)) == (min(values), max(values))


def test_smoothing_is_a_mean_weighted_from_the_start() -> None:
    # w = 1/2: (2 + 4*2) / (1 + 2) and (2 + 4*2 + 8*4) / (1 + 2 + 4)
    assert smoothed(np.array([2.0, 4.0, 8.0]), 0.5) == pytest.approx([2.0, 10 / 3, 6.0])


def test_a_constant_stays_that_constant_from_its_first_point() -> None:
    assert smoothed(np.full(50, 3.0), 0.99) == pytest.approx(np.full(50, 3.0))


def test_smoothing_leaves_gaps_and_forgets_nothing_over_them() -> None:
    smooth = smoothed(np.array([2.0, np.nan, 4.0, np.inf]), 0.5)
    assert smooth[[0, 2]] == pytest.approx([2.0, 10 / 3])
    assert np.isnan(smooth[[1, 3]]).all()


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
