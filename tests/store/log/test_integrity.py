"""Data files are hashed before their first use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from whole_files import flip_a_bit

from echoscope.store.errors import StoreError
from echoscope.store.log import parquet
from echoscope.store.log.durable import read_json_object
from echoscope.store.log.index import RunIndex
from echoscope.store.log.layout import FileEntry
from echoscope.store.log.packing import pack
from echoscope.store.log.parquet import FileChecks
from echoscope.store.reader import open_run


def readable_flip(path: Path, read: Callable[[], object]) -> int:
    """An offset at which a flipped bit lets DuckDB read other values without a word."""
    good = path.read_bytes()
    before = read()
    for offset in range(len(good)):
        flip_a_bit(path, offset)
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
    pattern = "pack/*/trajectories-*" if is_packed else "seg/trajectories/*"
    path = min(finished_run.glob(pattern))
    connection = duckdb.connect()

    def read() -> object:
        return connection.sql(f"FROM read_parquet('{path}')").fetchall()

    offset = readable_flip(path, read)
    assert path.read_bytes()[offset] is not None
    reader = open_run(finished_run)
    if how == "sql":
        steps = reader.sql("SELECT DISTINCT step FROM trajectories ORDER BY 1").to_pylist()
        assert [row["step"] for row in steps] == ([] if is_packed else [1, 2])
    else:
        assert reader.listing(0).num_rows == 0
    assert reader.warnings == [f"{path}: its content changed after it was written; left out"]


def test_a_file_is_hashed_once(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = RunIndex(finished_run)
    entry = index.files("tokens")[0].entry
    path = finished_run / entry.path
    hashed: list[Path] = []
    damage = parquet.damage_of

    def count(root: Path, entry: FileEntry) -> str:
        hashed.append(root / entry.path)
        return damage(root, entry)

    monkeypatch.setattr(parquet, "damage_of", count)
    old = path.stat().st_mtime_ns - 10_000_000_000
    os.utime(path, ns=(old, old))
    checks = FileChecks()
    assert [checks.damage(finished_run, entry) for _ in range(3)] == [""] * 3
    assert hashed == [path]
    flip_a_bit(path, 100)
    assert checks.damage(finished_run, entry) == "its content changed after it was written"


def test_a_query_hashes_the_tables_that_it_reads(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    damage = parquet.damage_of

    def count(root: Path, entry: FileEntry) -> str:
        hashed.append((root / entry.path).parent.name)
        return damage(root, entry)

    monkeypatch.setattr(parquet, "damage_of", count)
    reader = open_run(finished_run)
    reader.sql('SELECT count(*) FROM "Trajectories" t JOIN steps USING (step)')
    assert set(hashed) <= {"trajectories"}


def test_a_description_that_names_a_key_twice_was_changed(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text('{"step": 1, "step": 1}', encoding="utf-8")
    with pytest.raises(StoreError, match="stands twice in one object"):
        read_json_object(tmp_path / "MANIFEST.json")
