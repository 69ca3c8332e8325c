"""Files of TensorBoard, written by its own code (`fixtures/tensorboard/written_by.py`)."""

from __future__ import annotations

import contextlib
import math
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.read.forms.protobuf import fields, signed
from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.records import MetricsFileError

EVENTS = Path(__file__).parents[1] / "fixtures" / "tensorboard"


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


def test_a_record_that_says_it_is_endless_ends(tmp_path: Path) -> None:
    file = tmp_path / "events.out.tfevents.1"
    data = (EVENTS / "old.tfevents").read_bytes()
    first = 16 + struct.unpack("<Q", data[:8])[0]
    file.write_bytes(data[:first] + struct.pack("<QI", 1 << 62, 0) + data[first:])
    with pytest.raises(MetricsFileError, match="no scalar; left out: 1 damaged record"):
        read_metrics(file)
