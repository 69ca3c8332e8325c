"""The commit log: lines, torn tails, rotation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.errors import StoreError
from echoscope.store.journal import Journal, decode_line, encode_line, read_chunk
from echoscope.store.layout import Layout
from echoscope.store.reader import open_run
from echoscope.store.state import RunState
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
    path.write_bytes(first + second)
    assert [r["kind"] for r in read_chunk(path, chunk.end).records] == ["b"]


def test_a_damaged_line_between_good_ones_is_named_and_kept(tmp_path: Path) -> None:
    good, bad = encode_line({"kind": "a"}), b"garbage\n"
    path = tmp_path / "piece"
    path.write_bytes(good + bad + good + bad)
    chunk = read_chunk(path)
    assert len(chunk.records) == 2
    assert chunk.damaged == [len(good), 2 * len(good) + len(bad)]
    assert chunk.good_end == 2 * len(good) + len(bad)


def test_the_tail_is_cut_wherever_a_crash_tore_it(finished_run: Path) -> None:
    """For every length of the last record that may have reached the disk."""
    layout = Layout(finished_run)
    whole = layout.journal.read_bytes()
    before = whole[: whole.rindex(b"\n", 0, len(whole) - 1) + 1]
    for size in range(len(before), len(whole)):
        layout.journal.write_bytes(whole[:size])
        journal = Journal.reopen(layout)
        journal.close()
        assert layout.journal.read_bytes() == before
    layout.journal.write_bytes(before + b"\x00" * 4096)  # a file system may leave zeros
    Journal.reopen(layout).close()
    assert layout.journal.read_bytes() == before


def test_a_torn_step_can_be_done_again(
    writer: RunWriter, run_path: Path, tmp_path: Path, steps: Build
) -> None:
    steps(writer, [0, 1])
    journal = (run_path / "journal.ndjson").read_bytes()
    last = journal.rindex(b"\n", 0, len(journal) - 1) + 1
    for size in (last, last + 1, (last + len(journal)) // 2, len(journal) - 1):
        copy = tmp_path / f"copy-{size}"
        shutil.copytree(run_path, copy)
        (copy / "journal.ndjson").write_bytes(journal[:size])
        reader = open_run(copy)
        assert reader.sql("SELECT DISTINCT step FROM trajectories").to_pylist() == [{"step": 0}]
        with RunWriter.resume(copy, from_step=0, is_packing=False) as again:
            # The files of the torn step are gone, and the step is written as if for the first time.
            assert len(list((copy / "seg" / "tokens").iterdir())) == 1
            steps(again, [1])
            rows = reader.sql("SELECT step, attempt FROM steps ORDER BY step").to_pylist()
            assert rows == [{"step": 0, "attempt": 1}, {"step": 1, "attempt": 2}]
            assert reader.sql("SELECT count(*) n FROM turns").to_pylist() == [{"n": 16}]


def test_a_journal_without_its_header_is_refused(finished_run: Path) -> None:
    (finished_run / "journal.ndjson").write_bytes(b"")
    with pytest.raises(StoreError, match="lost its first record"):
        open_run(finished_run)
    with pytest.raises(StoreError, match="lost its first record"):
        RunWriter.resume(finished_run, from_step=0)


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


def test_unknown_kinds_are_ignored_and_broken_ones_named() -> None:
    state = RunState("r")
    state.apply({"kind": "invented later", "anything": 1})
    with pytest.raises(StoreError, match="a 'step' record is not what this version writes"):
        state.apply({"kind": "step"})


def test_hidden_steps_are_those_after_the_lowest_later_rewind() -> None:
    state = RunState("r")
    for attempt, step in ((2, 10), (3, 4), (4, 7)):
        state.apply({"kind": "rewind", "attempt": attempt, "from_step": step})
    # Attempt 1 was cut at 10 and then at 4; attempt 3 at 7; the latest not at all.
    assert [state.limit(attempt) for attempt in (1, 2, 3, 4)] == [4, 4, 7, None]
