"""What people type first with files of another trainer, and the sentence that helps them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.writer import RunWriter

Typed = Callable[..., Any]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    logs = tmp_path / "logs"
    logs.mkdir()
    rows = "".join(f"{step},0.5,1\n" for step in range(30))
    (logs / "m.csv").write_text(f"step,reward,other\n{rows}", encoding="utf-8")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("nothing", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["diagnose", "nosuch.log"], "error: nosuch.log: no such file or folder"),
        (["diagnose", "empty"], "error: empty: is empty"),
        (["import", "empty"], "error: empty: is empty"),
        (
            ["diagnose", "notes"],
            "notes: holds neither rollouts nor metrics of a known form",
        ),
        (
            ["import", "notes"],
            "notes: holds neither rollouts nor metrics of a known form",
        ),
        (
            ["import", "logs/m.csv", "--run", "a"],
            "holds no run 'a'; its runs are: m.csv",
        ),
        (
            ["import", "logs", "-o", "logs/m.csv"],
            "logs/m.csv: is a file; -o names the folder of the new run",
        ),
        (
            ["diagnose", "logs/m.csv", "--map", "foo=policy/entropy"],
            "--map names the column 'foo', which is not there; columns: ",
        ),
    ],
)
def test_an_error_says_what_to_do(arguments: list[str], sentence: str, type_command: Typed) -> None:
    answer = type_command(*arguments)
    assert answer.code != 0
    assert sentence in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"imported": {"trainer": "verl"}}, "The weights of this run are with another trainer"),
        ({"recorded": True}, "The weights of this run are with another trainer"),
        ({"evaluation": {}}, "This run is an evaluation: it has no weights to branch from."),
    ],
)
def test_a_run_without_weights_does_not_branch(
    config: dict[str, Any], why: str, here: Path, type_command: Typed
) -> None:
    path = here / "run"
    RunWriter.create(path, run_id="run", name="run", config=config).close(status="finished")
    answer = type_command("ctl", str(path), "branch")
    assert answer.code != 0
    assert f"run: {why}" in answer.err
