"""A run whose evaluations no longer improve ends, and says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listening import Listener
from recorded import metric

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.schedule import EarlyStoppingConfig
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.early_stopping import why_stop
from echoscope.core.run.launch import resume, start
from echoscope.store.reader import open_run

MakeConfig = Callable[..., RunConfig]
QUICK = ("diagnostics.enabled=false", "checkpoint.every=0", "eval.every=1", "envs.eval.0.groups=1")


def naive(rates: list[float], patience: int, min_delta: float) -> bool:
    """Whether none of the last `patience` was better than all before it."""
    better = [
        all(rate > old and rate >= old + min_delta for old in _bests(rates[:n], min_delta))
        for n, rate in enumerate(rates)
    ]
    return patience > 0 and len(rates) > patience and not any(better[-patience:])


def _bests(rates: list[float], min_delta: float) -> list[float]:
    """The rates that were better when they came; only they are compared with."""
    out: list[float] = []
    for rate in rates:
        if all(rate > old and rate >= old + min_delta for old in out):
            out.append(rate)
    return out


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 1.0]), max_size=8),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_it_stops_where_the_last_evaluations_were_not_better(rates, patience, min_delta):
    settings = EarlyStoppingConfig(patience=patience, min_delta=min_delta)
    found = why_stop({10 * n: rate for n, rate in enumerate(rates)}, settings)
    assert bool(found) == naive(rates, patience, min_delta)


def test_by_hand():
    success = {0: 0.2, 10: 0.5, 20: 0.52, 30: 0.53}
    assert not why_stop(success, EarlyStoppingConfig(patience=2))
    assert why_stop(success, EarlyStoppingConfig(patience=2, min_delta=0.05)) == (
        "success in evaluation was best at step 10 (50 %), and 2 evaluations since were not better"
    )


def test_a_run_that_does_not_improve_stops_with_a_checkpoint_and_a_reason(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """An untrained policy never reaches the goal: the first evaluation stays the best."""
    run, listener = tmp_path / "run", Listener()
    config = make_config(*QUICK, "steps=9", "optim.lr=1e-9", "early_stopping.patience=2")
    assert start(config, run, listener) == "stopped"
    assert metric(run, "eval/frozen_lake/success_rate", phase="eval") == {0: 0, 1: 0, 2: 0}
    reader = open_run(run)
    assert [record.step for record in reader.checkpoints()] == [2]
    (command,) = [state.command for state in reader.commands()]
    assert (command.action, command.issued_by) == ("stop", "early_stopping")
    assert "best at step 0 (0 %), and 2 evaluations since were not better" in command.reason
    # Whoever resumes it wants one more look: it goes on to the next evaluation.
    assert resume(run, Listener()) == "stopped"
    assert open_run(run).info().last_step == 3


def test_it_needs_evaluations(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="patience is 3, which counts evaluations, but there"):
        make_config("early_stopping.patience=3", "eval.every=0")
