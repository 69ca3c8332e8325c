"""`echoscope train`: what it prints, how it ends, and how it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import assert_same_recording
from started import started
from trainer_process import TrainerProcess, echoscope

from echoscope.core.run.checkpoint import list_checkpoints, read_state
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

Type = Callable[..., Any]
LONG = ("steps=100000", "eval.every=0", "eval.before=false", "checkpoint.every=0")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def only_run(root: Path) -> Path:
    (path,) = root.iterdir()
    return path


# -- a run from start to end ---------------------------------------------------------------------


def test_a_run_prints_a_line_a_step_and_what_to_do_next(
    config_file: Path, root: Path, type_command: Type
) -> None:
    answer = type_command("train", "--headless", "--config", config_file, "--root", root)
    assert answer.code == 0, answer.err
    path = only_run(root)
    assert path.name.startswith("test-")
    lines = answer.out.splitlines()
    assert lines[0] == f"run {path}"
    assert lines[1].startswith("step    0  evaluation  frozen_lake ")
    steps = [line for line in lines if line.startswith("step") and "success" in line]
    assert [line.split()[1] for line in steps] == ["1/4", "2/4", "3/4", "4/4"]
    assert f"run finished: {path}" in lines
    (change,) = (
        line for line in lines if line.startswith("frozen_lake: success ") and "after" in line
    )
    assert change.endswith(" after 4 steps, on 3 evaluation tasks")
    # Untrained, the model solved nothing: what is to be looked at first is why.
    assert lines[-4:] == [
        "next:",
        f"  echoscope diagnose {path}    # why, and what to do",
        f"  echoscope dashboard {path}    # its curves and episodes, in a browser",
        f"  echoscope runs show {path}",
    ]


@pytest.mark.long
def test_the_commands_it_names_work(config_file: Path, root: Path, type_command: Type) -> None:
    type_command("train", "--headless", "--config", config_file, "--root", root, "steps=2")
    path = only_run(root)
    assert type_command("runs", "show", path).code == 0
    sql = "select step, avg(episode_return) r from trajectories where split = 'train' group by step"
    assert type_command("query", path, sql).code == 0
    resumed = type_command("train", "--headless", "--resume", path, "steps=4")
    assert resumed.code == 0
    assert "after step 2, attempt 2" in resumed.out
    assert "step    4/4" in resumed.out
    again = type_command("train", "--headless", "--resume", path)
    assert (again.code, again.err) == (0, "")
    assert again.out == f"{path}: already at step 4 of 4; to train on add steps=8\n"
    wrong = type_command("train", "--headless", "--resume", path, "optim.lrr=1")
    assert (wrong.code, wrong.out) == (1, "")
    assert open_run(path).info().attempt == 2  # neither of them began anything
    type_command("train", "--headless", "--config", config_file, "-o", root / "whole")
    assert_same_recording(root / "whole", path)


@pytest.mark.long
def test_learning_from_a_stored_run(config_file: Path, root: Path, type_command: Type) -> None:
    arguments = ("train", "--headless", "--config", config_file, "steps=2")
    type_command(*arguments, "-o", root / "source")
    answer = type_command(*arguments, "-o", root / "offline", "--from-run", root / "source")
    assert answer.code == 0, answer.err
    rows = open_run(root / "offline").sql("select distinct source from trajectories order by 1")
    sources = [source for source in rows.column("source").to_pylist() if source]
    assert sources[0] == "source/t00000001-00000"
    assert len(sources) == 16


def test_a_world_beside_the_user(
    config_file: Path,
    root: Path,
    tmp_path: Path,
    type_command: Type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "beside_me.py").write_text(
        "from echoscope.envs.worlds.bandit import Bandit\nclass Mine(Bandit):\n    pass\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    arguments = ("envs.train=[{env: 'beside_me:Mine', groups: 2}]", "envs.eval=[]", "steps=1")
    answer = type_command(
        "train", "--headless", "--config", config_file, "-o", root / "mine", *arguments
    )
    assert answer.code == 0, answer.err
    sys.modules.pop("beside_me")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p and p != str(tmp_path)])
    answer = type_command("train", "--headless", "--resume", root / "mine", "steps=2")
    assert answer.code == 0, answer.err


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("frozenlake",), "unknown recipe 'frozenlake'; did you mean 'frozen_lake'?"),
        (("frozen_lake", "optim.lrr=1"), "unknown key 'optim.lrr'; did you mean 'lr'?"),
        (("frozen_lake", "steps=none"), "steps is 'none', but must be a valid integer"),
        (("frozen_lake", "extra"), "'extra' is not KEY=VALUE"),
        (("frozen_lake", "model.path=./nowhere"), "no model folder './nowhere'"),
        (("--config", "./nowhere.yaml"), "cannot read nowhere.yaml: No such file or directory"),
        (("--resume", "./nowhere"), "nowhere"),
        (("--resume", "."), "not a run (no run.json)"),
        (("frozen_lake", "envs.train.0.env=lake"), "no environment 'lake'"),
        (("frozen_lake", "--from-run", "./nowhere"), "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    tiny_model: Path,
    type_command: Type,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = type_command("train", "--headless", *arguments)
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--resume", ".", "frozen_lake"),
        ("--resume", ".", "--from-run", "x"),
        ("--resume", ".", "-o", "x"),
    ],
)
def test_words_that_do_not_go_together_are_usage_mistakes(
    type_command: Type, arguments: tuple[str, ...]
) -> None:
    answer = type_command("train", *arguments)
    assert answer.code == 2
    assert "recipe" in answer.err or "--resume takes only" in answer.err


@pytest.mark.long
def test_a_second_trainer_is_one_line(config_file: Path, root: Path, type_command: Type) -> None:
    arguments = ("train", "--headless", "--config", config_file, "-o", root / "run", "steps=1")
    assert type_command(*arguments).code == 0
    with RunWriter.resume(root / "run", from_step=1):
        answer = type_command("train", "--headless", "--resume", root / "run", "steps=2")
    assert answer.code == 1
    assert "another process is writing this run" in answer.err
    assert answer.err.count("\n") == 1
    again = type_command(*arguments)
    assert again.code == 1
    assert "already holds a run; choose another name, or resume it" in again.err


def test_a_run_that_fails_has_exit_code_one(
    config_file: Path, root: Path, type_command: Type
) -> None:
    """A world in which no episode can start any more ends the run in one line."""
    answer = type_command(
        *("train", "--headless", "--config", config_file, "-o", root / "run"),
        *("eval.every=0", "context.max_prompt_tokens=2000"),
        "envs.train=[{env: 'slow_bandit:ClosedBandit', groups: 2}]",
    )
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert "OSError: no data" in answer.err
    assert answer.err.count("\n") == 1
    assert open_run(root / "run").info().status == "failed"
    assert verify(root / "run").problems == ()


# -- Ctrl-C --------------------------------------------------------------------------------------


def start(config_file: Path, path: Path, *arguments: str, ready: str) -> TrainerProcess:
    path.parent.mkdir(exist_ok=True)
    trainer = TrainerProcess(
        path.with_suffix(".log"),
        echoscope,
        *("train", "--headless", "--config", str(config_file), "-o", str(path), *LONG, *arguments),
    )
    trainer.wait_for(ready)
    return trainer


def test_ctrl_c_ends_after_the_step_with_a_checkpoint(
    config_file: Path, root: Path, type_command: Type
) -> None:
    path = root / "run"
    trainer = start(config_file, path, ready="step    3/")
    trainer.interrupt()
    assert trainer.join() == 0
    assert "stopping after this step with a checkpoint" in trainer.text
    info = open_run(path).info()
    assert info.status == "stopped"
    assert [read_state(checkpoint).step for checkpoint in list_checkpoints(path)] == [
        info.last_step
    ]
    (state,) = open_run(path).commands()
    assert (state.command.reason, state.command.issued_by) == ("SIGINT in the terminal", "terminal")
    assert state.ack is not None
    assert state.ack.step == info.last_step + 1
    assert verify(path).problems == ()
    more = info.last_step + 1
    assert type_command("train", "--headless", "--resume", path, f"steps={more}").code == 0
    assert open_run(path).info().status == "finished"


def test_a_second_ctrl_c_ends_at_once(config_file: Path, root: Path) -> None:
    """Both come within the first step: its episodes take their time, and say when they begin."""
    path = root / "run"
    trainer = start(
        *(config_file, path, "context.max_prompt_tokens=2000"),
        "envs.train=[{env: 'slow_bandit:SlowBandit', groups: 2}]",
        ready="the bandit is slow",
    )
    trainer.interrupt()
    trainer.wait_for("at once after a second signal")
    trainer.interrupt()
    assert trainer.join() == 0
    assert "the step in progress is dropped" in trainer.text
    info = open_run(path).info()
    assert (info.status, info.last_step) == ("stopped", -1)
    assert list_checkpoints(path) == []
    assert verify(path).problems == ()


@pytest.mark.long
def test_ctrl_c_on_a_hanging_environment_keeps_a_checkpoint_of_the_last_step(
    config_file: Path, root: Path
) -> None:
    """It hangs in step 2; two Ctrl-C were ignored, and the third exited without a checkpoint."""
    path = root / "run"
    trainer = start(
        *(config_file, path, "checkpoint.every=0", "probe.every=0", "envs.group_size=4"),
        "envs.train=[{env: 'slow_bandit:HangingBandit', groups: 2}]",
        ready="the bandit hangs",
    )
    trainer.interrupt()
    trainer.wait_for("at once after a second signal")
    trainer.interrupt()
    assert trainer.join() == 0
    info = open_run(path).info()
    assert (info.status, info.last_step) == ("stopped", 1)
    assert [read_state(checkpoint).step for checkpoint in list_checkpoints(path)] == [1]
    assert open_run(path).checkpoints()[0].reason == "interrupt"
    assert verify(path).problems == ()


def test_a_hanging_environment_gives_way_to_stop_now(config_file: Path, root: Path) -> None:
    path = root / "run"
    trainer = start(
        *(config_file, path, "checkpoint.every=0", "probe.every=0", "envs.group_size=4"),
        "envs.train=[{env: 'slow_bandit:HangingBandit', groups: 2}]",
        ready="the bandit hangs",
    )
    post(path, new_command("run", "stop_now"))
    assert trainer.join() == 0
    assert (open_run(path).info().status, open_run(path).info().last_step) == ("stopped", 1)


@pytest.mark.long
def test_a_reader_that_goes_away_is_no_reason_to_stop(config_file: Path, root: Path) -> None:
    """`train --headless | head -1`: training ended without a word."""
    path = root / "run"
    process = started(
        subprocess.Popen(
            [
                *(sys.executable, "-m", "echoscope", "train", "--config", str(config_file)),
                *("--headless", "-o", str(path), "steps=3", "eval.before=false", "eval.every=0"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    told = process.stderr.read()
    assert process.wait() == 0, told
    info = open_run(path).info()
    assert (info.status, info.last_step) == ("finished", 3)


@pytest.mark.long
def test_a_process_of_its_own(config_file: Path, root: Path) -> None:
    """As a person starts it: a new interpreter, a terminal's signal, an exit code."""
    path = root / "run"
    process = started(
        subprocess.Popen(
            [
                *(sys.executable, "-m", "echoscope", "train", "--config", str(config_file)),
                *("-o", str(path), *LONG),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step    2/"):
            process.send_signal(signal.SIGTERM)
            break
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 0, rest
    assert "Traceback" not in rest
    assert open_run(path).info().status == "stopped"
    assert len(list_checkpoints(path)) == 1
