"""Files of TensorBoard and trackio, written by their own code (`fixtures/*/written_by.py`)."""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import sqlite3
import struct
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.read.forms.protobuf import fields, signed
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.store.importers.spooled import trackio_traces

FIXTURES = Path(__file__).parent / "fixtures"
EVENTS = FIXTURES / "tensorboard"
TRACKIO = FIXTURES / "trackio" / "ragen.db"


@pytest.mark.parametrize("name", ["old.tfevents", "tensors.tfevents", "x.tfevents"])
def test_scalars_of_every_writer_of_tensorboard(name: str) -> None:
    table = read_metrics(EVENTS / name)
    assert table.kind == "tensorboard"
    assert table.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert sorted(table.raw) == ["train/entropy", "train/kl", "train/reward", "wall_time"]
    assert table.raw["train/reward"].tolist() == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5]
    assert table.raw["wall_time"].tolist() == [1.7e9 + step for step in range(1, 7)]
    assert table.columns["reward/return_mean"].tolist() == table.raw["train/reward"].tolist()


def test_what_was_logged_as_nan_or_infinite_is_told_from_what_was_not_logged() -> None:
    raw = read_metrics(EVENTS / "old.tfevents").raw
    assert math.isinf(raw["train/entropy"][2])
    assert math.isinf(raw["train/kl"][3])
    assert not np.isinf(read_metrics(EVENTS / "old.tfevents").columns["policy/entropy"]).any()


def test_a_file_that_is_still_written_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    data = (EVENTS / "old.tfevents").read_bytes()
    file = tmp_path / "events.out.tfevents.1"
    file.write_bytes(data[: len(data) * 2 // 3])
    table = read_metrics(file)
    assert table.steps.tolist() == [1, 2, 3, 4]
    assert "the last record is cut off: what stands before it was read" in table.notes


def test_a_damaged_record_is_left_out_and_counted(tmp_path: Path) -> None:
    data = bytearray((EVENTS / "old.tfevents").read_bytes())
    data[data.index(b"train/reward") + 3] ^= 0xFF  # of step 1
    file = tmp_path / "events.out.tfevents.1"
    file.write_bytes(data)
    table = read_metrics(file)
    assert "left out: 1 damaged record" in table.notes
    assert math.isnan(table.raw["train/reward"][0])
    assert table.raw["train/reward"][1] == 0.5


def test_event_files_of_any_bytes_are_a_table_or_a_refusal(tmp_path: Path) -> None:
    data = (EVENTS / "tensors.tfevents").read_bytes()
    dice = random.Random(0)
    file = tmp_path / "events.out.tfevents.1"
    for _ in range(200):
        broken = bytearray(data)
        for _ in range(dice.randrange(1, 6)):
            broken[dice.randrange(40, len(broken))] = dice.randrange(256)
        file.write_bytes(broken[: dice.randrange(64, len(broken) + 1)])
        with contextlib.suppress(MetricsFileError):
            assert read_metrics(file).num_rows >= 1


def test_messages_of_any_bytes_are_fields_or_a_value_error() -> None:
    dice = random.Random(1)
    for _ in range(2000):
        message = dice.randbytes(dice.randrange(40))
        try:
            assert all(number >= 0 for number, _ in fields(message))
        except ValueError:
            continue


def test_numbers_below_zero() -> None:
    ((number, value),) = fields(b"\x08" + b"\xff" * 9 + b"\x01")
    assert number == 1
    assert isinstance(value, int)
    assert signed(value) == -1


def test_runs_of_a_trackio_project() -> None:
    table = read_metrics(TRACKIO)
    assert (table.kind, table.run, table.runs) == ("trackio", "lake-1", ("lake-1", "lake-2"))
    assert table.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert table.raw["critic/score/mean"] == pytest.approx([0.05 * k for k in range(1, 7)])
    assert table.raw["val-env/lake/success"].tolist() == [1.0] * 6
    assert math.isinf(table.raw["actor/entropy"][2]), "trackio writes NaN as text"
    assert table.raw["wall_time"][0] > 1.7e9
    other = read_metrics(TRACKIO, run="lake-2")
    assert other.raw["critic/score/mean"] == pytest.approx([0.1 * k for k in range(1, 5)])
    with pytest.raises(MetricsFileError, match="no run 'lake-3'; its runs are: lake-1, lake-2"):
        read_metrics(TRACKIO, run="lake-3")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE notes (a)",
        "CREATE TABLE metrics (a, b)",
        "CREATE VIEW metrics AS SELECT 'a' run_name, 1 step, '{\"reward\": 1}' metrics",
    ],
)
def test_another_programs_database_is_refused(statement: str, tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(statement)
    with pytest.raises(MetricsFileError, match="but not one of trackio: it has no table"):
        read_metrics(file)


def test_a_locked_database_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackio_traces, "BUSY_S", 0.01)
    file = tmp_path / "p.db"
    shutil.copy(TRACKIO, file)
    with closing(sqlite3.connect(file)) as database:
        database.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            MetricsFileError, match=r"has locked the SQLite database .* copy the file"
        ):
            read_metrics(file)


def test_a_project_is_read_while_trackio_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "p.db"
    shutil.copy(TRACKIO, file)
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("INSERT INTO metrics SELECT NULL, run_id, timestamp, run_name, 7, metrics,"
                         " NULL, NULL FROM metrics WHERE id = 1")  # fmt: skip
        assert read_metrics(file).steps.tolist() == [1, 2, 3, 4, 5, 6], "not committed yet"
        database.commit()
        assert read_metrics(file).steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert list(tmp_path.glob("*.db")) == [file]


def test_half_a_database_is_one_sentence(tmp_path: Path) -> None:
    data = TRACKIO.read_bytes()
    file = tmp_path / "p.db"
    for size in range(100, len(data), 1500):
        file.write_bytes(data[:size])
        with pytest.raises(MetricsFileError, match=r"damaged|not one of trackio"):
            read_metrics(file)


def test_nothing_is_written_into_the_folder_of_a_database(tmp_path: Path) -> None:
    shutil.copy(TRACKIO, tmp_path / "p.db")
    before = zlib.crc32((tmp_path / "p.db").read_bytes())
    read_metrics(tmp_path / "p.db")
    assert [file.name for file in tmp_path.iterdir()] == ["p.db"]
    assert zlib.crc32((tmp_path / "p.db").read_bytes()) == before


def test_a_record_that_says_it_is_endless_ends(tmp_path: Path) -> None:
    file = tmp_path / "events.out.tfevents.1"
    data = (EVENTS / "old.tfevents").read_bytes()
    first = 16 + struct.unpack("<Q", data[:8])[0]
    file.write_bytes(data[:first] + struct.pack("<QI", 1 << 62, 0) + data[first:])
    with pytest.raises(MetricsFileError, match="no scalar; left out: 1 damaged record"):
        read_metrics(file)
