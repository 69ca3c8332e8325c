"""pack, seal and verify."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from echoscope.store.errors import RunBusyError, StoreError
from echoscope.store.log import packing
from echoscope.store.log.durable import FileLock
from echoscope.store.log.layout import Layout
from echoscope.store.log.packing import pack
from echoscope.store.log.packs.manifest import read_manifest
from echoscope.store.log.verify import verify
from echoscope.store.query.sealing import seal
from echoscope.store.reader import open_run
from echoscope.store.schema import TABLES
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]


def content(path: Path) -> dict[str, list[str]]:
    """Every visible row of every table, in an order of its own."""
    reader = open_run(path)
    return {
        name: sorted(json.dumps(row, default=str) for row in reader.sql(f"FROM {name}").to_pylist())
        for name in TABLES
    }


def test_packing_changes_nothing_that_a_reader_sees(finished_run: Path) -> None:
    before = content(finished_run)
    old = open_run(finished_run)
    report = pack(finished_run)
    # Nine segment files and one piece of the journal; three data tables and two event tables.
    assert (report.num_steps, report.num_packs) == (3, 1)
    assert (report.num_files_before, report.num_files_after) == (10, 5)
    assert content(finished_run) == before
    assert old.trajectory("t00000002-00003").num_turns == 2
    assert list((finished_run / "seg").rglob("*.parquet")) == []
    assert Layout(finished_run).piece_numbers() == []
    assert pack(finished_run).num_steps == 0
    assert content(finished_run) == before


def test_one_row_group_per_step(finished_run: Path) -> None:
    import pyarrow.parquet as pq

    pack(finished_run)
    (path,) = (finished_run / "pack" / "tokens").iterdir()
    assert path.name.startswith("00000000-00000002-")
    assert pq.read_metadata(path).num_row_groups == 3


def test_packing_beside_a_writer_takes_complete_pieces(run_path: Path, steps: Build) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(5))
        assert pack(run_path, grace_s=0).num_steps == 4
        steps(writer, [5, 6])
        assert open_run(run_path).steps().num_rows == 7
    pack(run_path)
    assert [(p.first_step, p.last_step) for p in read_manifest(Layout(run_path)).packs] == [
        (0, 3),
        (4, 6),
    ]
    assert open_run(run_path).info().status == "finished"
    assert verify(run_path).problems == ()


def test_a_writer_packs_by_itself(run_path: Path, steps: Build, wait_until: Build) -> None:
    with RunWriter.create(run_path, run_id="run-1", config={}, rotate_every=2) as writer:
        steps(writer, range(2))
        wait_until(lambda: len(read_manifest(Layout(run_path)).packs) == 1)
        assert open_run(run_path).steps().num_rows == 2
        assert writer._packer is not None
        writer._packer.terminate()  # it would wait half a minute for readers
        writer._packer.wait()


def test_files_wait_for_readers_that_have_them_open(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, int]] = []

    def sleep(seconds: float) -> None:
        seen.append((seconds, len(list((finished_run / "seg").rglob("*.parquet")))))

    monkeypatch.setattr(packing.time, "sleep", sleep)
    pack(finished_run, grace_s=12.0)
    assert seen == [(12.0, 9)]
    assert list((finished_run / "seg").rglob("*.parquet")) == []


def test_a_killed_pack_leaves_nothing_that_matters(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(finished_run)

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    for name in ("write_manifest", "_remove_dropped"):  # before and after its commit
        with monkeypatch.context() as patch:
            patch.setattr(packing, name, die)
            with pytest.raises(KeyboardInterrupt):
                pack(finished_run)
        assert content(finished_run) == before
    pack(finished_run)
    assert content(finished_run) == before
    assert len(list((finished_run / "pack" / "tokens").iterdir())) == 1
    assert list((finished_run / "seg").rglob("*.parquet")) == []


def test_two_packers_do_not_meet(finished_run: Path) -> None:
    lock = FileLock(Layout(finished_run).pack_lock)
    lock.acquire()
    with pytest.raises(RunBusyError, match="another process is packing"):
        pack(finished_run)
    lock.release()


def test_a_damaged_segment_stays_as_it_is(finished_run: Path) -> None:
    path = next((finished_run / "seg" / "tokens").glob("00000001-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    gone = next((finished_run / "seg" / "turns").glob("00000002-*"))
    gone.unlink()
    report = pack(finished_run)
    assert [text.split(":")[0] for text in report.damaged] == [str(path), str(gone)]
    assert path.exists()
    reader = open_run(finished_run)
    # What is whole of those steps can still be read.
    assert reader.listing(1).num_rows == 4
    assert reader.sql("SELECT DISTINCT step FROM turns ORDER BY 1").to_pylist() == [
        {"step": 0},
        {"step": 1},
    ]


def test_a_damaged_piece_stays_and_its_neighbours_are_packed(run_path: Path, steps: Build) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(7))
    piece = Layout(run_path).piece(2)
    piece.write_bytes(piece.read_bytes().replace(b'"kind":"step"', b'"kind":"stop"', 1))
    report = pack(run_path)
    assert report.num_steps == 5
    assert [text.split(" at byte")[0] for text in report.damaged] == [f"{piece}: the record"]
    assert read_manifest(Layout(run_path)).kept == (2,)
    assert Layout(run_path).piece_numbers() == [2]
    reader = open_run(run_path)
    assert reader.steps().column("step").to_pylist() == [0, 1, 3, 4, 5, 6]
    assert reader.sql("SELECT DISTINCT step FROM turns ORDER BY 1").num_rows == 6
    assert len(list((run_path / "seg" / "turns").iterdir())) == 2  # of the lost step, too


@pytest.mark.parametrize("is_packed", [False, True])
def test_seal_makes_an_ordinary_database(finished_run: Path, *, is_packed: bool) -> None:
    if is_packed:
        pack(finished_run)
    reader = open_run(finished_run)
    for _ in range(2):  # again, over the first one
        path = seal(finished_run)
    assert path == finished_run / "run.duckdb"
    with duckdb.connect(str(path), read_only=True) as connection:
        for name in TABLES:
            sealed = connection.sql(f"FROM {name}").to_arrow_table()
            assert sealed.sort_by("run_id").num_rows == reader.sql(f"FROM {name}").num_rows
            assert tuple(sealed.column_names) == TABLES[name].column_names
        version = connection.sql("SELECT tags FROM duckdb_databases() WHERE NOT internal")
        assert "v1.5" in str(version.fetchall())
    assert not list(finished_run.glob("*.tmp*"))


def test_a_damaged_run_does_not_replace_an_older_seal(finished_run: Path) -> None:
    before = seal(finished_run).read_bytes()
    path = next((finished_run / "seg" / "turns").glob("00000001-*"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"`echoscope runs repair .*` writes a copy to seal"):
        seal(finished_run)
    assert (finished_run / "run.duckdb").read_bytes() == before


def test_what_a_pack_replaced_stays_while_the_pack_is_damaged(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage_a_pack(seconds: float) -> None:
        (path,) = (finished_run / "pack" / "turns").iterdir()
        path.write_bytes(path.read_bytes()[:-1] + b"x")

    segments = sorted((finished_run / "seg").rglob("*.parquet"))
    monkeypatch.setattr(packing.time, "sleep", damage_a_pack)
    (why,) = pack(finished_run, grace_s=1.0).damaged
    assert why.endswith("its content changed after it was written; what it replaced stays")
    assert sorted((finished_run / "seg").rglob("*.parquet")) == segments
    assert Layout(finished_run).piece_numbers() == [1]


def test_no_pack_is_taken_for_left_over_when_the_manifest_is_gone(
    run_path: Path, steps: Build
) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(2))
        pack(run_path, grace_s=0)
        steps(writer, range(2, 4))
    packed = sorted((run_path / "pack").rglob("*.parquet"))
    for name in ("MANIFEST.json", "MANIFEST.copy.json"):
        (run_path / name).unlink()
    with pytest.raises(StoreError, match="it is missing, and pieces of the journal were packed"):
        pack(run_path)
    assert sorted((run_path / "pack").rglob("*.parquet")) == packed


def test_a_running_run_is_not_sealed(writer: RunWriter, run_path: Path) -> None:
    with pytest.raises(RunBusyError, match="seal it when it has ended"):
        seal(run_path)


@pytest.mark.parametrize("is_packed", [False, True])
def test_verify_finds_nothing_wrong_with_a_good_run(finished_run: Path, *, is_packed: bool) -> None:
    if is_packed:
        pack(finished_run)
    report = verify(finished_run)
    assert (report.num_files, report.num_trajectories) == (5 if is_packed else 9, 12)
    assert report.problems == ()


def test_verify_names_each_bad_file_and_what_is_lost(finished_run: Path) -> None:
    tokens = next((finished_run / "seg" / "tokens").glob("00000001-*"))
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"x")
    turns = next((finished_run / "seg" / "turns").glob("00000002-*"))
    turns.unlink()
    journal = finished_run / "journal.ndjson"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"noise\n", *lines[1:]]))
    found = [(p.path, p.what, p.lost) for p in verify(finished_run).problems]
    assert found == [
        (journal, f"the record at byte {len(lines[0])} is damaged and left out", "one record"),
        (
            tokens,
            "its content changed after it was written",
            "tokens of step 1, attempt 1 (8 rows)",
        ),
        (turns, "it is missing", "turns of step 2, attempt 1 (8 rows)"),
    ]


def test_verify_finds_contradictions_between_whole_files(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are what the journal promises, and yet do not belong together."""
    import pyarrow.parquet as pq

    from echoscope.store.log import verify as module

    monkeypatch.setattr(module, "damage_of", lambda root, entry: "")
    pack(finished_run)
    for table in ("turns", "tokens"):
        (path,) = (finished_run / "pack" / table).iterdir()
        pq.write_table(pq.read_table(path).slice(1), path)
    (path,) = (finished_run / "pack" / "trajectories").iterdir()
    rows = pq.read_table(path)
    pq.write_table(rows.set_column(4, "id", [["t00000007-00000"] * 12]), path)
    assert [problem.what for problem in verify(finished_run).problems] == [
        "a trajectory id occurs twice",
        "a trajectory id names a step outside 0 to 2",
        "its turns are not those that the trajectories count",
        "its tokens are not those that the trajectories count",
    ]


def test_a_manifest_that_is_none_costs_the_packs_only(run_path: Path, steps: Build) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(2))
        pack(run_path, grace_s=0)
        steps(writer, range(2, 4))
    whole = content(run_path)
    (run_path / "MANIFEST.json").write_text('{"schema": "1.0"}')
    reader = open_run(run_path)
    assert "MANIFEST.json: not a manifest" in reader.warnings[0]
    assert content(run_path) == whole  # its copy is used
    (run_path / "MANIFEST.copy.json").unlink()
    assert open_run(run_path).steps().column("step").to_pylist() == [2, 3]
    with pytest.raises(StoreError, match=r"`echoscope runs repair .*` writes a whole copy"):
        pack(run_path)
