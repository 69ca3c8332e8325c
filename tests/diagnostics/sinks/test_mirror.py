"""What the sinks of a run are told, in which order, and what never reaches the trainer."""

from __future__ import annotations

import importlib.metadata
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from episodes import text_turn
from trajectories import make_trajectory

from echoscope.core.config.loading import load_config
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.diagnostics.sinks import mirror as mirrors
from echoscope.diagnostics.sinks.mirror import Mirror
from echoscope.diagnostics.sinks.process import SinkProcess
from echoscope.diagnostics.sinks.settings import SinkError, SinksConfig
from echoscope.diagnostics.sinks.status import read_status
from echoscope.store.records import StepMetrics

CONFIG = SinksConfig.model_validate({"tensorboard": {"enabled": True}, "episodes": 2})


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of all records, one a line: the sink writes down what it is told."""
    file = tmp_path / "heard.ndjson"
    code = (
        "import sys\n"
        "for line in sys.stdin:\n"
        f"    open({str(file)!r}, 'a').write(line)\n"
        '    print(\'{"identity": "x1"}\', flush=True)\n'
    )
    monkeypatch.setattr(mirrors, "SinkProcess", partial(SinkProcess, code=code))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    return file


def records(heard: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in heard.read_text().splitlines()]


def metrics(step: int, values: dict[str, float], phase: str = "train") -> StepMetrics:
    return StepMetrics(
        run_id="run-1",
        step=step,
        phase=phase,
        policy_version=0,
        wall_time=0.0,
        values=values,
        durations_s={"time/step_s": 2.0},
    )


def mirror_of(path: Path, news: list[str]) -> Mirror:
    path.mkdir(exist_ok=True)
    return Mirror(CONFIG, run_path=path, run_config={"a": 1}, on_message=news.append)


def test_a_step_is_told_with_its_numbers_last(heard: Path, tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path / "run-1", [])
    diagnosis = Diagnosis(run_id="run-1")
    raised_at = 0
    for step, values in make("template_collapse", 0).table.rows():
        alarms = diagnosis.observe(step, values)
        mirror.step([metrics(step, values)], alarms=alarms, verdict=diagnosis.verdict)
        raised_at = raised_at or (step if alarms else 0)
        if raised_at:
            break
    mirror.close("finished")
    told = records(heard)
    assert told[0]["kind"] == "open"
    assert (told[0]["run"], told[0]["config"]) == ("run-1", {"a": 1})
    assert told[-1] == {"kind": "close", "status": "finished"}
    last = [record["kind"] for record in told if record.get("step") == raised_at]
    assert last[0] == "alarm"
    assert last[-2:] == ["verdict", "step"]


def test_training_evaluation_and_durations_are_one_row(heard: Path, tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path / "run-1", [])
    mirror.step(
        [metrics(1, {"text/loop_frac": 0.5}), metrics(1, {"eval/all/return_mean": 1.0}, "eval")]
    )
    mirror.close("finished")
    (row,) = [record for record in records(heard) if record["kind"] == "step"]
    assert row["values"] == {
        "text/loop_frac": 0.5,
        "eval/all/return_mean": 1.0,
        "time/step_s": 2.0,
        "timing_s/step": 2.0,
    }


def test_episodes_come_at_the_first_step_and_every_tenth(heard: Path, tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path / "run-1", [])
    for step in range(1, 22):
        episodes = [make_trajectory(text_turn("a"), step=step, index=k) for k in range(3)]
        mirror.step([metrics(step, {})], trajectories=episodes)
    mirror.close("finished")
    tables = [record for record in records(heard) if record["kind"] == "episodes"]
    assert [(table["step"], len(table["rows"])) for table in tables] == [(1, 2), (10, 2), (20, 2)]


def test_a_run_that_goes_on_tells_its_identity(heard: Path, tmp_path: Path) -> None:
    for step in (1, 2):
        mirror = mirror_of(tmp_path / "run-1", [])
        mirror.step([metrics(step, {})])
        mirror.close("stopped")
    first, second = (record for record in records(heard) if record["kind"] == "open")
    assert (first["identity"], first["last_step"]) == ("", None)
    assert (second["identity"], second["last_step"]) == ("x1", 1)
    status = read_status(tmp_path / "run-1", "tensorboard")
    assert status is not None
    assert (status.state, status.last_step) == ("finished", 2)


def test_a_verdict_that_fails_costs_the_copy_of_a_step_only(heard: Path, tmp_path: Path) -> None:
    def fails() -> Any:
        raise RuntimeError("no verdict")

    news: list[str] = []
    mirror = mirror_of(tmp_path / "run-1", news)
    mirror.step([metrics(1, {})], verdict=fails)
    mirror.step([metrics(2, {})])
    mirror.close("finished")
    assert news == ["sinks: a step was not copied: RuntimeError: no verdict"]
    assert [record.get("step") for record in records(heard) if record["kind"] == "step"] == [2]


def test_without_a_sink_nothing_starts(tmp_path: Path) -> None:
    mirror = Mirror(SinksConfig(), run_path=tmp_path, run_config={}, on_message=print)
    mirror.step([metrics(1, {})], verdict=None)
    mirror.close("finished")
    assert mirror.statuses() == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_the_package_of_its_sink_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(distribution: str) -> str:
        raise importlib.metadata.PackageNotFoundError(distribution)

    config = load_config("bandit", overrides=["sinks.wandb.mode=offline"])
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(SinkError, match="the sink wandb needs the package wandb"):
        start(config, tmp_path / "run", SilentEvents())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_trained_run_tells_every_step_and_how_it_ended(heard: Path, tmp_path: Path) -> None:
    small = ["steps=2", "envs.eval=[]", "probe.every=0", "envs.group_size=2"]
    config = load_config("bandit", overrides=[*small, "sinks.tensorboard.enabled=true"])
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    told = records(heard)
    assert [r["step"] for r in told if r["kind"] == "step"] == [1, 2]
    assert [r["kind"] for r in told if r.get("step") == 1] == ["verdict", "episodes", "step"]
    assert told[-1] == {"kind": "close", "status": "finished"}
