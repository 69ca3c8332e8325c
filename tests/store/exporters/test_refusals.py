"""What an export refuses, what it survives, and what it says of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import duckdb
import pytest
from made_run import add_steps, make_run, open_writer, step_metrics
from stored_steps import build_trajectory
from trajectories import make_trajectory

from echoscope.store.errors import NotARunError
from echoscope.store.exporters.exporting import export_run
from echoscope.store.exporters.format import ExportError, Options
from echoscope.store.reader import open_run
from echoscope.store.records import Turn
from echoscope.store.writer import RunWriter

from .conftest import imported, stored, write_run

SUFFIXES = {"inspect": ".eval"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(run: Path, target: Path, to: str = "messages", **options: Any) -> str:
    before = names(target.parent) if target.parent.is_dir() else []
    with pytest.raises(ExportError) as error:
        export_run(run, to, target, **options)
    assert not target.parent.is_dir() or names(target.parent) == before, "nothing is left behind"
    return str(error.value)


def test_an_output_that_exists(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("mine")
    assert "add --overwrite" in refused(run, target)
    assert target.read_text() == "mine"
    export_run(run, "messages", target, is_overwriting=True)
    assert target.read_text() != "mine"


def test_a_folder_is_never_replaced(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "photos"
    target.mkdir()
    (target / "wedding.png").write_text("mine")
    for is_overwriting in (False, True):
        for to in ("csv", "messages"):
            assert "no regular file" in refused(run, target, to, is_overwriting=is_overwriting)
    assert names(target) == ["wedding.png"]
    (tmp_path / "file").write_text("mine")
    assert "csv writes a folder" in refused(run, tmp_path / "file", "csv", is_overwriting=True)


def test_an_inspect_log_ends_as_inspect_lists_logs(run: Path, tmp_path: Path) -> None:
    message = refused(run, tmp_path / "run.log", "inspect")
    assert message.endswith(f"name it {tmp_path / 'run.eval'}")


def test_inside_a_run(run: Path, tmp_path: Path) -> None:
    assert "inside the run" in refused(run, run / "out.jsonl")
    other = make_run(tmp_path / "other")
    (other / "deep").mkdir()
    assert "inside the run" in refused(run, other / "deep" / "out.jsonl")
    (tmp_path / "way").symlink_to(run)
    assert "inside the run" in refused(run, tmp_path / "way" / "out.jsonl")


def test_links(run: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "precious")
    assert "no regular file" in refused(run, tmp_path / "out.jsonl", is_overwriting=True)
    (tmp_path / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    assert "no regular file" in refused(run, tmp_path / "nowhere.jsonl")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_folder_that_is_not_there(run: Path, tmp_path: Path) -> None:
    assert "make it first" in refused(run, tmp_path / "a" / "out.jsonl")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (Options(where="nonsense ="), "--where: 'nonsense =' is not one condition"),
        (Options(where="1); DROP TABLE runs; --"), "is not one condition"),
        (Options(where="sucess"), "did you mean 'success' or 'is_success'?"),
        (Options(where="tag = bandit"), "a text stands in single quotes: 'bandit'"),
        (Options(where="step > 'abc'"), "--where \"step > 'abc'\": Conversion Error"),
        (
            Options(where="tag = 'no'", split="train"),
            "no episode of steps 0 to 2 fulfils --where \"tag = 'no'\"; the run has",
        ),
        (Options(first_step=7), "there is no step 7; the run has steps 0 to 2"),
        (Options(first_step=2, last_step=1), "must not end before it begins"),
        (Options(split="eval"), "--split all exports them"),
        (Options(margin=0.5), "belongs to --to dpo"),
        (Options(best=0), "--best is 0, but must be 1 or more"),
        (Options(margin=-1), "--margin is -1, but must be 0 or more"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(run: Path, tmp_path: Path, options: Options, part: str) -> None:
    assert part in refused(run, tmp_path / "out.jsonl", options=options)


def test_a_format_that_is_not_there(run: Path, tmp_path: Path) -> None:
    assert "did you mean 'messages'?" in refused(run, tmp_path / "out", "message")
    with pytest.raises(NotARunError):
        export_run(tmp_path / "gone", "messages", tmp_path / "out")


def test_an_export_that_leaves_out_every_episode_counts_the_reasons(tmp_path: Path) -> None:
    run = make_run(tmp_path / "equal", num_steps=1)
    assert refused(run, tmp_path / "out", "dpo", options=Options(margin=9)) == (
        f"{tmp_path / 'out'}: nothing to write, because every episode was left out (4 episodes: "
        "the returns of the two siblings are too close). Choose other episodes with --steps, "
        "--split or --where"
    )


def test_a_run_without_episodes(tmp_path: Path) -> None:
    with open_writer(tmp_path / "bare") as writer:
        writer.commit_step(
            metrics=[step_metrics("bare", 0, {"x": 1.0})], trajectories=[], outcomes=[]
        )
    message = refused(tmp_path / "bare", tmp_path / "out", "csv")
    assert "metrics but no episodes" in message
    assert f"`echoscope mirror {tmp_path / 'bare'} --to tensorboard`" in message


def test_a_run_without_a_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "empty", num_steps=0)
    assert "has not finished a step yet" in refused(run, tmp_path / "out.jsonl")


def test_a_live_run_is_cut_at_the_last_acknowledged_step(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "live")
    add_steps(writer, "live", range(2))
    later = iter([lambda: add_steps(writer, "live", range(2, 4))])

    def progress(done: int, of: int) -> None:
        next(later, lambda: None)()  # two more steps come while the export writes

    try:
        report = export_run(tmp_path / "live", "duckdb", tmp_path / "out.duckdb", progress=progress)
    finally:
        writer.close(status="finished")
    assert (report.is_live, report.cut, report.num_rows) == (True, 1, 8)
    assert open_run(tmp_path / "live").info().last_step == 3
    with duckdb.connect(str(tmp_path / "out.duckdb"), read_only=True) as connection:
        for table in ("trajectories", "turns", "steps", "metrics"):
            assert connection.sql(f"SELECT max(step) FROM {table}").fetchall() == [(1,)]


def test_a_run_that_goes_back_meanwhile(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    resumed: list[Any] = []

    def progress(done: int, of: int) -> None:
        if not resumed:
            resumed.append(RunWriter.resume(run, from_step=0, is_packing=False))
            add_steps(resumed[0], "run", range(1, 2), text="other")

    try:
        assert "export it again" in refused(
            run, tmp_path / "out.duckdb", "duckdb", progress=progress
        )
    finally:
        resumed[0].close(status="finished")


def damage(run: Path, table: str, *, step: int) -> Path:
    """Change a byte of a table's file of a step."""
    (path,) = (run / "seg" / table).glob(f"*{step:08d}-*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    return path


def test_episodes_whose_rows_are_damaged_are_counted(run: Path, tmp_path: Path) -> None:
    damaged = damage(run, "trajectories", step=1)
    report = export_run(run, "messages", tmp_path / "out.jsonl")
    assert (report.num_all, report.taken) == (8, {"train": 8})
    (why,) = report.missing
    assert str(damaged) in why
    assert "its content changed after it was written" in why
    options = Options(first_step=1, last_step=1)
    assert f"can be read. {why} `echoscope runs verify {run}`" in refused(
        run, tmp_path / "one.jsonl", options=options
    )


def test_damaged_tokens_leave_out_no_episode(tmp_path: Path) -> None:
    trained = [build_trajectory(0, index) for index in range(2)]
    run = write_run(tmp_path / "run", trained)
    damaged = damage(run, "tokens", step=0)
    report = export_run(run, "messages", tmp_path / "out.jsonl")
    assert report.taken == {"train": 2}
    assert str(damaged) in report.missing[0]


def test_a_damaged_run_says_what_is_missing(run: Path, tmp_path: Path) -> None:
    before = stored(run)
    damaged = damage(run, "turns", step=1)
    report = export_run(run, "messages", tmp_path / "out.jsonl")
    assert list(report.skipped.values()) == [4]
    assert (report.taken, report.first_step, report.last_step) == ({"train": 8}, 0, 2)
    assert str(damaged) in report.missing[0]
    back = imported(tmp_path / "out.jsonl", tmp_path / "back")
    assert [t.step for t in back] == [t.step for t in before if t.step != 1]


@pytest.mark.parametrize("to", ["messages", "csv", "inspect"])
def test_a_full_disk_leaves_nothing(
    run: Path, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = refused(run, tmp_path / f"out{SUFFIXES.get(to, '')}", to)
    assert "No space left on device" in message
    assert "nothing was left behind" in message


def test_an_interrupt_leaves_nothing(run: Path, tmp_path: Path) -> None:
    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_run(run, "inspect", tmp_path / "out.eval", progress=interrupt)
    assert names(tmp_path) == ["run"]


def test_a_huge_turn(tmp_path: Path) -> None:
    text = "x" * 1_000_000 + "\x00\u2028</script>"
    run = write_run(
        tmp_path / "run", [make_trajectory(Turn(index=0, observation=text, response=text))]
    )
    export_run(run, "messages", tmp_path / "out.jsonl")
    (back,) = imported(tmp_path / "out.jsonl", tmp_path / "back")
    assert back.turns[0].response == text


def test_a_format_that_writes_nothing_is_no_success(run: Path, tmp_path: Path) -> None:
    assert "(1 episode: the episode has no turns)" in refused(
        write_run(tmp_path / "none", [make_trajectory(step=0)]), tmp_path / "out", "sft"
    )
