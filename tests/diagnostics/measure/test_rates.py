"""Intervals of rates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from echoscope.diagnostics.measure.rates import wilson_interval


def test_wilson_interval_against_the_published_form() -> None:
    # (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n) with p = .43, n = 100, z = 1.96:
    # (.449208 -+ 1.96 * .0504682) / 1.038416
    assert wilson_interval(0.43, 100) == pytest.approx((0.337332, 0.527848), abs=1e-6)
    # n successes of n: [n / (n + z^2), 1]; none of n mirrors it.
    z2 = 1.96**2
    assert wilson_interval(1.0, 10) == pytest.approx((10 / (10 + z2), 1.0))
    assert wilson_interval(0.0, 10) == pytest.approx((0.0, z2 / (10 + z2)))
    assert all(math.isnan(value) for value in wilson_interval(math.nan, 0))


def test_wilson_s_interval_as_in_the_tables() -> None:
    # 43 of 100 (Wilson 1927): 0.337 to 0.528; nothing of ten: 0 to 0.2775; of none: unknown
    low, high = wilson_interval(np.array([0.43, 0.0, 1.0]), np.array([100.0, 10.0, 0.0]))
    assert low[:2] == pytest.approx([0.337, 0.0], abs=5e-4)
    assert high[:2] == pytest.approx([0.528, 0.2775], abs=5e-4)
    assert np.isnan([low[2], high[2]]).all()
