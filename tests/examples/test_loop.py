"""The example loop of plain PyTorch: recorded, measured, set, paused and stopped from outside."""

from __future__ import annotations

import runpy
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import wait_until

import echoscope
from echoscope.store.reader import open_run
from echoscope.store.records import CommandOutcome
from echoscope.store.steer.commands import new_command, post

EXAMPLE = Path(echoscope.__file__).resolve().parent / "examples" / "loop" / "train.py"


def train(monkeypatch: pytest.MonkeyPatch, model: Path, run: Path, steps: int) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(model), str(run), "--steps", str(steps)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_it_records_its_text_numbers_and_information(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(monkeypatch, tiny_model, tmp_path / "run", 2)
    run = open_run(tmp_path / "run")
    assert (run.info().status, run.info().last_step) == ("finished", 2)
    rows = run.trajectories_of_step(1)
    assert [t.group_index for t in rows] == [n for n in range(4) for _ in range(4)]
    steps, values = run.metrics("info/first_turn/conditional_entropy_per_token")
    assert steps.tolist() == [1]
    assert 4 < values[0] < 7  # an untrained model of 293 tokens: ln 293 = 5.7
    assert {"loss", "reward", "reward/return_mean"} <= set(run.metric_keys())


def test_it_obeys(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"

    def steer() -> None:
        wait_until(lambda: (path / "run.json").is_file() and open_run(path).info().last_step >= 1)
        for action, settings in (("set", {"lr": 1e-3}), ("pause", None)):
            post(path, new_command(path.name, action, settings=settings, issued_by="anna"))
        wait_until(lambda: sum(state.ack is not None for state in open_run(path).commands()) == 2)
        paused_at = open_run(path).info().last_step
        time.sleep(0.3)
        assert open_run(path).info().last_step - paused_at <= 1
        post(path, new_command(path.name, "stop", issued_by="anna"))

    person = threading.Thread(target=steer)
    person.start()
    train(monkeypatch, tiny_model, path, 5000)
    person.join()
    run = open_run(path)
    assert run.info().status == "stopped"
    assert 1 <= run.info().last_step < 5000
    outcomes = [state.ack.outcome for state in run.commands() if state.ack]
    assert outcomes == [CommandOutcome.APPLIED] * 3
