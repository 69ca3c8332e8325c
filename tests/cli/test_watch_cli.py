"""`echoscope watch`: what it prints, how it ends, and whom it tells."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from echoscope.cli import app, main
from echoscope.cli.watch_view import LineView, of_step
from echoscope.store.reader import open_run


def verl(steps: range, *, lost_from: int = 1000) -> str:
    """A return that rises, which is what health can be read from, until it is lost."""
    return "".join(
        f"step:{s} - actor/entropy:{1.0 if s < lost_from else 0.01} "
        f"- critic/score/mean:{min(0.1 * s, 0.9) if s < lost_from else 0.0}\n"
        for s in steps
    )


def old(path: Path, text: str) -> Path:
    """A file that was written a while ago."""
    path.write_text(text)
    before = time.time() - 3600
    os.utime(path, (before, before))
    return path


class Called(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Called]:
    """Calls `echoscope watch` in the folder of the test."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, text: str | None = None, command: str = "watch") -> Called:
        given = tmp_path / "stdin"
        given.write_text(text or "")
        with given.open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            with pytest.raises(SystemExit) as ended:
                main(lambda: app([command, *arguments]))
        printed = capfd.readouterr()
        return Called(int(ended.value.code or 0), printed.out, printed.err)

    return call


Watched = Callable[..., Called]


def test_once_judges_and_ends_with_the_code_of_diagnose(tmp_path: Path, watch: Watched) -> None:
    old(tmp_path / "train.log", verl(range(1, 60), lost_from=30))
    code, out, _ = watch("train.log", "--once")
    assert code == 3
    assert "step    59" in out
    assert "critical LOW_SUCCESS at step" in out
    run = tmp_path / "runs" / "train"
    assert open_run(run).info().status == "finished"


def test_json_is_one_object_a_line_and_ends_with_the_verdict(
    tmp_path: Path, watch: Watched
) -> None:
    old(tmp_path / "train.log", verl(range(1, 31)))
    code, out, _ = watch("train.log", "--once", "--json", "-o", "r")
    events: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [e["step"] for e in events if e["event"] == "step"] == list(range(1, 31))
    assert events[0]["event"] == "step"
    assert events[0]["metrics"]["policy/entropy"] == 1.0
    assert (events[-1]["event"], events[-1]["state"]) == ("verdict", "healthy")


def fields_in_the_docs() -> dict[str, set[str]]:
    """Event -> the fields that docs/watch.md tells of."""
    text = (Path(__file__).parents[2] / "docs" / "watch.md").read_text()
    table = text.partition("| event |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1:-1] for row in table.splitlines()[2:]]
    return {row[0].strip(" `"): set(re.findall(r"`(\w+)`", row[2])) for row in rows}


def test_the_docs_tell_of_all_fields_of_the_json(tmp_path: Path, watch: Watched) -> None:
    old(tmp_path / "train.log", verl(range(1, 60), lost_from=30))
    _, out, _ = watch("train.log", "--once", "--json", "-o", "r")
    printed: dict[str, set[str]] = {}
    for line in out.splitlines():
        event = json.loads(line)
        printed.setdefault(event.pop("event"), set()).update(event)
    _, out, _ = watch("r", "--json", command="diagnose")
    documented = fields_in_the_docs()
    assert printed.pop("verdict") - {"run"} <= json.loads(out).keys()
    assert documented.pop("verdict") == {"run"}
    assert printed == documented


@pytest.mark.parametrize(("kind", "code"), [("healthy", 0), ("collapsed", 3), ("short", 5)])
def test_the_exit_code_is_that_of_the_verdict(
    tmp_path: Path, watch: Watched, kind: str, code: int
) -> None:
    lost_from = 30 if kind == "collapsed" else 1000
    old(tmp_path / "train.log", verl(range(1, 4 if kind == "short" else 60), lost_from=lost_from))
    assert watch("train.log", "--once").code == code


def test_a_line_in_a_pipe_is_not_wrapped(tmp_path: Path, watch: Watched) -> None:
    old(tmp_path / "train.log", verl(range(1, 31)))
    lines = watch("train.log", "--once").out.splitlines()
    (not_checked,) = [line for line in lines if line.startswith("Not checked:")]
    assert not_checked.endswith("(`--json` lists them).")
    assert len(not_checked) > 140


def test_an_empty_folder_says_what_it_waits_for(tmp_path: Path, watch: Watched) -> None:
    (tmp_path / "outputs").mkdir()
    code, out, _ = watch("outputs", "--once")
    assert code == 5
    assert out.splitlines()[0] == (
        f"{tmp_path / 'outputs'}: nothing to follow yet. Waiting for rollouts (JSON lines or "
        "Parquet, as verl, RAGEN, TRL and others write them), metrics (CSV, JSON lines, "
        "TensorBoard, W&B or trackio files) or a console log with lines such as "
        "'step:1 - actor/entropy:0.5'."
    )
    assert out.count("nothing to follow yet") == 1


def test_files_that_cannot_be_followed_are_named(tmp_path: Path, watch: Watched) -> None:
    folder = tmp_path / "outputs"
    folder.mkdir()
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "model.pt").write_bytes(b"weights")
    (folder / "notes.txt").write_text("hello\n")
    (folder / "train.log").touch()
    for number in range(3):
        (folder / f"z{number}.md").write_text("words\n")
    out = watch("outputs", "--once").out
    assert (
        ": nothing to follow yet in 7 files (config.json, model.pt, notes.txt, train.log, z0.md, 2 "
        "more). Waiting for"
    ) in out


def test_standard_input_ends_with_the_trainer(tmp_path: Path, watch: Watched) -> None:
    code, out, _ = watch("-", "-o", "r", text=verl(range(1, 31)).rstrip("\n"))
    assert code == 0
    assert "step    30" in out
    assert open_run(tmp_path / "r").info().last_step == 30


def test_an_alarm_ends_the_watch(tmp_path: Path, watch: Watched) -> None:
    old(tmp_path / "train.log", verl(range(1, 60), lost_from=30))
    assert watch("train.log", "-o", "r", "--exit-on-alarm").code == 3


def test_people_are_told_by_the_usual_targets(tmp_path: Path, watch: Watched) -> None:
    old(tmp_path / "train.log", verl(range(1, 60), lost_from=30))
    arguments = ("train.log", "-o", "r", "--once", "--notify", "command:cat >> told.jsonl")
    watch(*arguments)
    (line,) = (tmp_path / "told.jsonl").read_text().splitlines()
    message = json.loads(line.strip())
    assert message["state"] in ("collapsed", "collapsing")


def test_once_has_nothing_to_wait_for(tmp_path: Path, watch: Watched) -> None:
    code, _, errors = watch("nothere", "--once")
    assert (code, errors) == (4, "error: nothere: no such file or folder\n")
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_ends_with_the_verdict(tmp_path: Path, watch: Watched) -> None:
    old(tmp_path / "train.log", verl(range(1, 31)))

    def press() -> None:
        for _ in range(3000):
            if (tmp_path / "r" / "run.json").is_file() and open_run(
                tmp_path / "r"
            ).info().last_step:
                break
            time.sleep(0.02)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    code, out, _ = watch("train.log", "-o", "r", "--json")
    assert code in (0, 5)
    assert json.loads(out.splitlines()[-1])["event"] == "verdict"
    assert open_run(tmp_path / "r").info().status == "finished"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("x", "--notify", "slack:NOT_SET"), "run: export NOT_SET=ADDRESS"),
        (("x", "--notify", "slack"), "a target of notify is an address, but must be desktop"),
        (("x", "--notify", "slack:https://h/x"), "such as slack:SLACK_HOOK; run: export"),
        (("x", "--notify", "pigeon:X"), "a target of notify is 'pigeon:X', but must be"),
        (("x", "--map", "a=b/c"), "b/c"),
        (("wandb:me/run",), "write wandb:ENTITY/PROJECT/RUN"),
    ],
)
def test_what_cannot_be_watched_like_that_is_one_sentence(
    watch: Watched, arguments: tuple[str, ...], sentence: str
) -> None:
    Path("x").touch()
    code, _, errors = watch(*arguments, "--once")
    assert code == 1
    assert sentence in errors
    assert "h/x" not in errors  # an address may be a secret
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--severity", "--fail-on"])
def test_an_option_with_choices_names_them(watch: Watched, option: str) -> None:
    code, _, errors = watch("x", option, "bad")
    assert code == 2
    assert "'bad' is not one of" in errors
    _, out, _ = watch("--help")
    assert "<warning|critical>" in out
    assert "<collapse|watch>" in out


def test_nothing_to_read_is_said_and_writes_no_run(tmp_path: Path, watch: Watched) -> None:
    (tmp_path / "notes.txt").write_text("nothing of a training\n")
    code, out, _ = watch("notes.txt", "--once")
    assert code == 5
    assert "no step was read from notes.txt" in out
    assert not (tmp_path / "runs").exists()


def test_a_server_without_rows_is_to_be_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    LineView(Path("wandb:lab/p/r"), Path("runs/r")).nothing()
    assert "the run has no row yet. Try again" in capsys.readouterr().out


def test_a_step_shows_evaluations_first_and_nothing_that_it_has_not() -> None:
    values = {
        "policy/entropy": 0.5,
        "eval/t/success_rate": 0.25,
        "reward/return_mean": float("nan"),
    }
    assert [value for _, value in of_step(values)] == ["0.250", "0.500"]
