"""Signal, noise, buckets and layer names, without a model."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from echoscope.diagnostics.config import GradientConfig
from echoscope.diagnostics.measure.gradient_stats import (
    cosine,
    estimate_noise,
    layer_groups,
    make_buckets,
    signal_share,
)


def noise_of(vectors):
    """`vectors[p]` is h_p; the step's gradient is their mean."""
    parts = np.array(vectors, dtype=float) / len(vectors)
    return estimate_noise((parts**2).sum(1), float((parts.sum(0) ** 2).sum()))


def test_noise_by_hand():
    # h = (3, 0), (1, 0): mean 2, |mean|^2 = 4, mean |h|^2 = 5.
    # |G|^2 = (2 * 4 - 5) / 1 = 3 = h_1 . h_2;  tr = (5 - 4) * 2 / 1 = 2, the n - 1 variance.
    found = noise_of([(3, 0), (1, 0)])
    assert found.signal_squared == pytest.approx(3)
    assert found.trace == pytest.approx(2)
    assert found.snr == pytest.approx(3)  # 2 groups * 3 / 2
    assert found.noise_scale == pytest.approx(2 / 3)


def test_opposite_groups_are_not_distinguishable_from_zero():
    found = noise_of([(1, 0), (-1, 0)])
    assert found.signal_squared == pytest.approx(-1)
    assert math.isnan(found.noise_scale)
    assert found.reason == "the gradient is not distinguishable from zero"


def test_equal_groups_have_no_noise():
    found = noise_of([(2, 1)] * 5)
    assert found.trace == pytest.approx(0, abs=1e-12)
    assert found.signal_squared == pytest.approx(5)
    assert found.noise_scale == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("vectors", [[], [(1.0, 2.0)]])
def test_noise_needs_two_groups(vectors):
    found = estimate_noise(np.array([v[0] for v in vectors]), 1.0)
    assert "two groups" in found.reason
    assert math.isnan(found.signal_squared)
    assert math.isnan(found.noise_scale)


def test_a_gradient_that_is_not_finite_is_said():
    assert estimate_noise(np.array([np.nan, 1.0]), np.nan).reason == "the gradient is not finite"


def test_noise_is_unbiased_for_a_known_covariance():
    """G of norm 1 in 30 dimensions, tr(Sigma) = 30 * 0.25 = 7.5, 8 groups, 2,000 steps."""
    rng = np.random.default_rng(0)
    mean = np.zeros(30)
    mean[0] = 1.0
    steps = [noise_of(mean + 0.5 * rng.standard_normal((8, 30))) for _ in range(2000)]
    signal = np.array([one.signal_squared for one in steps])
    trace = np.array([one.trace for one in steps])
    assert abs(signal.mean() - 1.0) < 2 * signal.std() / math.sqrt(2000)
    assert abs(trace.mean() - 7.5) < 2 * trace.std() / math.sqrt(2000)
    # Averaged apart and then divided, as the docs say: the noise scale is 7.5 groups.
    assert trace.mean() / signal.mean() == pytest.approx(7.5, rel=0.05)


def test_pure_noise_is_told_from_signal_half_of_the_time():
    rng = np.random.default_rng(1)
    steps = [noise_of(rng.standard_normal((8, 20))) for _ in range(1000)]
    zero = np.mean([bool(one.reason) for one in steps])
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


def names_of(std_P, **config):
    return {b.name: b.members for b in make_buckets(std_P, GradientConfig(**config))}


def test_buckets_hold_equal_numbers_and_zero_its_own():
    found = names_of([0.0, 0.3, 0.1, 0.2, 0.5, math.nan, 0.0, 0.4, 0.6], buckets=3)
    assert found == {
        "zero": (0, 6),
        "bucket_1": (2, 3),
        "bucket_2": (1, 7),
        "bucket_3": (4, 8),
        "undefined": (5,),
    }


def test_a_bucket_has_at_least_two_groups():
    assert names_of([0.1, 0.2, 0.3], buckets=4) == {"bucket_1": (0, 1, 2)}
    assert names_of([0.1], buckets=4) == {"bucket_1": (0,)}
    assert names_of([]) == {}


def test_fixed_edges():
    found = names_of([0.0, 0.5, 1.0, 2.5], edges=(1.0, 2.0))
    assert found == {"zero": (0,), "bucket_1": (1,), "bucket_2": (2,), "bucket_3": (3,)}


@pytest.mark.parametrize("edges", [(2.0, 1.0), (1.0, 1.0), (0.0, 1.0)])
def test_edges_must_increase(edges):
    with pytest.raises(ValueError, match=r"gradient\.edges"):
        GradientConfig(edges=edges)


def test_layers_fall_into_bands():
    names = [f"model.layers.{k}.mlp.weight" for k in range(5)]
    names += ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"]
    names += ["critic.linear.weight", "critic.trunk.layers.0.mlp.weight"]
    found = layer_groups(names, 2)
    assert [found[name] for name in names] == [
        *["layers_0_2"] * 3,
        *["layers_3_4"] * 2,
        "embedding",
        "head",
        "other",
        "value",
        "value",
    ]


def test_more_bands_than_layers_is_one_band_each():
    names = ["h.0.weight", "h.1.weight"]
    assert list(layer_groups(names, 8).values()) == ["layers_0_0", "layers_1_1"]
    assert layer_groups(["weight"], 4) == {"weight": "other"}


def test_a_cosine_with_nothing_is_not_a_number():
    assert cosine(1.0, 1.0, 4.0) == 0.5
    assert math.isnan(cosine(0.0, 0.0, 1.0))
    assert math.isnan(cosine(math.nan, math.nan, 1.0))
