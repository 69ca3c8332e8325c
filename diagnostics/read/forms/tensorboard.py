"""TensorBoard's event files: the scalars that a trainer logged.

A small reader of our own: the package `tensorboard` brings a web server, gRPC and a second program
(over 20 MB), and a damaged record ends its reader. An event file is a sequence of records (length,
checksum, data, checksum) with one protobuf message each. Of the messages these fields are read:

| message | fields |
| --- | --- |
| `Event` | 1 wall time (s), 2 step, 5 summary |
| `Summary` | 1 values |
| `Summary.Value` | 1 tag, 2 number (TensorBoard 1 and PyTorch), 8 tensor (TensorFlow 2) |
| `TensorProto` | 1 type, 2 shape, 4 content, 5 floats, 6 doubles, 7 ints, 10 int64s |

Source: tensorflow/core/lib/io/record_writer.h; event.proto, summary.proto and tensor.proto in
tensorboard/compat/proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ..records import Collector, Reading
from ..table import MetricTable
from .protobuf import fields, groups, number_of, signed, varint

MAX_RECORD = 1 << 20
"""Bytes. A larger record (a graph, a picture) is passed over."""
MAX_TAG_CHARS = 500
WALL_TIME = "wall_time"
"""The column of the seconds since the epoch at which a step's first number was logged."""
_MARK = b"brain.Event:"
"""The first record of every event file says its version."""
_LENGTH = struct.Struct("<QI")
_NUMBERS = {1: ("<f", 4), 2: ("<d", 8), 3: ("<i", 4), 9: ("<q", 8)}
"""Types of tensors that are numbers -> how their content is packed."""


_DAMAGED = ("damaged record", "")
_CUT = "the last record is cut off: what stands before it was read"
"""The trainer still writes, or was killed."""


def is_events(head: bytes) -> bool:
    """Whether a file that begins so is one of TensorBoard."""
    return len(head) >= _LENGTH.size and _MARK in head[:64]


def read_events(reading: Reading) -> MetricTable:
    """The scalars of an event file. Raises as `read_metrics`."""
    with Path(reading.path).open("rb") as file:
        nothing = "the TensorBoard file has no scalar"
        return reading.table("tensorboard", partial(_rows, file), nothing)


def _rows(file: BinaryIO, collector: Collector) -> Iterator[dict[str, Any]]:
    """One row for the numbers of a step that follow each other."""
    row: dict[str, Any] = {}
    for data in _records(file, collector):
        try:
            step, wall_time, values = _event(data)
        except ValueError:
            collector.left_out[_DAMAGED] += 1
            continue
        if row and (row["step"] != step or values.keys() & row.keys()):
            yield row
            row = {}
        if values:
            row = row or {"step": step, WALL_TIME: wall_time}
            row.update(values)
    if row:
        yield row


def _records(file: BinaryIO, collector: Collector) -> Iterator[bytes]:
    """The whole records of a file.

    A damaged length leaves no way to the next record, so that reading ends there.
    """
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        size, checksum = _LENGTH.unpack(head)
        if _checksum(head[:8]) != checksum:
            collector.left_out[_DAMAGED] += 1
            return
        if size > MAX_RECORD:
            file.seek(size + 4, 1)
            continue
        data = file.read(size + 4)
        if len(data) < size + 4:
            collector.notes.append(_CUT)
            return
        if _checksum(data[:size]) != int.from_bytes(data[size:], "little"):
            collector.left_out[_DAMAGED] += 1
            continue
        yield data[:size]
    if head:
        collector.notes.append(_CUT)


def _event(data: bytes) -> tuple[int, float, dict[str, float]]:
    """Step, wall time and scalars of an event. Raises ValueError where it is none."""
    step, wall_time = 0, 0.0
    values: dict[str, float] = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            wall_time = number_of(value)
        elif number == 2 and isinstance(value, int):
            step = signed(value)
        elif number == 5 and isinstance(value, bytes):
            for inner, entry in groups(value):
                if inner == 1:
                    values.update(_scalar(entry))
    return step, wall_time, values


def _scalar(entry: bytes) -> dict[str, float]:
    """Tag and number of a value; empty for pictures, texts and histograms."""
    tag, scalar = "", None
    for number, value in fields(entry):
        if number == 1 and isinstance(value, bytes):
            tag = value[:MAX_TAG_CHARS].decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            scalar = number_of(value)
        elif number == 8 and isinstance(value, bytes):
            scalar = _of_tensor(value)
    return {} if scalar is None or not tag else {tag: scalar}


def _of_tensor(message: bytes) -> float | None:
    """The number of a tensor with one element; None for others."""
    kind = 0
    numbers: list[float] = []
    for number, value in fields(message):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, bytes):
            dimensions = [fields(dimension) for part, dimension in groups(value) if part == 2]
            if any([size for part, size in parts if part == 1] != [1] for parts in dimensions):
                return None
        elif number == 4 and isinstance(value, bytes) and kind in _NUMBERS:
            form, size = _NUMBERS[kind]
            numbers += [struct.unpack(form, value)[0]] if len(value) == size else []
        elif number in (5, 6) and isinstance(value, bytes):
            numbers += [number_of(value)] if len(value) in (4, 8) else []
        elif number in (7, 10):
            numbers.append(signed(value if isinstance(value, int) else varint(value, 0)[0]))
    return float(numbers[0]) if len(numbers) == 1 and kind in _NUMBERS else None


def _table() -> tuple[int, ...]:
    out = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        out.append(byte)
    return tuple(out)


_CRC_32C = _table()


def _checksum(data: bytes) -> int:
    """TFRecord's masked CRC-32C.

    >>> hex(_checksum(b"123456789"))  # the plain checksum is 0xe3069283
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_32C[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
