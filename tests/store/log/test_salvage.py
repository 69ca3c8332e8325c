"""One damage costs one row group: the rest of a packed file is proven and shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from echoscope.store.log.layout import FileEntry, Layout
from echoscope.store.log.packing import pack
from echoscope.store.log.packs.footers import footer_without
from echoscope.store.log.packs.manifest import read_manifest, write_manifest
from echoscope.store.log.packs.pack_file import row_group_spans
from echoscope.store.log.packs.salvage import salvage
from echoscope.store.log.repair import repair
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]
NUM_STEPS = 20


@pytest.fixture
def packed(run_path: Path, steps: Build) -> Path:
    """Steps 0 to 19 of four trajectories with two turns each, all in one pack."""
    with RunWriter.create(run_path, run_id="run-1", config={}, is_packing=False) as writer:
        steps(writer, range(NUM_STEPS))
    pack(run_path)
    return run_path


def entry_of(path: Path, table: str) -> FileEntry:
    (found,) = read_manifest(Layout(path)).packs
    return next(entry for entry in found.files if entry.table == table)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def flip_in_group(path: Path, table: str, number: int) -> Path:
    """Flip a bit in the middle of one row group of a packed table."""
    file = path / entry_of(path, table).path
    start, end = list(row_group_spans(pq.read_metadata(file)))[number]
    flip(file, (start + end) // 2)
    return file


def steps_in(path: Path, table: str) -> list[int]:
    rows = open_run(path).sql(f"SELECT DISTINCT step FROM {table} ORDER BY step")
    return [int(step) for step in rows.column("step").to_pylist()]


def others(*lost: int) -> list[int]:
    return [step for step in range(NUM_STEPS) if step not in lost]


@pytest.mark.parametrize("table", ["trajectories", "turns", "tokens"])
def test_a_flipped_bit_costs_a_reader_one_step_of_one_table(packed: Path, table: str) -> None:
    before = open_run(packed).sql(f"FROM {table} WHERE step <> 7 ORDER BY ALL")
    file = flip_in_group(packed, table, 7)
    reader = open_run(packed)
    assert reader.sql(f"FROM {table} ORDER BY ALL").equals(before)
    rows = "4 of 80" if table == "trajectories" else "8 of 160"
    lost = f"{table} of step 7 ({rows} rows)"
    why = "its content changed after it was written"
    assert reader.warnings == [f"{file}: {why}; left out: {lost}"]
    (missing,) = reader.missing_files()
    assert (missing.table, missing.first_step, missing.last_step) == (table, 7, 7)
    assert missing.num_rows == int(rows.split()[0])


def test_a_step_is_looked_up_beside_a_damaged_one(packed: Path) -> None:
    flip_in_group(packed, "turns", 7)
    reader = open_run(packed)
    assert reader.trajectory("t00000008-00001").num_turns == 2
    assert reader.listing(7).num_rows == 4
    assert reader.sql("SELECT count(*) n FROM turns WHERE step = 7").to_pylist() == [{"n": 0}]


def test_damage_that_comes_while_a_reader_is_open_is_left_out_too(packed: Path) -> None:
    reader = open_run(packed)
    assert reader.sql("SELECT count(*) n FROM turns").to_pylist() == [{"n": 160}]
    file = flip_in_group(packed, "turns", 7)
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data)  # another inode: it is hashed again
    assert reader.sql("SELECT count(*) n FROM turns").to_pylist() == [{"n": 152}]
    flip_in_group(packed, "turns", 3)
    assert steps_in(packed, "turns") == others(3, 7)


@pytest.mark.parametrize("copy", [1, 2])
def test_a_damaged_footer_costs_nothing_as_it_is_there_twice(packed: Path, copy: int) -> None:
    entry = entry_of(packed, "turns")
    assert entry.footer is not None
    size = entry.footer.num_bytes
    flip(packed / entry.path, entry.num_bytes - copy * size + size // 2)
    report = repair(packed)
    assert report.lost == ()
    assert report.rebuilt == (f"{entry.path}, from its row groups, which are whole",)
    assert open_run(report.path).sql("SELECT count(*) n FROM turns").to_pylist() == [{"n": 160}]
    assert open_run(packed).sql("SELECT count(*) n FROM turns").to_pylist() == [{"n": 160}]
    if copy == 1:
        assert open_run(packed).trajectory("t00000007-00001").num_turns == 2


def test_both_footers_damaged_cost_the_file(packed: Path) -> None:
    entry = entry_of(packed, "turns")
    assert entry.footer is not None
    for copy in (1, 2):
        flip(packed / entry.path, entry.num_bytes - copy * entry.footer.num_bytes + 5)
    assert salvage(packed, entry) is None
    assert steps_in(packed, "turns") == []
    assert steps_in(packed, "tokens") == others()


def test_metrics_lose_one_row_group_and_its_key_is_named(packed: Path) -> None:
    flip_in_group(packed, "metrics", 0)
    reader = open_run(packed)
    lost = entry_of(packed, "metrics").num_rows - reader.sql("FROM metrics").num_rows
    assert lost == 16
    lost_words = "left out: metrics of steps 0 to 15, policy/entropy (16 of 40 rows)"
    assert reader.warnings[0].endswith(lost_words)


def test_verify_says_exactly_what_is_lost(packed: Path) -> None:
    flip_in_group(packed, "turns", 7)
    flip_in_group(packed, "turns", 9)
    (problem,) = verify(packed).problems
    assert problem.lost == "turns of steps 7, 9, attempt 1 (16 of 160 rows)"


def test_repair_keeps_what_is_proven_and_says_what_is_lost(packed: Path) -> None:
    flip_in_group(packed, "turns", 7)
    report = repair(packed)
    why = "its content changed after it was written"
    path = entry_of(packed, "turns").path
    assert report.lost == (f"turns of step 7, attempt 1 (8 of 160 rows): {path}: {why}",)
    assert steps_in(report.path, "turns") == others(7)
    assert steps_in(report.path, "trajectories") == steps_in(report.path, "tokens") == others()
    assert verify(report.path).problems == ()
    assert open_run(report.path).warnings == []


def test_a_repaired_run_is_repaired_again(packed: Path) -> None:
    flip_in_group(packed, "turns", 7)
    first = repair(packed).path
    flip_in_group(first, "turns", 9)  # step 10: the row group of step 7 is not there any more
    second = repair(first).path
    assert steps_in(second, "turns") == others(7, 10)
    assert verify(second).problems == ()


def without_proofs(path: Path) -> None:
    """What a pack was before footers were proven: the manifest says nothing of them."""
    layout = Layout(path)
    manifest = read_manifest(layout)
    packs = tuple(
        replace(made, files=tuple(replace(entry, footer=None) for entry in made.files))
        for made in manifest.packs
    )
    write_manifest(layout, replace(manifest, packs=packs))


def test_of_an_older_pack_a_repair_keeps_what_the_checksums_of_its_pages_prove(
    packed: Path,
) -> None:
    without_proofs(packed)
    assert verify(packed).problems == ()
    flip_in_group(packed, "turns", 7)
    assert steps_in(packed, "turns") == []  # DuckDB does not look at these checksums
    report = repair(packed)
    assert steps_in(report.path, "turns") == others(7)
    assert verify(report.path).problems == ()


def test_of_an_older_pack_with_a_damaged_footer_nothing_is_proven(packed: Path) -> None:
    without_proofs(packed)
    entry = entry_of(packed, "turns")
    flip(packed / entry.path, entry.num_bytes - 100)
    assert steps_in(repair(packed).path, "turns") == []


def test_a_footer_names_fewer_row_groups() -> None:
    table = pa.table({"step": list(range(40)), "text": [f"{n}" * n for n in range(40)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=2)  # 20 row groups: a long list
    data = sink.getvalue().to_pybytes()
    size = int.from_bytes(data[-8:-4], "little") + 8
    body, footer = data[:-size], data[-size:]
    assert body + footer_without(footer, (), 40) == data
    for left_out in ([0], [19], [3, 4, 5], range(1, 20), range(10)):
        kept = [n for n in range(40) if n // 2 not in left_out]
        cut = body + footer_without(footer, left_out, len(kept))
        assert pq.read_table(pa.BufferReader(cut)).equals(table.take(kept))
        assert pq.read_metadata(pa.BufferReader(cut)).num_rows == len(kept)
