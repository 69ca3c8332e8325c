"""A run in the file that wandb writes: `wandb/offline-run-*/run-ID.wandb`, or of an online run.

The file is a LevelDB log (blocks of 32 KiB, each piece with a checksum) of protobuf messages. We
read it with a small reader of our own: wandb's own package is 62 MB with a program for another
process, its reader is no public interface, and it gives up at the first damaged byte. A run that
was killed or copied while it trained ends in the middle of a piece; what is whole is read, and what
is not is counted. Of the messages two are read, by field numbers that protobuf keeps stable:
`history` (field 2 of `Record`: items of key and JSON value) and the id of `run` (17).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from echoscope.text.amounts import counted

from ..records import Collector, MetricsFileError, Reading, leaves
from ..table import MetricTable
from .json_records import parsed
from .protobuf import fields, groups

MAGIC = b":W&B"
BLOCK = 32_768
_HEADER = struct.Struct("<4sHB")
_PIECE = struct.Struct("<IHB")
"""Checksum, length, and whether it is a whole message (1), or its first, a middle, the last."""
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
MAX_MESSAGE = 64 << 20
_OWN_CLOCKS = ("_step", "_runtime")


@dataclass(slots=True, kw_only=True)
class WandbFile:
    """What a `.wandb` file says of its run, but for the rows."""

    identity: str = ""
    num_damaged: int = 0


def is_wandb(head: bytes) -> bool:
    """Whether a file that begins so is one of wandb."""
    return head.startswith(MAGIC)


def is_kept_beside(file: Path) -> bool:
    """Whether wandb has put a file beside the one of its run: logs, tables, copies of the code."""
    return any(
        folder.name in ("files", "logs", "tmp") and any(folder.parent.glob("*.wandb"))
        for folder in file.parents
    )


def read_wandb_table(reading: Reading) -> MetricTable:
    """The history of a run as a table. Raises as `read_metrics`."""
    path, held = Path(reading.path), WandbFile()

    def rows(collector: Collector) -> Iterator[dict[str, float]]:
        yield from rows_of(file, held)
        if held.num_damaged:
            places, num = counted(held.num_damaged, "place"), counted(collector.num_records, "row")
            collector.notes.append(f"the file is damaged in {places}: {num} could be read")

    with path.open("rb") as file:
        table = reading.table("wandb", rows, "the W&B run has no row of metrics")
    return replace(table, run=held.identity or path.stem)


def rows_of(file: BinaryIO, run: WandbFile) -> Iterator[dict[str, float]]:
    """The rows of a file's history: numbers by name. What else it says goes into `run`."""
    for message in messages(file, run):
        row: dict[str, float] | None = None
        try:
            for number, value in groups(message):
                if number == 2:  # history
                    row = _row(value)
                elif number == 17:  # run
                    names = (_text(name) for part, name in groups(value) if part == 1)
                    run.identity = next(names, run.identity)
        except (ValueError, RecursionError):
            run.num_damaged += 1
            continue
        if row is not None:
            yield row


def messages(file: BinaryIO, run: WandbFile) -> Iterator[bytes]:
    """The whole messages of a log; after damage it goes on with the next block.

    Source: LevelDB's log format, with zlib's CRC-32 over type and data.
    """
    head = file.read(_HEADER.size)
    if not is_wandb(head) or len(head) < _HEADER.size:
        raise MetricsFileError("no file of wandb: it does not begin with :W&B")
    parts: list[bytes] = []
    start = _HEADER.size
    while block := file.read(BLOCK - start):
        offset = 0
        while offset + _PIECE.size <= len(block):
            checksum, length, kind = _PIECE.unpack_from(block, offset)
            data = block[offset + _PIECE.size : offset + _PIECE.size + length]
            if kind == 0 and length == 0 and not any(block[offset:]):
                break  # room that was kept for later
            if len(data) < length or zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
                run.num_damaged += 1
                parts = []
                break
            offset += _PIECE.size + length
            if kind in (_WHOLE, _FIRST):
                run.num_damaged += bool(parts)
                parts = []
            elif not parts:
                continue  # the rest of a message whose beginning was damaged, or too much
            parts.append(data)
            if sum(map(len, parts)) > MAX_MESSAGE:
                run.num_damaged += 1
                parts = []
            elif kind in (_WHOLE, _LAST):
                yield b"".join(parts)
                parts = []
        start = 0
    run.num_damaged += bool(parts)


def _row(message: bytes) -> dict[str, float]:
    out = _items(message)
    for number, step in groups(message):
        if number == 2 and "_step" not in out:
            steps = [float(v) for n, v in fields(step) if n == 1 and isinstance(v, int)]
            out |= {"_step": steps[0]} if steps else {}
    return numbers_of_row(out)


def numbers_of_row(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row under their dotted names; tables, pictures and texts are left out."""
    values = dict(leaves(row, joint="."))
    media = tuple(name.removesuffix("_type") for name in values if name.endswith("._type"))
    numbers = {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
    }
    return without_clocks({n: number for n, number in numbers.items() if not n.startswith(media)})


def without_clocks(row: Mapping[str, float]) -> dict[str, float]:
    """A row without W&B's own count where the trainer counts steps itself.

    `_step` counts calls of `log`, so it is the step only where nothing else says it.

    >>> without_clocks({"_step": 7.0, "step": 3.0, "_runtime": 1.5, "loss": 0.5})
    {'step': 3.0, 'loss': 0.5}
    >>> without_clocks({"_step": 7.0, "loss": 0.5})
    {'_step': 7.0, 'loss': 0.5}
    """
    has_own = any(name in row for name in ("step", "global_step", "train/global_step"))
    dropped = _OWN_CLOCKS if has_own else _OWN_CLOCKS[1:]
    return {name: value for name, value in row.items() if name not in dropped}


def _items(message: bytes) -> dict[str, Any]:
    """The key-value items of a history."""
    out: dict[str, Any] = {}
    for field_number, item in groups(message):
        if field_number != 1:
            continue
        keys: list[str] = []
        key, value = "", None
        for part, content in groups(item):
            if part == 1:
                key = _text(content)
            elif part == 2:
                keys.append(_text(content))  # the path of a value in a dictionary
            elif part == 16:
                value = parsed(content)
        out[key or ".".join(keys)] = value
    return out


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
