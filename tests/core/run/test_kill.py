"""A trainer killed at any instant loses nothing acknowledged, and resumes bit for bit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness_seed import draw
from recorded import assert_same_recording
from trainer_process import TrainerProcess, train

from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.records import CommandOutcome

MakeConfig = Callable[..., RunConfig]
STEPS = 8
PHASES = ("rollout", "update", "evaluate", "checkpoint")
MAX_DELAY_S = 0.03
"""About one phase: the kill falls into it, or just behind it."""
TRAIN, EVAL = 8, 3


@pytest.fixture(scope="module")
def config(make_config: MakeConfig) -> RunConfig:
    return make_config(
        f"steps={STEPS}", "eval.every=2", "checkpoint.every=2", "checkpoint.keep=2", "optim.lr=0.01"
    )


@pytest.fixture(scope="module")
def whole(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, never interrupted."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    start(config, path, SilentEvents())
    return path


def kill_in(trainer: TrainerProcess, phase: str, step: int, delay_s: float) -> None:
    """Kill in that phase of that step, or of the first later one that has it."""
    is_over = False
    while trainer.is_alive and not is_over:
        told = [line.split(" ") for line in trainer.text.split(";\n")[:-1]]
        is_over = any(int(number) >= step and name == phase for number, name in told)
        time.sleep(0.0005)  # the trainer needs the processor
    time.sleep(delay_s)
    trainer.kill()


def check_acknowledged(path: Path, at_least: int) -> int:
    """Whatever is acknowledged is whole; returns the last such step."""
    assert verify(path).problems == ()
    reader = open_run(path)
    info = reader.info()
    assert info.last_step >= at_least
    rows = reader.sql(
        "SELECT step, split, count(*) AS n FROM trajectories WHERE step <= $1 GROUP BY ALL "
        "ORDER BY ALL",
        [info.last_step],
    ).to_pylist()
    expected = [
        (step, split, number)
        for step in range(info.last_step + 1)
        for split, number in (("eval", EVAL), ("train", TRAIN))
        if (step % 2 == 0 if split == "eval" else step > 0)
    ]
    assert [(row["step"], row["split"], row["n"]) for row in rows] == expected
    losses = reader.metrics("loss/policy")[0].tolist()
    assert losses == list(range(1, info.last_step + 1))
    return info.last_step


def kill_and_resume(
    folder: Path, config: RunConfig, plan: list[tuple[str, int, float]]
) -> tuple[Path, int]:
    """Kill once for each (phase, step, delay), resuming in between; then let the run end.

    Returns the run and how many of the kills hit a living trainer.
    """
    path, acknowledged, num_kills = folder / "run", -1, 0
    for index, (phase, step, delay_s) in enumerate(plan):
        trainer = TrainerProcess(folder / f"{index}.log", train, path, config.model_dump_json())
        kill_in(trainer, phase, step, delay_s)
        if trainer.join() == 0:
            break
        num_kills += 1
        if (path / "run.json").exists():
            assert open_run(path).info().status in ("crashed", "finished")
            # Resuming goes back to a checkpoint at most two steps before.
            acknowledged = check_acknowledged(path, at_least=acknowledged - 2)
    last = TrainerProcess(folder / "last.log", train, path, config.model_dump_json())
    assert last.join() == 0, last.text
    return path, num_kills


@pytest.mark.long
def test_killed_in_each_phase(config: RunConfig, whole: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    plan = [
        (phase, 2 * index, float(rng.uniform(0, MAX_DELAY_S)))
        for index, phase in enumerate(("evaluate", "checkpoint", "update", "evaluate"))
    ]
    plan.insert(2, ("rollout", 4, 0.0))
    path, num_kills = kill_and_resume(tmp_path, config, plan)
    assert num_kills == 5
    reader = open_run(path)
    assert (reader.info().status, reader.info().last_step) == ("finished", STEPS)
    assert check_acknowledged(path, at_least=STEPS) == STEPS
    assert_same_recording(whole, path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_at_many_random_instants(config: RunConfig, whole: Path, tmp_path: Path) -> None:
    """As often as the environment variable ECHOSCOPE_KILLS says."""
    asked_kills = int(os.environ.get("ECHOSCOPE_KILLS", "100"))
    rng, total, num_runs = np.random.default_rng([1, draw()]), 0, 0
    while total < asked_kills:
        folder = tmp_path / str(num_runs)
        folder.mkdir()
        plan = [
            (str(rng.choice(PHASES)), index, float(rng.uniform(0, 10 * MAX_DELAY_S)))
            for index in range(min(STEPS, asked_kills - total))
        ]
        path, num_kills = kill_and_resume(folder, config, plan)
        assert_same_recording(whole, path)
        total, num_runs = total + num_kills, num_runs + 1
    assert total >= asked_kills


# -- alarms that act ------------------------------------------------------------------------------

STOPS = {1: "alarm-non_finite-00000001-1", 3: "alarm-non_finite-00000001-3"}
"""Last finished step -> the command that ends the run there, as long as nobody loses it."""


@pytest.fixture(scope="module")
def alarmed(make_config: MakeConfig) -> RunConfig:
    """Each step's gradient is out of range: the alarm stops the run after steps 1 and 3."""
    return make_config(
        *("steps=4", "reward.shaping.0.weight=1e30", "advantage.kind=rloo"),
        *("checkpoint.every=1", "checkpoint.keep=9", "eval.every=2"),
        *(f"diagnostics.{name}.every=0" for name in ("text", "information", "gradient")),
        "diagnostics.alarms.actions={NON_FINITE: stop}",
    )


def applied_stops(path: Path) -> dict[int, str]:
    """Last finished step -> beginning of the id of the stop that was applied after it."""
    return {
        state.ack.step - 1: state.command.command_id
        for state in open_run(path, all_attempts=True).commands()
        if state.ack is not None and state.ack.outcome is CommandOutcome.APPLIED
    }


def kill_until_finished(
    folder: Path, config: RunConfig, delays_s: list[float], phases: list[str]
) -> tuple[Path, int]:
    """Kill, resume, kill ...; then resume until the run ends. The run, and the kills that hit."""
    path, num_kills = folder / "run", 0
    config_json = config.model_dump_json()
    for index, (phase, delay_s) in enumerate(zip(phases, delays_s, strict=True)):
        trainer = TrainerProcess(folder / f"{index}.log", train, path, config_json)
        kill_in(trainer, phase, index % 5, delay_s)
        num_kills += trainer.join() != 0
    for index in range(len(STOPS) + 2):
        if (path / "run.json").exists() and open_run(path).info().status == "finished":
            break
        last = TrainerProcess(folder / f"last-{index}.log", train, path, config_json)
        assert last.join() == 0, last.text
    return path, num_kills


def check_stops(path: Path) -> None:
    """No stop was lost: the run passed neither step without one that was applied."""
    assert open_run(path).info().status == "finished"
    stops = applied_stops(path)
    assert {step: stops.get(step, "")[: len(name)] for step, name in STOPS.items()} == STOPS
    assert verify(path).problems == ()
    assert open_run(path).warnings == []


@pytest.mark.long
def test_killed_with_alarm_actions_on_no_stop_is_lost(alarmed: RunConfig, tmp_path: Path) -> None:
    phases = ["checkpoint", "checkpoint", "update", "checkpoint"]
    path, num_kills = kill_until_finished(tmp_path, alarmed, [0.0, 0.01, 0.0, 0.02], phases)
    assert num_kills >= 2
    check_stops(path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_at_many_random_instants_with_alarm_actions_on(
    alarmed: RunConfig, tmp_path: Path
) -> None:
    """As often as the environment variable ECHOSCOPE_KILLS says."""
    asked_kills = int(os.environ.get("ECHOSCOPE_KILLS", "100"))
    rng, total, num_runs = np.random.default_rng([2, draw()]), 0, 0
    while total < asked_kills:
        folder = tmp_path / str(num_runs)
        folder.mkdir()
        size = min(5, asked_kills - total)
        phases = [str(rng.choice(["rollout", "update", "checkpoint"])) for _ in range(size)]
        delays_s = [float(rng.uniform(0, 3 * MAX_DELAY_S)) for _ in range(size)]
        path, num_kills = kill_until_finished(folder, alarmed, delays_s, phases)
        check_stops(path)
        total, num_runs = total + num_kills, num_runs + 1
