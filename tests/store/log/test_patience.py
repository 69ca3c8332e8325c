"""Readers that live long: what cannot be read for a moment comes back, and memory is bounded."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

import pytest
from made_run import add_steps, make_run, open_writer

from echoscope.store.errors import StoreError
from echoscope.store.log import durable
from echoscope.store.log.layout import Layout
from echoscope.store.log.packing import pack
from echoscope.store.query import database
from echoscope.store.reader import RunReader, open_run, open_runs

COUNT = "SELECT count(*) AS n FROM trajectories"


def count(reader: RunReader) -> int:
    return int(reader.sql(COUNT).column("n")[0].as_py())


@contextlib.contextmanager
def no_free_descriptors() -> Iterator[None]:
    """The process may open no more files (EMFILE)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reader_without_descriptors_for_a_moment_drops_nothing(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "run")
    add_steps(writer, "run", range(3))
    reader = open_run(tmp_path / "run")
    assert count(reader) == 12
    add_steps(writer, "run", range(3, 6))
    with no_free_descriptors(), pytest.raises(StoreError, match="Too many open files"):
        count(reader)
    assert count(reader) == 24
    assert reader.sql("SELECT count(*) AS n FROM steps").column("n")[0].as_py() == 6
    assert reader.warnings == []
    writer.close(status="finished")


def test_a_data_file_that_fails_once_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk's EIO cannot be had for the asking: the one call that hashes a file gives it."""
    make_run(tmp_path / "run", 3)
    reader = open_run(tmp_path / "run")
    broken = min(Layout(tmp_path / "run").root.glob("seg/trajectories/*.parquet"))
    whole = durable.open_regular

    def failing(path: Path) -> BufferedReader:
        if path == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(path)

    monkeypatch.setattr(durable, "open_regular", failing)
    assert count(reader) == 8
    assert reader.warnings == [f"{broken}: it cannot be read (Input/output error); left out"]
    monkeypatch.setattr(durable, "open_regular", whole)
    assert count(reader) == 12
    assert reader.warnings == []


def test_one_run_that_fails_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, 1)
    text = Layout(tmp_path / "b").run_json.read_bytes()
    journal = Layout(tmp_path / "b").journal.read_bytes()
    Layout(tmp_path / "b").run_json.write_bytes(b"{")
    Layout(tmp_path / "b").journal.write_bytes(b"")
    reader = open_runs(tmp_path)
    assert [info.run_id for info in reader.infos()] == ["a"]
    assert len(reader.unreadable) == 1
    Layout(tmp_path / "b").run_json.write_bytes(text)
    Layout(tmp_path / "b").journal.write_bytes(journal)
    assert sorted(info.run_id for info in reader.infos()) == ["a", "b"]
    assert reader.unreadable == {}


@pytest.mark.long
def test_footers_of_files_that_are_gone_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six steps make at least a dozen files, and packing replaces them, eight times over."""
    monkeypatch.setattr(database, "_MAX_FORGOTTEN", 20)
    path = tmp_path / "run"
    writer = open_writer(path, rotate_every=3)
    add_steps(writer, "run", range(1))
    reader = open_run(path)
    inner = reader._database
    opened = {id(inner.connection): inner.connection}
    for begin in range(1, 49, 6):
        add_steps(writer, "run", range(begin, begin + 6))
        assert count(reader) == 4 * (begin + 6)
        pack(path, grace_s=0.0)
        assert count(reader) == 4 * (begin + 6)
        opened[id(inner.connection)] = inner.connection
        num_named = sum(len(inner.indexes["run"].files(name)) for name in ("trajectories", "turns"))
        assert len(inner._read_files) <= num_named + 20 + 14
    assert len(opened) > 2
    steps = reader.sql("SELECT step, entropy FROM steps ORDER BY step").to_pylist()
    assert [row["step"] for row in steps] == list(range(49))
    assert steps[48]["entropy"] == pytest.approx(1 / 49)
    writer.close(status="finished")
    assert open_run(path).sql("SELECT * FROM steps").num_rows == 49
