"""Signal, noise, buckets and layer names, without a model."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from echoscope.diagnostics.measure.gradients import (
    cosine,
    make_buckets,
    noise,
    signal_and_trace,
    signal_share,
)


def sums(vectors):
    """`vectors[p]` is h_p; the step's gradient is their mean."""
    parts = np.array(vectors, dtype=float) / len(vectors)
    return (parts**2).sum(1), float((parts.sum(0) ** 2).sum())


def test_noise_by_hand():
    # h = (3, 0), (1, 0): mean 2, |mean|^2 = 4, mean |h|^2 = 5.
    # |G|^2 = (2 * 4 - 5) / 1 = 3 = h_1 . h_2;  tr = (5 - 4) * 2 / 1 = 2, the n - 1 variance.
    assert signal_and_trace(*sums([(3, 0), (1, 0)])) == pytest.approx((3, 2))
    assert noise(*sums([(3, 0), (1, 0)])) == pytest.approx((2 * 3 / 2, 2 / 3))


def test_opposite_groups_are_not_distinguishable_from_zero():
    ratio, scale = noise(*sums([(1, 0), (-1, 0)]))
    assert ratio < 0
    assert math.isnan(scale)


def test_equal_groups_have_no_noise():
    signal, trace = signal_and_trace(*sums([(2, 1)] * 5))
    assert trace == pytest.approx(0, abs=1e-12)
    assert signal == pytest.approx(5)


@pytest.mark.parametrize("norms", [[], [1.0], [math.nan, 1.0]])
def test_fewer_than_two_groups_and_what_is_not_finite_have_no_noise(norms):
    assert np.isnan(noise(np.array(norms), sum(norms))).all()


def test_noise_is_unbiased_for_a_known_covariance():
    """G of norm 1 in 30 dimensions, tr(Sigma) = 30 * 0.25 = 7.5, 8 groups, 2,000 steps."""
    rng = np.random.default_rng(0)
    mean = np.zeros(30)
    mean[0] = 1.0
    steps = [
        signal_and_trace(*sums(mean + 0.5 * rng.standard_normal((8, 30)))) for _ in range(2000)
    ]
    signal, trace = np.array(steps).T
    assert abs(signal.mean() - 1.0) < 2 * signal.std() / math.sqrt(2000)
    assert abs(trace.mean() - 7.5) < 2 * trace.std() / math.sqrt(2000)


def test_pure_noise_is_told_from_signal_half_of_the_time():
    rng = np.random.default_rng(1)
    steps = [noise(*sums(rng.standard_normal((8, 20)))) for _ in range(1000)]
    zero = np.mean([math.isnan(scale) for _, scale in steps])
    assert 0.45 < zero < 0.62  # a sum of products of independent vectors, median near 0


def test_the_signal_share_is_the_average_over_all_halves():
    rng = np.random.default_rng(2)
    parts = rng.standard_normal((6, 4)) + 0.5
    total = parts.sum(0)
    share = signal_share((parts**2).sum(1), float(total @ total))
    halves = [set(half) for half in itertools.combinations(range(6), 3)]
    products = [
        parts[list(half)].sum(0) @ parts[list(set(range(6)) - half)].sum(0) for half in halves
    ]
    # Each half sums 3 of 6 groups, so its expectation is G / 2, and the product's |G|^2 / 4.
    assert share == pytest.approx(4 * np.mean(products) / float(total @ total))


def test_the_signal_share_of_equal_groups_is_one_and_of_one_group_unknown():
    assert signal_share(np.full(4, 2.0), 4 * 4 * 2.0) == pytest.approx(1)
    assert math.isnan(signal_share(np.array([2.0]), 2.0))
    assert math.isnan(signal_share(np.zeros(3), 0.0))


def test_buckets_hold_equal_numbers_and_zero_its_own():
    buckets = make_buckets([0.0, 0.3, 0.1, 0.2, 0.5, math.nan, 0.0, 0.4, 0.6])
    assert buckets == {
        "zero": (0, 6),
        "bucket_1": (2, 3),
        "bucket_2": (1, 7),
        "bucket_3": (4, 8),
        "undefined": (5,),
    }


def test_a_bucket_has_at_least_two_groups():
    assert make_buckets([0.1, 0.2, 0.3]) == {"bucket_1": (0, 1, 2)}
    assert make_buckets([0.1]) == {"bucket_1": (0,)}
    assert make_buckets([]) == {}


def test_a_cosine_with_nothing_is_not_a_number():
    assert cosine(1.0, 1.0, 4.0) == 0.5
    assert math.isnan(cosine(0.0, 0.0, 1.0))
    assert math.isnan(cosine(math.nan, math.nan, 1.0))
