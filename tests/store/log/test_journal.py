"""The commit log: lines, torn tails, rotation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.errors import StoreError
from echoscope.store.log.committer import load_committer
from echoscope.store.log.journal import (
    Chain,
    JournalState,
    decode_line,
    encode_line,
    parse_chunk,
    read_chunk,
)
from echoscope.store.log.layout import Layout
from echoscope.store.log.packing import pack
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]


def test_a_line_is_json_that_begins_with_its_checksum() -> None:
    line = encode_line({"kind": "step", "text": "a\nb"})
    assert line.startswith(b'{"crc": "')
    assert line.count(b"\n") == 1
    assert decode_line(line) == {"kind": "step", "text": "a\nb"}


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b'{"kind": "step"}\n',
        encode_line({"kind": "step", "step": 1}).replace(b":1", b":2"),
        encode_line({"kind": "step"})[5:],
        encode_line({"no": "kind"}),
        encode_line({"kind": 3}),
        b'{"crc": "zzzzzzzz", "kind":"step"}\n',
    ],
)
def test_a_damaged_line_is_no_record(line: bytes) -> None:
    assert decode_line(line) is None


def test_a_line_without_its_newline_is_not_there_yet(tmp_path: Path) -> None:
    first, second = encode_line({"kind": "a"}), encode_line({"kind": "b"})
    path = tmp_path / "piece"
    path.write_bytes(first + second[:-1])
    chunk = read_chunk(path)
    assert ([r["kind"] for r in chunk.records], chunk.end) == (["a"], len(first))
    assert [r["kind"] for r in parse_chunk(second, chunk.end).records] == ["b"]


def test_a_damaged_line_between_good_ones_is_named_and_kept(tmp_path: Path) -> None:
    good, bad = encode_line({"kind": "a"}), b"garbage\n"
    path = tmp_path / "piece"
    path.write_bytes(good + bad + good + bad)
    chunk = read_chunk(path)
    assert len(chunk.records) == 2
    assert chunk.damaged == [len(good), 2 * len(good) + len(bad)]
    assert chunk.good_end == 2 * len(good) + len(bad)


def test_a_torn_step_can_be_done_again(
    writer: RunWriter, run_path: Path, tmp_path: Path, steps: Build, crash_before_end: Build
) -> None:
    steps(writer, [0, 1])
    journal = (run_path / "journal.ndjson").read_bytes()
    last = journal.rindex(b"\n", 0, len(journal) - 1) + 1
    for size in (last, last + 1, (last + len(journal)) // 2, len(journal) - 1):
        copy = tmp_path / f"copy-{size}"
        shutil.copytree(run_path, copy)
        crash_before_end(copy, size)
        reader = open_run(copy)
        assert reader.sql("SELECT DISTINCT step FROM trajectories").to_pylist() == [{"step": 0}]
        with RunWriter.resume(copy, from_step=0, is_packing=False) as again:
            # The files of the torn step are gone, and the step is written as if for the first time.
            assert len(list((copy / "seg" / "tokens").iterdir())) == 1
            steps(again, [1])
            rows = reader.sql("SELECT step, attempt FROM steps ORDER BY step").to_pylist()
            assert rows == [{"step": 0, "attempt": 1}, {"step": 1, "attempt": 2}]
            assert reader.sql("SELECT count(*) n FROM turns").to_pylist() == [{"n": 16}]


def test_a_damaged_record_costs_that_record_only(finished_run: Path) -> None:
    path = finished_run / "journal.ndjson"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"step":1', b'"step":9', 1)  # the record of step 1
    path.write_bytes(b"".join(lines))
    reader = open_run(finished_run)
    assert reader.steps().column("step").to_pylist() == [0, 2]
    assert "journal.ndjson: the record at byte" in reader.warnings[0]


def test_pieces_follow_each_other(run_path: Path, steps: Build) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        reader = open_run(run_path)
        for step in range(5):
            steps(writer, [step])
            assert reader.info().last_step == step
        assert Layout(run_path).piece_numbers() == [1, 2]
    assert open_run(run_path).steps().num_rows == 5
    assert open_run(run_path).info().status == "finished"


def test_a_crash_between_two_pieces_leaves_a_good_run(run_path: Path, steps: Build) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(3))
    layout = Layout(run_path)
    # As a crash between the two renames of a rotation leaves it.
    os.rename(layout.journal, layout.piece(2))
    reader = open_run(run_path)
    assert reader.steps().num_rows == 3
    with RunWriter.resume(run_path, from_step=2, is_packing=False) as again:
        steps(again, [3])
    assert reader.steps().column("step").to_pylist() == [0, 1, 2, 3]


def test_hidden_steps_are_those_after_the_lowest_later_rewind() -> None:
    state = JournalState("r")
    for attempt, step in ((2, 10), (3, 4), (4, 7)):
        state.apply({"kind": "rewind", "attempt": attempt, "from_step": step})
    # Attempt 1 was cut at 10 and then at 4; attempt 3 at 7; the latest not at all.
    assert [state.limit(attempt) for attempt in (1, 2, 3, 4)] == [4, 4, 7, None]


# -- what the chain of records notices -------------------------------------------------------------


def damaged(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> list[str]:
    """What a reader says of a run whose journal's lines were changed."""
    journal = path / "journal.ndjson"
    journal.write_bytes(b"".join(change(journal.read_bytes().splitlines(keepends=True))))
    return [warning.split(": ", 1)[1] for warning in open_run(path).warnings]


def test_a_record_that_is_gone_is_noticed(finished_run: Path) -> None:
    problems = damaged(finished_run, lambda lines: lines[:2] + lines[3:])
    assert problems == ["1 record is missing before record 3"]
    assert open_run(finished_run).steps().column("step").to_pylist() == [0, 2]


def test_a_record_that_occurs_twice_counts_once(finished_run: Path) -> None:
    problems = damaged(finished_run, lambda lines: [*lines[:3], *lines[2:]])
    assert problems == ["record 2 does not follow record 2; left out"]
    assert open_run(finished_run).steps().num_rows == 3


def test_another_runs_record_is_left_out(finished_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with RunWriter.create(other, run_id="other", config={}, is_packing=False):
        pass
    foreign = (other / "journal.ndjson").read_bytes().splitlines(keepends=True)[-1]
    problems = damaged(finished_run, lambda lines: [*lines, foreign])
    assert problems == ["record 1 belongs to another run and is left out"]
    assert open_run(finished_run).info().status == "finished"


def test_a_bit_in_the_journals_header_costs_nothing_else(run_path: Path, steps: Build) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(5))
    for path in (run_path / "journal.ndjson", Layout(run_path).piece(2)):
        data = bytearray(path.read_bytes())
        data[60] ^= 1
        path.write_bytes(data)
    reader = open_run(run_path)
    assert reader.steps().column("step").to_pylist() == [0, 1, 2, 3, 4]
    assert [w.split(": ")[1] for w in reader.warnings] == [
        "the record at byte 0 is damaged and left out",
    ] * 2


def test_a_missing_piece_costs_its_steps_only(run_path: Path, steps: Build) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(7))
    Layout(run_path).piece(2).unlink()
    reader = open_run(run_path)
    assert reader.steps().column("step").to_pylist() == [0, 1, 4, 5, 6]
    assert reader.warnings == [f"{Layout(run_path).piece(2)}: it is missing"]


def test_a_damaged_run_json_is_read_from_the_journal(finished_run: Path) -> None:
    path = finished_run / "run.json"
    before = open_run(finished_run).info()
    path.write_bytes(path.read_bytes().replace(b"0.001", b"0.002"))
    reader = open_run(finished_run)
    assert reader.info() == before
    assert reader.warnings == [
        f"{path}: its content changed after it was written; the journal's copy is used"
    ]


def test_the_tail_is_cut_wherever_a_crash_tore_it(finished_run: Path) -> None:
    """For every length of the last record that may have reached the disk."""
    layout = Layout(finished_run)
    whole = layout.journal.read_bytes()
    before = whole[: whole.rindex(b"\n", 0, len(whole) - 1) + 1]
    num_before = before.count(b"\n")
    torn = [whole[:size] for size in range(len(before), len(whole), 3)]
    for data in (*torn, before + b"\x00" * 4096):  # a file system may leave zeros
        layout.journal.write_bytes(data)
        # The last record was never acknowledged.
        layout.tail.write_bytes(encode_line({"kind": "tail", "seq": num_before}))
        committer, _ = load_committer(layout, rotate_every=256)
        committer.release()
        assert layout.journal.read_bytes() == before


def test_acknowledged_records_gone_from_the_end_are_noticed_and_the_run_goes_on(
    finished_run: Path, steps: Build
) -> None:
    told = damaged(finished_run, lambda lines: lines[:-2])
    assert told == ["2 records are missing at its end, although they were acknowledged"]
    with RunWriter.resume(finished_run, from_step=1, is_packing=False) as writer:
        steps(writer, [2])
    reader = open_run(finished_run)
    assert reader.steps().column("step").to_pylist() == [0, 1, 2]
    # The damaged piece stays as it is, and the gap in the chain is said as long as it is there.
    assert [text.split(": ")[1] for text in reader.warnings] == [
        "2 records are missing before record 5"
    ]
    assert Layout(finished_run).piece_numbers() == [1]


def test_a_run_whose_live_piece_is_damaged_goes_on_in_a_new_one(
    finished_run: Path, steps: Build
) -> None:
    journal = finished_run / "journal.ndjson"
    lines = journal.read_bytes().splitlines(keepends=True)
    bad = b"".join([lines[0], lines[1].replace(b'"step":0', b'"step":8', 1), *lines[2:]])
    journal.write_bytes(bad)
    with RunWriter.resume(finished_run, from_step=2, is_packing=False) as writer:
        steps(writer, [3])
    assert Layout(finished_run).piece(1).read_bytes() == bad
    reader = open_run(finished_run)
    assert reader.steps().column("step").to_pylist() == [1, 2, 3]
    assert len(reader.warnings) == 1
    report = pack(finished_run)
    assert [text.split(" at byte")[0] for text in report.damaged] == [
        f"{Layout(finished_run).piece(1)}: the record"
    ]
    assert report.num_steps == 1  # its neighbour is packed


def test_a_torn_piece_that_looks_complete_is_noticed_by_everybody(
    run_path: Path, steps: Build
) -> None:
    """Three records are gone from the end of a piece; nothing in the piece itself says so."""
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=5, is_packing=False
    ) as writer:
        steps(writer, range(7))
    piece = Layout(run_path).piece(1)
    piece.write_bytes(b"".join(piece.read_bytes().splitlines(keepends=True)[:-3]))
    what = f"{run_path / 'journal.ndjson'}: 3 records are missing before record 6"
    assert open_run(run_path).warnings == [what]
    assert [str(problem) for problem in verify(run_path).problems] == [what]
    segments = set((run_path / "seg").rglob("*.parquet"))
    report = pack(run_path)
    assert report.damaged == [f"{piece}: the piece behind it does not continue it"]
    assert report.num_steps == 2  # its neighbour is packed, and the loss is still told
    what = f"{Layout(run_path).pack(2)}: 3 records are missing before this pack"
    assert open_run(run_path).warnings == [what]
    named_by_the_lost = {path for path in segments if path.name[:8] in {"00000002", "00000004"}}
    assert named_by_the_lost <= set((run_path / "seg").rglob("*.parquet"))
    assert piece.exists()


def chained(*records: dict[str, Any]) -> list[bytes]:
    """The lines of a piece of run `r`."""
    chain, lines = Chain.of("r"), []
    for record in records:
        lines.append(chain.line(record))
        chain.add(lines[-1])
    return lines


def test_a_record_of_another_history_of_the_run_does_not_follow() -> None:
    """Two pieces of one run that differ in their second record: a copy of the run that went on
    by itself. The third record of the copy is whole, and its number and run are right."""
    header = {"kind": "journal", "piece": 1}
    third = {"kind": "event", "step": 2}
    ours = chained(header, {"kind": "event", "step": 0}, third)
    theirs = chained(header, {"kind": "event", "step": 1}, third)
    records, problems = Chain.of("r").take(parse_chunk(b"".join([*ours[:2], theirs[2]])))
    assert [record.get("step") for record in records] == [None, 0]
    assert problems == ["record 2 does not follow the one before; left out"]
    records, problems = Chain.of("r").take(parse_chunk(b"".join(ours)))
    assert (len(records), problems) == (3, [])


def test_a_record_that_no_version_writes_is_named() -> None:
    with pytest.raises(StoreError, match="a 'step' record is not what this version writes"):
        JournalState("r").apply({"kind": "step"})
