"""Data files are hashed before their first use, and runs without checksums can still be read."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from echoscope.store.errors import StoreError
from echoscope.store.log import integrity
from echoscope.store.log.durable import read_json_object, sha256_of
from echoscope.store.log.index import RunIndex
from echoscope.store.log.integrity import FileChecks
from echoscope.store.log.packing import pack
from echoscope.store.log.verify import verify
from echoscope.store.query.sealing import seal
from echoscope.store.reader import open_run
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]
OLD_RUN = Path(__file__).with_name("data") / "run_1_0.tar.xz"
"""Written at the last commit without checksums: a pack, a piece, a rewind, unfinished work."""


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def readable_flip(path: Path, read: Callable[[], object]) -> int:
    """An offset at which a flipped bit lets DuckDB read other values without a word."""
    good = path.read_bytes()
    before = read()
    for offset in range(len(good)):
        flip(path, offset)
        try:
            is_other = read() != before
        except duckdb.Error:  # the decoder notices the damage by itself
            is_other = False
        if is_other:
            return offset
        path.write_bytes(good)
    raise AssertionError("every flipped bit is an error")


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("how", ["sql", "lookup"])
def test_a_parquet_file_that_decodes_to_other_values_is_left_out(
    finished_run: Path, how: str, *, is_packed: bool
) -> None:
    if is_packed:
        pack(finished_run)
    folder = finished_run / ("pack" if is_packed else "seg") / "trajectories"
    path = min(folder.iterdir())
    connection = duckdb.connect()

    def read() -> object:
        return connection.sql(f"FROM read_parquet('{path}')").fetchall()

    offset = readable_flip(path, read)
    assert path.read_bytes()[offset] is not None
    reader = open_run(finished_run)
    if how == "sql":
        steps = reader.sql("SELECT DISTINCT step FROM trajectories ORDER BY 1").to_pylist()
        assert [row["step"] for row in steps] == [1, 2]
    else:
        assert reader.listing(0).num_rows == 0
    lost = ": trajectories of step 0 (4 of 12 rows)" if is_packed else ""
    assert reader.warnings == [f"{path}: its content changed after it was written; left out{lost}"]


def test_a_file_is_hashed_once(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = RunIndex(finished_run)
    entry = index.files("tokens")[0].entry
    path = finished_run / entry.path
    hashed: list[Path] = []
    hash_of = sha256_of

    def count(file: Path) -> str:
        hashed.append(file)
        return hash_of(file)

    monkeypatch.setattr(integrity, "sha256_of", count)
    old = path.stat().st_mtime_ns - 10_000_000_000
    os.utime(path, ns=(old, old))
    checks = FileChecks()
    assert [checks.damage(finished_run, entry) for _ in range(3)] == [""] * 3
    assert hashed == [path]
    flip(path, 100)
    assert checks.damage(finished_run, entry) == "its content changed after it was written"


def test_a_query_hashes_the_tables_that_it_reads(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    hash_of = sha256_of

    def count(file: Path) -> str:
        hashed.append(file.parent.name)
        return hash_of(file)

    monkeypatch.setattr(integrity, "sha256_of", count)
    reader = open_run(finished_run)
    reader.sql('SELECT count(*) FROM "Trajectories" t JOIN steps USING (step)')
    assert set(hashed) <= {"trajectories"}


def test_a_run_without_checksums_opens_and_says_so_once(tmp_path: Path) -> None:
    with tarfile.open(OLD_RUN) as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "run_1_0"
    reader = open_run(path)
    assert reader.steps().column("step").to_pylist() == [0, 1, 2, 3]
    assert reader.sql("SELECT count(*) n FROM tokens").to_pylist() == [{"n": 18}]
    assert reader.trajectory("t00000003-00001").num_turns == 2
    assert (reader.info().attempt, reader.info().status) == (2, "finished")
    said = f"{path}: its journal and manifest carry no checksums; an older version wrote the run"
    assert reader.warnings == [said]
    reader.sql("FROM steps")
    assert reader.warnings == [said]
    assert verify(path).problems == ()


def test_a_run_without_checksums_goes_on_with_them(tmp_path: Path, steps: Build) -> None:
    with tarfile.open(OLD_RUN) as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "run_1_0"
    with RunWriter.resume(path, from_step=3, rotate_every=2, is_packing=False) as writer:
        steps(writer, range(4, 9))
    pack(path)
    reader = open_run(path)
    assert reader.steps().column("step").to_pylist() == list(range(9))
    assert reader.warnings == []
    assert verify(path).problems == ()
    seal(path)


def test_a_description_that_names_a_key_twice_was_changed(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text('{"step": 1, "step": 1}', encoding="utf-8")
    with pytest.raises(StoreError, match="it names a key twice"):
        read_json_object(tmp_path / "MANIFEST.json")
