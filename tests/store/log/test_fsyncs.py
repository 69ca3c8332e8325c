"""What is on the disk before what: the calls of the system, in their order.

A killed process loses nothing that it wrote, fsynced or not; only a power cut does. So no kill can
show whether a step is fsynced before it is acknowledged: these tests look at the calls themselves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.log.packing import pack
from echoscope.store.reader import open_run
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]
Call = tuple[str, str]
"""What was done, and to which file or folder, relative to the folder of runs."""


class Calls:
    """Every write, fsync, rename and removal below a folder, while it is recorded."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root, self._lock = root, threading.Lock()
        self.made: list[Call] = []
        by_descriptor = {"write": os.write, "pwrite": os.pwrite, "fsync": os.fsync}
        for name, call in by_descriptor.items():
            patch.setattr(os, name, self._of_descriptor(name, call))
        for name, call in {"replace": os.replace, "rename": os.rename}.items():
            patch.setattr(os, name, self._of_names(call))
        patch.setattr(os, "unlink", self._of_name("unlink", os.unlink))

    def _of_descriptor(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(descriptor: int, *rest: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self._add(name, path)
            return call(descriptor, *rest)

        return recorded

    def _of_names(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(source: Any, target: Any, **more: Any) -> Any:
            self._add("rename", os.fspath(target))
            return call(source, target, **more)

        return recorded

    def _of_name(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(path: Any, **more: Any) -> Any:
            self._add(name, os.fspath(path))
            return call(path, **more)

        return recorded

    def _add(self, name: str, path: str) -> None:
        if Path(path).is_relative_to(self._root):
            with self._lock:
                self.made.append((name, str(Path(path).relative_to(self._root))))

    def take(self) -> list[Call]:
        made, self.made = self.made, []
        return made


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(tmp_path, monkeypatch)


def position(made: list[Call], call: Call) -> int:
    """Where a call stands that was made once."""
    assert made.count(call) == 1, (call, made)
    return made.index(call)


def last(made: list[Call], call: Call) -> int:
    return len(made) - 1 - made[::-1].index(call)


def temporary(made: list[Call], beginning: str) -> str:
    """The name under which a file was written before it was renamed."""
    (name,) = {path for _, path in made if path.startswith(beginning) and path.endswith(".tmp")}
    return name


def renamed(made: list[Call], file: str) -> list[Call]:
    """The calls that replace a file so that it is there whole, whenever the power goes."""
    source = temporary(made, f"{file.removesuffix('ndjson')}")
    folder = str(Path(file).parent)
    return [("write", source), ("fsync", source), ("rename", file), ("fsync", folder)]


def assert_in_order(made: list[Call], expected: list[Call]) -> None:
    rest = iter(made)
    assert all(call in rest for call in expected), (expected, made)


def test_a_step_s_files_their_folders_and_then_its_record_are_fsynced(
    tmp_path: Path, calls: Calls, steps: Build
) -> None:
    with RunWriter.create(tmp_path / "run", run_id="run-1", config={}, is_packing=False) as writer:
        steps(writer, [0])
        writer.flush()
        calls.take()
        steps(writer, [1])
        writer.flush()
        made = calls.take()
    record = position(made, ("write", "run/journal.ndjson"))
    tables = {Path(path).parent for name, path in made if path.endswith(".parquet")}
    assert tables == {Path("run/seg") / name for name in ("tokens", "trajectories", "turns")}
    for folder in tables:
        (file,) = {path for _, path in made if Path(path).parent == folder}
        written = last(made, ("write", file))
        assert (
            written
            < position(made, ("fsync", file))
            < position(made, ("fsync", str(folder)))
            < record
        )
    # The tail is only a hint: it names the record once that is safe.
    assert made[record:] == [
        ("write", "run/journal.ndjson"),
        ("fsync", "run/journal.ndjson"),
        ("pwrite", "run/journal.tail"),
    ]


def test_every_record_is_fsynced_before_its_call_returns(
    tmp_path: Path, calls: Calls, trajectory: Build
) -> None:
    writer = RunWriter.create(tmp_path / "run", run_id="run-1", config={}, is_packing=False)
    writer.add_trajectories([trajectory(0, 0)])
    writer.flush()
    writer.close(status="finished")
    made = [call for call in calls.take() if call[1] == "run/journal.ndjson"]
    assert made == [("write", "run/journal.ndjson"), ("fsync", "run/journal.ndjson")] * 2


def test_a_new_run_is_there_with_its_name_once_it_is_whole(tmp_path: Path, calls: Calls) -> None:
    writer = RunWriter.create(tmp_path / "run", run_id="run-1", config={}, is_packing=False)
    made = calls.take()
    writer.close(status="finished")
    (folder,) = {path.partition("/")[0] for _, path in made if path.startswith(".run.")}
    expected = [*renamed(made, f"{folder}/journal.ndjson"), *renamed(made, f"{folder}/run.json")]
    assert_in_order(made, [*expected, ("rename", "run"), ("fsync", ".")])


def test_a_complete_piece_is_safe_under_its_new_name_before_the_next_one_begins(
    tmp_path: Path, calls: Calls, steps: Build
) -> None:
    options: dict[str, Any] = {"rotate_every": 1, "is_packing": False}
    with RunWriter.create(tmp_path / "run", run_id="run-1", config={}, **options) as writer:
        calls.take()
        steps(writer, [0])
        writer.flush()
        made = calls.take()
    piece = ("rename", "run/journal/000001.ndjson")
    expected = [("fsync", "run/journal.ndjson"), piece, ("fsync", "run/journal")]
    assert_in_order(made, [*expected, *renamed(made, "run/journal.ndjson")])


def test_a_pack_is_safe_before_anything_is_removed(
    tmp_path: Path, calls: Calls, steps: Build
) -> None:
    with RunWriter.create(tmp_path / "run", run_id="run-1", config={}, is_packing=False) as writer:
        steps(writer, range(2))
    calls.take()
    pack(tmp_path / "run")
    made = calls.take()
    named = made.index(("rename", "run/pack/000001"))
    removed = min(
        index for index, (name, path) in enumerate(made) if name == "unlink" and "seg" in path
    )
    folder = "run/pack/000001.tmp"
    files = {path for name, path in made if path.startswith(f"{folder}/") and name == "write"}
    assert len(files) == 6  # trajectories, turns, tokens; steps and metrics; pack.json
    synced = position(made, ("fsync", folder))
    for file in files:
        assert last(made, ("write", file)) < position(made, ("fsync", file)) < synced < named
    assert made[named + 1] == ("fsync", "run/pack")
    assert named < removed
    assert open_run(tmp_path / "run").steps().num_rows == 2
