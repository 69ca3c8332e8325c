"""pack and verify."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from echoscope.store.errors import RunBusyError
from echoscope.store.log import packing
from echoscope.store.log.durable import FileLock
from echoscope.store.log.layout import Layout
from echoscope.store.log.packing import pack
from echoscope.store.log.verify import verify
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
    assert (report.num_files_before, report.num_files_after) == (10, 6)  # pack.json, too
    assert content(finished_run) == before
    assert old.trajectory("t00000002-00003").num_turns == 2
    assert list((finished_run / "seg").rglob("*.parquet")) == []
    assert Layout(finished_run).piece_numbers() == []
    assert pack(finished_run).num_steps == 0
    assert content(finished_run) == before


def test_one_row_group_per_step(finished_run: Path) -> None:
    import pyarrow.parquet as pq

    pack(finished_run)
    (path,) = (finished_run / "pack" / "000001").glob("tokens-*")
    assert pq.read_metadata(path).num_row_groups == 3


def test_a_writer_packs_by_itself(run_path: Path, steps: Build) -> None:
    with RunWriter.create(run_path, run_id="run-1", config={}, rotate_every=2) as writer:
        steps(writer, range(2))
        wait_until(lambda: Layout(run_path).pack_numbers() == [1])
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


def test_two_packers_do_not_meet(finished_run: Path) -> None:
    lock = FileLock(Layout(finished_run).pack_lock)
    lock.acquire()
    with pytest.raises(RunBusyError, match="another process is packing"):
        pack(finished_run)
    lock.release()


def test_what_a_pack_replaced_stays_while_the_pack_is_damaged(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage_a_pack(seconds: float) -> None:
        (path,) = (finished_run / "pack" / "000001").glob("turns-*")
        path.write_bytes(path.read_bytes()[:-1] + b"x")

    segments = sorted((finished_run / "seg").rglob("*.parquet"))
    monkeypatch.setattr(packing.time, "sleep", damage_a_pack)
    (why,) = pack(finished_run, grace_s=1.0).damaged
    assert why.endswith("its content changed after it was written; what it replaced stays")
    assert sorted((finished_run / "seg").rglob("*.parquet")) == segments
    assert Layout(finished_run).piece_numbers() == [1]


@pytest.mark.parametrize("is_packed", [False, True])
def test_verify_finds_nothing_wrong_with_a_good_run(finished_run: Path, *, is_packed: bool) -> None:
    if is_packed:
        pack(finished_run)
    report = verify(finished_run)
    assert (report.num_files, report.num_trajectories) == (5 if is_packed else 9, 12)
    assert (report.problems, report.whole_steps) == ((), "0 to 2")


def test_verify_names_each_bad_file_and_what_is_lost(finished_run: Path) -> None:
    tokens = next((finished_run / "seg" / "tokens").glob("00000001-*"))
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"x")
    turns = next((finished_run / "seg" / "turns").glob("00000002-*"))
    turns.unlink()
    journal = finished_run / "journal.ndjson"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"noise\n", *lines[1:]]))
    damage = [(p.path, p.what, p.lost) for p in verify(finished_run).problems]
    assert damage == [
        (journal, f"the record at byte {len(lines[0])} is damaged and left out", "one record"),
        (
            tokens,
            "its content changed after it was written",
            "tokens of step 1, attempt 1 (8 rows)",
        ),
        (turns, "it is missing", "turns of step 2, attempt 1 (8 rows)"),
    ]


def test_packing_beside_a_writer_takes_complete_pieces(run_path: Path, steps: Build) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(5))
        assert pack(run_path, grace_s=0).num_steps == 4
        steps(writer, [5, 6])
        assert open_run(run_path).steps().num_rows == 7
    assert Layout(run_path).pack_numbers() == [1, 2]
    pack(run_path)
    assert Layout(run_path).pack_numbers() == [1, 2, 3, 4]
    assert open_run(run_path).info().status == "finished"
    assert verify(run_path).problems == ()


@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_a_killed_pack_leaves_nothing_that_matters(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Before its commit, and between that and the removal of what it replaced."""
    before = content(finished_run)
    real = getattr(Path, call)

    def die(path: Path, *args: Any, **options: Any) -> Any:
        if call == "unlink" or path.name.endswith(".tmp"):
            raise KeyboardInterrupt
        return real(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, die)
        with pytest.raises(KeyboardInterrupt):
            pack(finished_run)
    assert content(finished_run) == before
    pack(finished_run)
    assert content(finished_run) == before
    assert [path.name for path in (finished_run / "pack").iterdir()] == ["000001"]
    assert list((finished_run / "seg").rglob("*.parquet")) == []
    assert Layout(finished_run).piece_numbers() == []


def test_what_is_damaged_stays_as_it_is_and_the_other_pieces_are_packed(
    run_path: Path, steps: Build
) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(7))
    piece = Layout(run_path).piece(2)
    piece.write_bytes(piece.read_bytes().replace(b'"kind":"step"', b'"kind":"stop"', 1))
    segment = next((run_path / "seg" / "tokens").glob("00000001-*"))
    segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    report = pack(run_path)
    assert report.num_steps == 3
    assert [text.split(" at byte")[0] for text in report.damaged] == [
        f"{Layout(run_path).piece(1)}: {segment}: its content changed after it was written",
        f"{piece}: the record",
    ]
    assert Layout(run_path).piece_numbers() == [1, 2]
    reader = open_run(run_path)
    assert reader.steps().column("step").to_pylist() == [0, 1, 3, 4, 5, 6]
    assert reader.sql("SELECT DISTINCT step FROM turns ORDER BY 1").num_rows == 6
    assert len(list((run_path / "seg" / "turns").iterdir())) == 4  # of the lost step, too


@pytest.mark.parametrize("name", ["pack.json", "turns-*"])
def test_a_damaged_pack_costs_its_own_steps(run_path: Path, steps: Build, name: str) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(4))
    pack(run_path)
    (path,) = (run_path / "pack" / "000001").glob(name)
    path.write_bytes(path.read_bytes()[:-9] + b"xxxxxxxxx")
    reader = open_run(run_path)
    rows = reader.sql("SELECT DISTINCT step FROM turns ORDER BY 1").to_pylist()
    assert [row["step"] for row in rows] == [2, 3]
    (warning,) = reader.warnings
    assert warning.startswith(f"{path}: ")
    report = verify(run_path)
    assert (len(report.problems), report.whole_steps) == (1, "2 to 3")
