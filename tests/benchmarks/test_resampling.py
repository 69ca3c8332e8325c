"""Healthy stretches are drawn in whole blocks, without their trend."""

import sys
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.bench.synthetic_runs import make

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from resampling import block_bootstrap, healthy_stretch, resampled_false_alarms, without_trend


def test_block_bootstrap_keeps_neighbours() -> None:
    rows = np.arange(20, dtype=np.float64)[:, None]
    drawn = block_bootstrap(rows, 50, 5, np.random.default_rng(0))
    assert drawn.shape == (50, 1)
    inside = np.diff(drawn[:, 0]).reshape(-1)
    assert (np.delete(inside, np.arange(4, 49, 5)) == 1).all()
    with pytest.raises(ValueError, match="must lie in"):
        block_bootstrap(rows, 5, 21, np.random.default_rng(0))


def test_a_trend_is_taken_out_and_noise_stays() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 200)
    flat = without_trend(np.linspace(0, 5, 200) + noise)
    assert abs(flat[:20].mean() - flat[-20:].mean()) < 0.2
    assert flat.std() > 0.05


def test_a_healthy_run_resampled_raises_nothing_critical() -> None:
    run = make("healthy", 3)
    names, rows = healthy_stretch(run) or ([], np.empty((0, 0)))
    assert rows.shape == (140, len(names))
    chance = resampled_false_alarms([run], draws=2, length=60)
    assert (chance.num_steps, chance.num_critical) == (2 * 60, 0)
