"""Starting a run in a new folder: one of many wins, and nobody removes what another one made."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.errors import RunExistsError
from echoscope.store.log.durable import FileLock
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run, open_runs
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
    started = [results.get(timeout=60) for _ in range(2 * ROUNDS)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    for number in range(ROUNDS):
        outcomes = {name: outcome for n, name, outcome in started if n == number}
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


@pytest.mark.parametrize("name", ["seg/turns/mine.parquet", "run.json.bak", "journal/notes", "x/y"])
def test_a_folder_with_anything_else_is_nobody_s_to_start_in(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunExistsError):
        RunWriter.create(tmp_path, run_id="r", config={})
    assert (tmp_path / name).read_text() == "mine"


def test_files_of_people_in_the_folders_of_the_store_stay(finished_run: Path) -> None:
    from echoscope.store.log.packing import pack

    mine = [finished_run / name for name in ("seg/turns/mine.parquet", "pack/mine.parquet")]
    for path in mine:
        path.write_text("mine")
    RunWriter.resume(finished_run, from_step=2, is_packing=False).close(status="finished")
    pack(finished_run)
    assert [path.read_text() for path in mine] == ["mine", "mine"]


@pytest.mark.parametrize("name", ["seg", "journal.ndjson", "run.json", "run"])
def test_a_killed_start_leaves_no_run_and_the_next_one_removes_what_it_made(
    tmp_path: Path, name: str, steps: Build
) -> None:
    """Killed just before a file or folder of that name is made, or the folder of the run named."""
    path = tmp_path / "run"
    process = multiprocessing.get_context("spawn").Process(target=die_before, args=(path, name))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1
    assert open_runs(tmp_path).infos() == []
    with RunWriter.create(path, run_id="run-1", config={}, is_packing=False) as writer:
        steps(writer, [0])
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    assert open_run(path).steps().num_rows == 1
    assert verify(path).problems == ()


def die_before(path: Path, name: str) -> None:
    """Start a run, and be killed."""
    mkdir, replace, rename = os.mkdir, os.replace, os.rename

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*given: Any, **options: Any) -> Any:
            if os.path.basename(os.fspath(given[1 if call is not mkdir else 0])) == name:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **options)

        return checked

    os.mkdir, os.replace, os.rename = dying(mkdir), dying(replace), dying(rename)
    RunWriter.create(path, run_id="killed", config={})


def test_the_next_writer_removes_what_a_killed_one_left(finished_run: Path) -> None:
    mine = finished_run / "journal.mine.tmp"
    left = [finished_run / f"{name}.0123abcd.tmp" for name in ("journal", "run.json")]
    for path in (mine, *left):
        path.write_text("x")
    RunWriter.resume(finished_run, from_step=2, is_packing=False).close(status="finished")
    assert [path.exists() for path in (mine, *left)] == [True, False, False]
