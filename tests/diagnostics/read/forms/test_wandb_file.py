"""W&B's own files, as wandb 0.31.0 wrote them: every row, and what is left of a damaged one."""

from __future__ import annotations

import io
import math
import random
import struct
import zlib
from pathlib import Path

import pytest

from echoscope.diagnostics.read.forms.wandb_file import (
    BLOCK,
    MAGIC,
    WandbFile,
    messages,
    read_wandb_table,
    rows_of,
)
from echoscope.diagnostics.read.records import MetricsFileError, Reading
from echoscope.diagnostics.read.runs import read_runs
from echoscope.diagnostics.read.sources import open_source

FILE = Path(__file__).parents[1] / "fixtures" / "wandb" / "run-lake0001.wandb"
CONTENT = FILE.read_bytes()
HEAD = MAGIC + struct.pack("<HB", 0xBEE1, 0)


def read(content: bytes) -> tuple[list[dict[str, float]], WandbFile]:
    run = WandbFile()
    return list(rows_of(io.BytesIO(content), run)), run


def piece(data: bytes, kind: int) -> bytes:
    checksum = zlib.crc32(data, zlib.crc32(bytes([kind])))
    return struct.pack("<IHB", checksum, len(data), kind) + data


def field(number: int, data: bytes) -> bytes:
    out, length = bytes([number << 3 | 2]), len(data)
    while length > 127:
        out, length = out + bytes([length & 127 | 128]), length >> 7
    return out + bytes([length]) + data


def item(key: str, json: str) -> bytes:
    """A row with one value."""
    row = field(1, field(1, key.encode()) + b"\x82\x01" + field(16, json.encode())[1:])
    return field(2, row)


def row(**values: float) -> bytes:
    """A row with several values."""
    return field(2, b"".join(item(key, str(value))[2:] for key, value in values.items()))


def test_every_row_has_its_numbers_under_wandbs_names() -> None:
    rows, run = read(CONTENT)
    assert (len(rows), run.num_damaged) == (12, 0)
    assert [row["_step"] for row in rows] == list(range(1, 13))
    fourth = {name: value for name, value in rows[3].items() if name != "_timestamp"}
    assert fourth == {
        "_step": 4.0,
        "critic/score/mean": 0.2,
        "actor/entropy": 0.25,
        "actor/grad_norm": 0.5,
        "actor/kl_loss": 0.01,
        "val-env/lake/success": 0.4,
        "nested.a": 4.0,
        "nested.b.c": 2.5,
        "flag": 0.0,
    }
    assert math.isnan(rows[4]["actor/grad_norm"])
    assert rows[5]["actor/kl_loss"] == math.inf
    assert not any(name.startswith("generations") for row in rows for name in row)


def test_the_table_has_our_keys_at_the_steps_of_the_run() -> None:
    table = read_wandb_table(Reading(str(FILE)))
    assert table.steps.tolist() == list(range(1, 13))
    assert table.columns["policy/entropy"][[0, 3]].tolist() == [1.0, 0.25]
    assert table.sources["policy/entropy"] == "actor/entropy"
    assert table.run == "lake0001"
    # More than 1 is no rate: the column keeps its own name.
    assert table.columns["val-env/lake/success"][[3, 7, 11]] == pytest.approx([0.4, 0.8, 1.2])
    assert "eval/lake/success_rate" not in table.columns


def test_a_file_that_ends_anywhere_keeps_the_rows_before() -> None:
    whole, _ = read(CONTENT)
    for end in range(len(HEAD), len(CONTENT), 97):
        rows, _ = read(CONTENT[:end])
        assert repr(rows) == repr(whole[: len(rows)])
    assert read(CONTENT[:-200])[1].num_damaged == 1


def test_changed_bytes_cost_rows_but_never_change_one() -> None:
    whole = {repr(row) for row in read(CONTENT)[0]}
    rng = random.Random(7)
    for _ in range(150):
        content = bytearray(CONTENT)
        for _ in range(rng.randint(1, 8)):
            content[rng.randrange(len(HEAD), len(content))] = rng.randrange(256)
        rows, run = read(bytes(content))
        assert {repr(row) for row in rows} <= whole
        assert run.num_damaged or len(rows) == 12


def test_after_a_damaged_block_the_next_ones_are_read() -> None:
    filler = piece(b"\x00" * (BLOCK - len(HEAD) - 7), 1)
    content = bytearray(HEAD + filler + piece(item("loss", "0.5"), 1))
    content[100] ^= 1
    rows, run = read(bytes(content))
    assert rows == [{"loss": 0.5}]
    assert run.num_damaged == 1


def test_a_message_over_several_blocks_is_one() -> None:
    first, message = BLOCK - len(HEAD) - 7, item("loss", "0.5" + " " * 2 * BLOCK)
    second = first + BLOCK - 7
    content = HEAD + piece(message[:first], 2) + piece(message[first:second], 3)
    rows, run = read(content + piece(message[second:], 4))
    assert (rows, run.num_damaged) == ([{"loss": 0.5}], 0)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 30,
        field(2, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        field(2, b"\x0a\xff\xff\xff\xff\x0f"),
        b"\x13\x00",
        b"\x11\x00",
    ],
)
def test_what_is_no_message_is_counted_and_left_out(message: bytes) -> None:
    rows, run = read(HEAD + piece(message, 1) + piece(item("loss", "0.5"), 1))
    assert (rows, run.num_damaged) == ([{"loss": 0.5}], 1)


@pytest.mark.parametrize("json", ["[" * 30_000, "{", '"import os"', "null", "[1]", '"1"'])
def test_a_value_that_is_no_number_is_left_out(json: str) -> None:
    assert read(HEAD + piece(item("x", json), 1))[0] == [{}]


@pytest.mark.parametrize("content", [b"", b":W&B", b"\x7fELF" * 10])
def test_another_file_is_refused(content: bytes) -> None:
    with pytest.raises(MetricsFileError, match="no file of wandb"):
        list(messages(io.BytesIO(content), WandbFile()))


def test_a_run_without_rows_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(HEAD)
    with pytest.raises(MetricsFileError, match=r"run-x\.wandb: the W&B run has no row of metrics$"):
        read_wandb_table(Reading(str(path)))
    path.write_bytes(HEAD + b"\x01" * 500)
    with pytest.raises(MetricsFileError, match=r"damaged in 1 place: 0 rows could be read$"):
        read_wandb_table(Reading(str(path)))


def test_a_folder_of_one_run_is_read_and_one_of_several_asks_which(tmp_path: Path) -> None:
    first = tmp_path / "wandb" / "offline-run-20260101_000000-lake0001"
    (first / "files" / "media").mkdir(parents=True)
    (first / "run-lake0001.wandb").write_bytes(CONTENT)
    (first / "files" / "media" / "t.json").write_text('[{"step": 1, "reward": 99}]')
    (tmp_path / "wandb" / "latest-run").symlink_to(first.name)
    for folder in (tmp_path, tmp_path / "wandb", first):
        assert open_source(folder).table.num_rows == 12
    runs = read_runs(tmp_path).runs
    assert [(run.name, run.table.num_rows) for run in runs] == [("lake0001", 12)]
    second = tmp_path / "wandb" / "offline-run-20260102_000000-lake0002"
    second.mkdir()
    other = piece(field(17, field(1, b"lake0002")), 1)
    rows = b"".join(piece(row(_step=n, loss=n / 7), 1) for n in range(5))
    (second / "run-lake0002.wandb").write_bytes(HEAD + other + rows)
    with pytest.raises(MetricsFileError, match=r"2 runs.*--run NAME.*: lake0001, run-lake0002"):
        open_source(tmp_path)
    assert open_source(tmp_path, run="run-lake0002").table.num_rows == 5


def test_the_files_of_a_run_that_was_resumed_are_one_run(tmp_path: Path) -> None:
    """wandb begins a new folder each time; the rows follow each other by their steps."""
    run = piece(field(17, field(1, b"lake0001")), 1)
    for number, steps in (("1", range(1, 6)), ("2", range(6, 9))):
        folder = tmp_path / f"offline-run-2026010{number}_000000-lake0001"
        folder.mkdir()
        rows = b"".join(piece(row(step=s, loss=s / 7), 1) for s in steps)
        (folder / "run-lake0001.wandb").write_bytes(HEAD + run + rows)
    table = open_source(tmp_path).table
    assert table.steps.tolist() == list(range(1, 9))
