"""echoscope runs and echoscope query, as a person types them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from alarm_events import alarm_event
from made_evaluation import make_evaluation
from trajectories import make_trajectory

from echoscope.cli import main
from echoscope.store.records import (
    CommandAck,
    CommandAction,
    CommandOutcome,
    StepMetrics,
    Turn,
)
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def echoscope(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line: exit code, stdout, stderr."""

    def run(*arguments: object, columns: int = 200) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["echoscope", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        code = caught.value.code
        return (code if isinstance(code, int) else 0), out, err

    return run


def write_run(path: Path, *, name: str = "") -> RunWriter:
    """Two steps of two trajectories; the second step has a NaN."""
    writer = RunWriter.create(path, run_id=path.name, config={"lr": 1}, name=name, is_packing=False)
    for step in range(2):
        turn = Turn(
            index=0,
            observation="\x1b[2J board",
            response="Up",
            prompt_tokens=np.array([1], dtype=np.int32),
            response_tokens=np.array([2, 3], dtype=np.int32),
            reward=float(step),
        )
        trajectories = [
            make_trajectory(
                turn,
                step=step,
                index=index,
                sibling_index=index,
                env_id="bandit",
                tag="",
                env_seed=1,
                noise_seed=2,
                is_success=index == 0,
            )
            for index in range(2)
        ]
        values = {"optim/grad_norm": float("nan")}
        metrics = StepMetrics(
            run_id=path.name,
            step=step,
            phase="train",
            policy_version=0,
            wall_time=1.0,
            values=values,
        )
        writer.commit_step(metrics=[metrics], trajectories=trajectories)
    writer.flush()
    return writer


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "first"
    write_run(path, name="a \x1b[31mname").close(status="finished")
    return path


def test_list(echoscope: Run, run_path: Path) -> None:
    code, out, _ = echoscope("runs", "list", run_path.parent)
    assert code == 0
    assert "first" in out
    assert "finished" in out
    assert "1.000" in out  # mean return of the last step
    assert "50 %" in out
    code, out, _ = echoscope("runs", "list", run_path.parent, "--json")
    (row,) = json.loads(out)
    assert (row["status"], row["last_step"], row["num_trajectories"]) == ("finished", 1, 4)


def test_list_and_show_say_what_an_evaluation_is(echoscope: Run, tmp_path: Path) -> None:
    run = make_evaluation(tmp_path / "e", {"lake": ["11"]}, planned=9, status="stopped")
    (listed,) = json.loads(echoscope("runs", "list", tmp_path, "--json")[1])
    assert (listed["verdict"], listed["status"]) == ("evaluation", "stopped")
    details = json.loads(echoscope("runs", "show", run, "--json")[1])
    assert details["to_go_on"] == f"Play what is left. echoscope eval --resume {run}"


def test_list_names_what_it_cannot_read(echoscope: Run, run_path: Path) -> None:
    broken = run_path.parent / "broken"
    broken.mkdir()
    (broken / "run.json").write_text('{"schema_version": "9.0"}')
    code, out, err = echoscope("runs", "list", run_path.parent)
    assert code == 0
    assert "first" in out
    assert "run.json: its content changed after it was written" in err
    (tmp := run_path.parent.parent / "empty").mkdir()
    assert echoscope("runs", "list", tmp)[1] == f"no runs in {tmp}\n"


READS: dict[str, tuple[str, ...]] = {
    "query": ("query", "RUN", "SELECT count(*) AS n FROM steps"),
    "show": ("runs", "show", "RUN"),
    "status": ("ctl", "RUN", "status"),
    "list": ("runs", "list", "ROOT"),
}


COMMAND = (
    '{"command_id": "c", "run_id": "first", "issued_at": ISSUED_AT, "issued_by": "", '
    '"action": "pause", "settings": "{}", "reason": "", "expires_at": null}'
)


def typed(arguments: tuple[str, ...], path: Path) -> list[str]:
    names = {"RUN": str(path), "ROOT": str(path.parent)}
    return [names.get(word, word) for word in arguments]


@pytest.mark.parametrize("arguments", READS.values(), ids=READS)
@pytest.mark.parametrize("is_live", [False, True])
def test_a_command_of_401_digits_stops_no_reader(
    arguments: tuple[str, ...], is_live: bool, echoscope: Run, run_path: Path
) -> None:
    """`commands/0.json` with such a time made each of them end with a traceback."""
    writer = RunWriter.resume(run_path, from_step=1, is_packing=False) if is_live else None
    post(run_path, new_command(run_path.name, "checkpoint"))
    (run_path / "commands" / "0.json").write_text(COMMAND.replace("ISSUED_AT", "9" * 401))
    code, out, err = echoscope(*typed(arguments, run_path))
    assert (code, err) == (0, "")
    assert out.strip()
    if writer is not None:
        writer.close(status="finished")


def digits(path: Path) -> None:
    file = path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"created_at": 10**400}))


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def journal_of_folders(path: Path) -> None:
    (path / "journal.ndjson").unlink()
    (path / "journal.ndjson").mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BAD: dict[str, Callable[[Path], object]] = {
    "half": lambda path: (path / "run.json").write_text('{"schema_version": "1'),
    "list": lambda path: (path / "run.json").write_text("[]"),
    "digits": digits,
    "nested": lambda path: (path / "run.json").write_text("[" * 50_000),
    "not UTF-8": lambda path: (path / "run.json").write_bytes(b'{"name": "\xff"}'),
    "loop": lambda path: loop(path / "run.json"),
    "pipe": lambda path: pipe(path / "run.json"),
    "journal pipe": lambda path: pipe(path / "journal.ndjson"),
    "journal": journal_of_folders,
}


@pytest.mark.long
@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
def test_a_bad_run_is_refused_by_itself(
    spoil: Callable[[Path], object], echoscope: Run, run_path: Path
) -> None:
    bad = run_path.parent / "bad"
    write_run(bad).close(status="finished")
    spoil(bad)
    code, out, err = echoscope("runs", "list", run_path.parent)
    assert code == 0
    assert "first" in out
    # A folder whose run.json is no file is no run.
    assert "bad" in out + err or not (bad / "run.json").is_file()
    for arguments in READS.values():
        assert echoscope(*typed(arguments, run_path))[0] == 0
        code, out, err = echoscope(*typed(arguments, bad))
        is_refused = code == 1 and err.startswith("error: ") and err.count("\n") == 1
        assert is_refused or code == 0, (arguments, code, err)


def test_list_uses_the_folder_runs(
    echoscope: Run, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_path.parent.parent)
    assert "first" in echoscope("runs", "list")[1]


def test_show(echoscope: Run, run_path: Path) -> None:
    code, out, _ = echoscope("runs", "show", run_path)
    assert code == 0
    assert "trajectories 4" in out
    assert "\x1b" not in out
    value = json.loads(echoscope("runs", "show", run_path, "--json")[1])
    assert value["holds"]["turns"] == 4
    assert value["config"] == {"lr": 1}
    assert value["latest"]["grad_norm"] is None
    assert value["name"] == "a \x1b[31mname"


def test_show_says_what_resuming_a_run_plays_again(echoscope: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run").close(status="stopped")
    _, details, _ = echoscope("runs", "show", tmp_path / "run", "--json")
    assert json.loads(details)["to_go_on"] == (
        "Resume the run: it goes on from the beginning, because there is no checkpoint, and plays "
        f"1 finished step again. echoscope train --resume {tmp_path / 'run'}"
    )
    write_run(tmp_path / "done").close(status="finished")
    _, details, _ = echoscope("runs", "show", tmp_path / "done", "--json")
    assert json.loads(details)["to_go_on"] is None


def test_verify(echoscope: Run, run_path: Path) -> None:
    code, out, _ = echoscope("runs", "verify", run_path)
    assert (code, "6 files" in out, "4 trajectories: all good" in out) == (0, True, True)
    path = next((run_path / "seg" / "tokens").glob("00000001-*"))
    path.write_bytes(b"x")
    code, out, _ = echoscope("runs", "verify", run_path)
    assert code == 1
    assert f"{path}: it has 1 bytes" in out
    assert "lost: tokens of step 1" in out
    assert "Whole steps: 0." in out
    code, out, _ = echoscope("runs", "verify", run_path, "--json")
    assert code == 1
    assert [problem["path"] for problem in json.loads(out)["problems"]] == [str(path)]


@pytest.mark.long
def test_pack(echoscope: Run, run_path: Path) -> None:
    assert "packed 2 steps: 7 files became 6" in echoscope("runs", "pack", run_path)[1]
    assert echoscope("runs", "pack", run_path)[1] == "nothing to pack\n"
    assert json.loads(echoscope("runs", "pack", run_path, "--json")[1])["num_steps"] == 0


def test_pack_says_what_it_had_to_leave(echoscope: Run, run_path: Path) -> None:
    next((run_path / "seg" / "turns").iterdir()).write_bytes(b"x")
    code, out, err = echoscope("runs", "pack", run_path)
    assert (code, out) == (0, "nothing to pack\n")
    assert "left as it is" in err
    code, _, err = echoscope("query", run_path, "SELECT * FROM turns")
    assert (code, "left out" in err) == (0, True)


def test_rm_asks_first(echoscope: Run, run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert echoscope("runs", "rm", run_path)[0] == 1
    assert run_path.exists()
    assert echoscope("runs", "rm", run_path, "--yes")[0] == 0
    assert not run_path.exists()


def test_rm_refuses_a_running_run_and_what_is_none(
    echoscope: Run, tmp_path: Path, run_path: Path
) -> None:
    writer = write_run(tmp_path / "runs" / "live")
    code, _, err = echoscope("runs", "rm", writer.path, "--yes")
    assert code == 1
    assert "another process is writing this run" in err
    writer.close(status="stopped")
    code, _, err = echoscope("runs", "rm", tmp_path, "--yes")
    assert (code, "not a run" in err, tmp_path.exists()) == (1, True, True)


@pytest.mark.parametrize("command", ["show", "verify", "pack"])
def test_every_command_says_in_one_line_that_there_is_no_run(
    echoscope: Run, tmp_path: Path, command: str
) -> None:
    for path, why in ((tmp_path, "not a run (no run.json)"), (tmp_path / "x", "no such folder")):
        code, out, err = echoscope("runs", command, path)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("error: ")
        assert why in err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("diagnose {}", 4),
        ("ctl {} status", 1),
        ("ctl {} pause", 1),
        ("ctl {} alarms", 1),
        ("ctl {} branch steps=9 --dry-run", 1),
        ("query {} SELECT", 1),
        ("whatif {}", 1),
        ("runs show {}", 1),
        ("runs note {}", 1),
        ("report {}", 4),
        ("train --resume {}", 1),
    ],
)
def test_a_run_typed_without_the_folder_runs_is_shown_the_way(
    echoscope: Run,
    tmp_path: Path,
    run_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_path == tmp_path / "runs" / "first"
    for typed, meant in (("first", "runs/first"), ("run/first", "runs/first")):
        answer = echoscope(*command.format(typed).split())
        message = f"error: there is no run `{typed}` here; did you mean `{meant}`?\n"
        assert answer == (code, "", message)
    monkeypatch.chdir(tmp_path / "runs")
    answer = echoscope(*command.format("runs/first").split())
    assert answer[2] == "error: there is no run `runs/first` here; did you mean `first`?\n"


def test_query_as_table_csv_and_json(echoscope: Run, run_path: Path) -> None:
    sql = "SELECT step, grad_norm, [1, step] l, MAP {'a': 0.5} m, sum(1) n FROM steps GROUP BY ALL "
    sql += "ORDER BY step"
    code, out, _ = echoscope("query", run_path, sql)
    assert code == 0
    assert "grad_norm" in out
    assert json.loads(echoscope("query", run_path, sql, "--json")[1]) == [
        {"step": step, "grad_norm": None, "l": [1, step], "m": {"a": 0.5}, "n": 1}
        for step in range(2)
    ]
    out = echoscope("query", run_path, sql, "--format", "csv", "--limit", "1")[1]
    assert out == 'step,grad_norm,l,m,n\n0,,"[1, 0]","{""a"": 0.5}",1\n'


def test_text_of_a_model_cannot_steer_the_terminal(echoscope: Run, run_path: Path) -> None:
    out = echoscope("query", run_path, 'SELECT observation AS "\x1b[1m" FROM turns')[1]
    assert "\x1b" not in out
    assert "\\x1b[2J board" in out


def test_query_limits_what_it_prints(echoscope: Run, run_path: Path) -> None:
    code, out, err = echoscope("query", run_path, "SELECT range AS n FROM range(500)")
    assert (code, "100 of 500 rows; --limit 500 shows all" in err) == (0, True)
    assert " 99 " in out
    assert " 100 " not in out
    out = echoscope("query", run_path, "SELECT repeat('x', 500) t")[1]
    assert (out.count("x"), out.count(".")) == (200, 3)


def test_query_over_all_runs(echoscope: Run, tmp_path: Path, run_path: Path) -> None:
    write_run(tmp_path / "runs" / "second").close(status="stopped")
    sql = "SELECT run_id, count(*) n FROM turns GROUP BY 1 ORDER BY 1"
    out = echoscope("query", tmp_path / "runs", sql, "--json")[1]
    assert json.loads(out) == [{"run_id": "first", "n": 4}, {"run_id": "second", "n": 4}]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM turn", "Did you mean"),
        ("DROP VIEW turns", "DROP is not allowed"),
    ],
)
def test_a_bad_query_is_one_line(echoscope: Run, run_path: Path, sql: str, why: str) -> None:
    code, out, err = echoscope("query", run_path, sql)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert why in err


def test_query_wants_a_run(echoscope: Run, tmp_path: Path) -> None:
    assert "holds none" in echoscope("query", tmp_path, "SELECT 1")[2]
    assert "no such folder" in echoscope("query", tmp_path / "x", "SELECT 1")[2]


def pause_by(writer: RunWriter, name: str) -> None:
    command = new_command(writer.run_id, CommandAction.PAUSE, issued_by=name)
    ack = CommandAck(command_id=command.command_id, step=2, outcome=CommandOutcome.APPLIED)
    writer.record_acks([ack], [command])
    writer.flush()


def test_the_list_and_ctl_have_the_word_of_the_store(echoscope: Run, tmp_path: Path) -> None:
    writer = write_run(tmp_path / "a")
    pause_by(writer, "ann")
    (row,) = json.loads(echoscope("runs", "list", tmp_path, "--json")[1])
    assert (row["status"], row["status_by"]) == ("paused", "ann")
    assert "paused by ann for" in echoscope("runs", "list", tmp_path)[1]
    assert json.loads(echoscope("runs", "show", tmp_path / "a", "--json")[1])["status"] == "paused"
    status = json.loads(echoscope("ctl", tmp_path / "a", "status", "--json")[1])
    assert (status["status"], status["status_by"]) == ("paused", "ann")
    assert "a: paused by ann for" in echoscope("ctl", tmp_path / "a", "status")[1]
    writer.close(status="finished")


@pytest.mark.parametrize("width", [80, 200])
def test_no_cell_of_the_list_is_cut(echoscope: Run, tmp_path: Path, width: int) -> None:
    names = ["frozen_lake-collapse-template-2026-11-22-03-15-59", "ppo__lr1e-4__seed0"]
    writers = [write_run(tmp_path / name) for name in names]
    pause_by(writers[0], "alarm LOW_SUCCESS")
    out = echoscope("runs", "list", tmp_path, columns=width)[1]
    assert 'paused by the alarm "low success" for' in out
    assert all(name in out for name in names)
    assert out.count("50 %") == 2
    assert "\u2026" not in out
    assert ("started" in out) is (width == 200)
    for writer in writers:
        writer.close(status="finished")


def test_the_list_has_pinned_runs_at_the_top_and_names_its_success(
    echoscope: Run, tmp_path: Path
) -> None:
    for name in ("older", "pinned", "newer"):
        write_run(tmp_path / name).close(status="finished")
    assert echoscope("runs", "note", tmp_path / "pinned", "--pin")[0] == 0
    header, *lines = echoscope("runs", "list", tmp_path)[1].splitlines()
    assert [line.split()[0] for line in lines] == ["pinned", "older", "newer"]
    assert "training success" in header
    rows = json.loads(echoscope("runs", "list", tmp_path, "--json")[1])
    assert [row["run_id"] for row in rows] == ["pinned", "older", "newer"]


def test_the_list_shows_verdict_and_parent(echoscope: Run, tmp_path: Path) -> None:
    """Two runs raised a critical alarm: one ends at a tenth of its best, one at three quarters.
    That one is collapsing in JSON, and for people, now that it ended, collapsed in part."""
    settings = {"diagnostics": {"enabled": True}}
    rates_of = {"lost": (0.8, 0.08), "child": (0.8, 0.8), "half": (0.8, 0.6)}
    for name, rates in rates_of.items():
        parent = "lost" if name == "child" else None
        writer = RunWriter.create(
            tmp_path / name, run_id=name, config=settings, parent_run_id=parent, is_packing=False
        )
        for step, rate in enumerate(rates):
            values = {"eval/lake/success_rate": rate}
            metrics = StepMetrics(
                run_id=name, step=10 * (step + 1), phase="eval", policy_version=0, wall_time=1.0,
                values=values, durations_s={},
            )  # fmt: skip
            alarm = alarm_event(
                "a",
                20,
                "critical",
                rule="LOW_SUCCESS",
                onset_step=12,
                metric="",
                value=rate,
                threshold=0.3,
                message="",
            )
            alarms = [alarm] if name != "child" and step == 1 else []
            writer.commit_step(metrics=[metrics], trajectories=[], alarms=alarms)
        writer.close(status="finished")
    rows = {
        row["run_id"]: row for row in json.loads(echoscope("runs", "list", tmp_path, "--json")[1])
    }
    assert rows["lost"]["verdict"] == "collapsed"
    assert rows["half"]["verdict"] == "collapsing"
    assert (rows["child"]["verdict"], rows["child"]["parent_run_id"]) == ("healthy", "lost")
    header, *lines = echoscope("runs", "list", tmp_path)[1].splitlines()
    assert "verdict" in header
    assert "parent" in header
    assert any("collapsed in part" in line for line in lines)
    assert not any("collapsing" in line for line in lines)
