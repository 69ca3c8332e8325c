"""echoscope ctl RUN branch, as a person types it and as a program starts it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainer_process import TrainerProcess, echoscope

from echoscope.store.reader import open_run

Type = Callable[..., Any]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory, recorded_root: Path) -> Path:
    """In a root of its own, since branches come to lie beside it."""
    return shutil.copytree(recorded_root / "tiny", tmp_path_factory.mktemp("runs") / "tiny")


def test_a_branch_is_announced_trained_and_found(parent: Path, type_command: Type) -> None:
    arguments = ("--checkpoint", 2, "--name", "colder", "--by", "ann", "optim.lr=1e-4")
    answer = type_command("ctl", parent, "branch", *arguments, "--reason", "too hot", "--json")
    assert answer.code == 0
    first, last = map(json.loads, answer.out.splitlines())
    assert first == {
        "run_id": first["run_id"],
        "path": str(parent.parent / first["run_id"]),  # beside its parent
        "parent_run_id": "tiny",
        "parent_step": 2,
        "checkpoint_reason": "",
        "steps": 4,
        "changed": {"optim.lr": [0.001, 0.0001]},
        "outcome": "starting",
    }
    assert first["run_id"].startswith("colder-")
    assert last == {"run_id": first["run_id"], "path": first["path"], "status": "finished"}
    assert "step    4/4" in answer.err  # progress is not for the program that reads stdout
    details = json.loads(type_command("runs", "show", first["path"], "--json").out)
    assert details["parent_run_id"] == "tiny"
    assert details["config"]["branched_from"] == {
        "run_id": "tiny",
        "step": 2,
        "reason": "too hot",
        "issued_by": "ann",
        "command_id": "",
        "treatments": [],
    }


def test_a_dry_run_starts_nothing(parent: Path, tmp_path: Path, type_command: Type) -> None:
    arguments = ("steps=6", "loss.kl_coef=0.1", "--root", tmp_path, "--dry-run")
    answer = type_command("ctl", parent, "branch", *arguments)
    assert answer.code == 0
    first, why, *changes = answer.out.splitlines()
    assert first.startswith(f"would start {tmp_path}/test-")
    assert first.endswith("from step 4 of tiny, to step 6")
    assert why == "  checkpoint 4: It is the newest, and no alarm is open."
    assert changes == ["  steps 4 -> 6", "  loss.kl_coef 0.0 -> 0.1"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "steps is 4 and the checkpoint is of step 4"),
        (("steps=9", "model.lora.rank=8"), "model.lora.rank cannot change in a branch"),
        (("steps=9", "--checkpoint", "99"), "there are: 0, 2, 4"),
        (("steps=9", "--name", "../up"), "name is '../up'"),
        (("steps=9", "--reason", "x" * 2_001), "the reason has 2001 characters"),
        (("steps=9", "envs.train.0.params.slipp=0"), "frozen_lake has no parameter 'slipp'"),
        (("steps=9", "reward.shaping=[{name: x, function: 'no:such'}]"), "no:such"),
        (("steps=9", "context.max_prompt_tokens=99999"), "the model has "),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",), ("--dry-run",)])
def test_a_refusal_is_one_line_and_the_dry_run_refuses_the_same(
    parent: Path,
    type_command: Type,
    arguments: tuple[str, ...],
    message: str,
    options: tuple[str, ...],
) -> None:
    before = sorted(parent.parent.iterdir())
    answer = type_command("ctl", parent, "branch", *arguments, *options)
    assert (answer.code, answer.out) == (1, "")  # nothing says that it starts
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1
    assert sorted(parent.parent.iterdir()) == before


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["nowhere", "branch"], ["{parent}", "branch", "steps"]])
def test_wrong_input_is_refused_before_torch_is_loaded(
    parent: Path, tmp_path: Path, arguments: list[str]
) -> None:
    """On a busy machine torch takes minutes."""
    code = (
        "import sys\n"
        f"sys.argv[1:] = ['ctl', *{[word.format(parent=parent) for word in arguments]}]\n"
        "from echoscope.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as left:\n    print(left.code, 'torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "1 False\n", done.stderr


@pytest.mark.long
def test_whoever_starts_it_knows_the_run_while_it_trains(parent: Path, tmp_path: Path) -> None:
    """A process of its own: the line is there at once, and Ctrl-C ends it with a checkpoint."""
    arguments = ("branch", "steps=100000", "--root", str(tmp_path), "--json")
    trainer = TrainerProcess(
        tmp_path.with_suffix(".log"), echoscope, "ctl", str(parent), *arguments
    )
    try:
        trainer.wait_for("step    6/")
        start = json.loads(trainer.text.splitlines()[0])
        assert open_run(start["path"]).info().status == "running"
        trainer.interrupt()
        assert trainer.join() == 0
    finally:
        trainer.kill()
    assert json.loads(trainer.text.splitlines()[-1])["status"] == "stopped"
    info = open_run(start["path"]).info()
    assert (info.status, info.last_step >= 6) == ("stopped", True)
