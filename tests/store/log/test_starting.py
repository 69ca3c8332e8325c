"""Starting a run in a new folder: one of many wins, and nobody removes what another one made."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.errors import RunExistsError
from echoscope.store.log.durable import FileLock
from echoscope.store.log.journal import Journal
from echoscope.store.log.layout import Layout
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.writer import RunWriter

ROUNDS = 10
Build = Callable[..., None]


def race(root: Path, barrier: Any, results: Any, name: str) -> None:
    """Start runs at the same time as another process, which is as far when the lock is taken."""
    acquire = FileLock.acquire

    def together(self: FileLock, *, wait_s: float = 0.0) -> None:
        barrier.wait(30)
        acquire(self, wait_s=wait_s)

    FileLock.acquire = together  # type: ignore[method-assign]
    for number in range(ROUNDS):
        writer = None
        try:
            writer = RunWriter.create(root / f"{number}", run_id=name, config={}, is_packing=False)
        except Exception as error:  # noqa: BLE001 - what it is, is what is asked
            results.put((number, name, type(error).__name__))
        else:
            results.put((number, name, "won"))
        barrier.wait(30)
        if writer is not None:
            writer.close(status="finished")


@pytest.mark.long
def test_of_two_starts_at_once_one_wins_and_its_run_is_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=race, args=(tmp_path, barrier, results, name)) for name in "ab"
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in range(2 * ROUNDS)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    for number in range(ROUNDS):
        outcomes = {name: outcome for n, name, outcome in found if n == number}
        (winner,) = [name for name, outcome in outcomes.items() if outcome == "won"]
        assert sorted(outcomes.values()) == ["RunExistsError", "won"]
        info = open_run(tmp_path / f"{number}").info()
        assert (info.run_id, info.status) == (winner, "finished")
        assert verify(tmp_path / f"{number}").problems == ()


def test_a_start_that_loses_leaves_the_files_of_a_stranger(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunExistsError, match="not an empty folder"):
        RunWriter.create(tmp_path, run_id="r", config={})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def die_at(path: Path, place: str) -> None:
    """Start a run, and be killed just before the call `place` of the start."""
    from echoscope.store.log import starting

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if place == "journal":
        Journal.create = die  # type: ignore[method-assign, assignment]
    elif place == "run.json":
        starting.replace_file = die  # type: ignore[assignment]
    else:
        os.replace = die  # type: ignore[assignment]
    RunWriter.create(path, run_id="killed", config={})


@pytest.mark.parametrize("place", ["journal", "run.json", "rename"])
def test_a_killed_start_leaves_a_folder_that_can_be_used(
    tmp_path: Path, place: str, steps: Build
) -> None:
    path = tmp_path / "run"
    process = multiprocessing.get_context("spawn").Process(target=die_at, args=(path, place))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (path / "writer.lock").exists()
    with RunWriter.create(path, run_id="run-1", config={}, is_packing=False) as writer:
        steps(writer, [0])
    assert open_run(path).steps().num_rows == 1
    assert not list(path.glob("*.tmp"))
    assert verify(path).problems == ()


@pytest.mark.parametrize("name", ["seg/turns/mine.parquet", "run.json.bak", "journal/notes", "x/y"])
def test_a_folder_with_anything_else_is_nobody_s_to_start_in(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunExistsError):
        RunWriter.create(tmp_path, run_id="r", config={})
    assert (tmp_path / name).read_text() == "mine"


def test_files_of_people_in_the_folders_of_the_store_stay(finished_run: Path) -> None:
    from echoscope.store.log.packing import pack

    mine = [finished_run / name for name in ("seg/turns/mine.parquet", "pack/turns/mine.parquet")]
    for path in mine:
        path.write_text("mine")
    RunWriter.resume(finished_run, from_step=2, is_packing=False).close(status="finished")
    pack(finished_run)
    assert [path.read_text() for path in mine] == ["mine", "mine"]


def test_the_next_seal_removes_what_a_killed_one_left(finished_run: Path) -> None:
    from echoscope.store.query.sealing import seal

    left = [finished_run / f"run.0123abcd.duckdb.tmp{end}" for end in ("", ".wal")]
    mine = finished_run / "run.backup.duckdb.tmp"
    for path in (*left, mine):
        path.write_text("x")
    seal(finished_run)
    assert not any(path.exists() for path in left)
    assert mine.exists()


KILLED = """
import os, sys
from echoscope.store.log import durable
from echoscope.store.log.packing import pack
from echoscope.store.query.sealing import seal

real = os.replace


def die(source, target):
    if os.fspath(target).endswith(sys.argv[3]):
        os.kill(os.getpid(), 9)
    real(source, target)


os.replace = die
{"pack": pack, "seal": seal}[sys.argv[2]](sys.argv[1])
"""


def kill_at(path: Path, work: str, name: str) -> list[Path]:
    """Kills a process that packs or seals just before a file gets its name; what it left."""
    killed = subprocess.run([sys.executable, "-c", KILLED, path, work, name], check=False)
    assert killed.returncode == -signal.SIGKILL
    return sorted(path.glob("*.tmp"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("work", "name"),
    [("pack", "MANIFEST.json"), ("pack", "MANIFEST.copy.json"), ("seal", "run.duckdb")],
)
@pytest.mark.parametrize("after", ["pack", "seal"])
def test_the_next_pack_or_seal_removes_what_a_killed_one_left(
    finished_run: Path, work: str, name: str, after: str
) -> None:
    from echoscope.store.log.packing import pack
    from echoscope.store.query.sealing import seal

    mine = finished_run / "MANIFEST.json.mine.tmp"
    mine.write_text("mine")
    left = [path for path in kill_at(finished_run, work, name) if path != mine]
    assert len(left) == 1
    report = verify(finished_run)
    assert report.problems == ()
    assert report.leftovers == tuple(left)
    {"pack": pack, "seal": seal}[after](finished_run)
    assert list(finished_run.glob("*.tmp")) == [mine]
    assert verify(finished_run).leftovers == ()
    assert open_run(finished_run).steps().num_rows == 3


def test_the_next_writer_removes_what_a_killed_one_left(finished_run: Path) -> None:
    left = kill_at(finished_run, "pack", "journal.ndjson")
    assert [path.name.partition(".")[0] for path in left] == ["journal"]
    assert verify(finished_run).leftovers == tuple(left)
    RunWriter.resume(finished_run, from_step=2, is_packing=False).close(status="finished")
    assert not any(path.exists() for path in left)
    assert verify(finished_run).problems == ()


def test_files_of_a_process_at_work_are_no_leftovers(finished_run: Path) -> None:
    made = finished_run / "MANIFEST.json.0123abcd.tmp"
    made.write_text("x")
    lock = FileLock(Layout(finished_run).pack_lock)
    lock.acquire()
    assert verify(finished_run).leftovers == ()
    lock.release()
    assert verify(finished_run).leftovers == (made,)
