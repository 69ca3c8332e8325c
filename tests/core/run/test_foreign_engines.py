"""Runs whose engine has old weights or lies: what is recorded, and what the verdict says."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from foreign_engines import LyingEngine, StaleEngine
from recorded import metric

from echoscope.core.config.settings import RunConfig
from echoscope.core.engines import build
from echoscope.core.engines.base import Engine
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.config import AlarmConfig
from echoscope.diagnostics.judge.alarms import RULE_ORDER
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.store.reader import open_run

OTHER_POLICY = ("STALE_ENGINE", "OFF_POLICY_DRIFT")
MakeConfig = Callable[..., RunConfig]
QUICK = (
    "steps=8",
    "envs.eval=[]",
    "probe.every=0",
    "checkpoint.every=0",
    "optim.lr=1e-3",
    "diagnostics.enabled=false",
)
OTHERS_OFF = AlarmConfig(disabled=[name for name in RULE_ORDER if name not in OTHER_POLICY])


def lying(model: Any, **options: Any) -> Engine:
    return LyingEngine(HfEngine(model, **options), nats=0.05)


def stale(model: Any, **options: Any) -> Engine:
    return StaleEngine(model, lag=3, **options)


def test_show2_the_verdict_names_the_stale_engine(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "HfEngine", stale)
    assert start(make_config(*QUICK), tmp_path / "run", SilentEvents()) == "finished"
    lags = metric(tmp_path / "run", "rollout/staleness_max")
    assert [lags[step] for step in (1, 2, 3, 4, 5, 8)] == [0, 1, 2, 3, 3, 3]
    versions = open_run(tmp_path / "run").sql(
        "select step, min(policy_version) as version from trajectories where split = 'train' "
        "group by step order by step"
    )
    assert versions.column("version").to_pylist() == [0, 0, 0, 0, 1, 2, 3, 4]
    mismatch = metric(tmp_path / "run", "policy/mismatch_kl")
    assert mismatch[1] < 1e-10
    assert math.isnan(mismatch[8])  # no turn is of these weights
    assert metric(tmp_path / "run", "policy/stale_kl")[8] > 1e-10
    verdict = diagnose(tmp_path / "run", config=OTHERS_OFF)
    assert verdict.kinds == ("STALE_ENGINE",)
    assert "stale sampler" in verdict.text
    assert "the weights that sampled lack the last 3 updates" in verdict.text
    assert "off_policy.old_logprobs=trainer off_policy.correction=tis" in verdict.text


def test_show2_weighted_samples_of_old_weights_are_no_alarm(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "HfEngine", stale)
    method = "off_policy={old_logprobs: trainer, correction: tis, level: sequence}"
    config = make_config(*QUICK, method)
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    assert metric(tmp_path / "run", "rollout/staleness_max")[8] == 3
    assert metric(tmp_path / "run", "off_policy/sequence_weight_mean")[8] != 1
    assert diagnose(tmp_path / "run", config=OTHERS_OFF).kinds == ()


@pytest.mark.long
def test_show2_the_verdict_tells_a_lie_from_old_weights(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "HfEngine", lying)
    assert start(make_config(*QUICK), tmp_path / "run", SilentEvents()) == "finished"
    assert metric(tmp_path / "run", "rollout/staleness_max")[8] == 0
    ratios = metric(tmp_path / "run", "policy/mismatch_ratio_mean")
    assert ratios[8] == pytest.approx(0.9512, abs=1e-4)  # exp(-0.05)
    verdict = diagnose(tmp_path / "run", config=OTHERS_OFF)
    assert verdict.kinds == ("OFF_POLICY_DRIFT",)
    assert "5 % off the recorded ones on average" in verdict.text
    assert "records probabilities that it did not sample with" in verdict.text
