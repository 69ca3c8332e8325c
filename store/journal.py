"""The commit log: one fsynced line = one acknowledged step.

Each line is a JSON object that begins with the CRC-32 of the rest of the line, so that a line torn
by a crash or rotted on the disk is recognised. The log is written in pieces: `journal.ndjson` is
the live one, `journal/000001.ndjson` and so on are complete and wait to be packed. Every piece
begins with a header that repeats what the pieces before it decided (`state.py`).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .durable import new_id, sync_folder, write_all, write_new_file
from .errors import StoreError, StoreWriteError
from .layout import Layout

_PREFIX = '{"crc": "'
_BODY = len('{"crc": "00000000", ')

Record = dict[str, Any]


def encode_line(record: Mapping[str, Any]) -> bytes:
    """One line of the journal, newline included."""
    body = json.dumps(record, allow_nan=False, separators=(",", ":"))
    return f'{_PREFIX}{zlib.crc32(body.encode()):08x}", {body[1:]}\n'.encode()


def decode_line(line: bytes) -> Record | None:
    """The record of one line, or None where the line is torn or damaged."""
    try:
        text = line.decode()
        body = "{" + text[_BODY:].rstrip("\n")
        if not text.startswith(_PREFIX) or int(text[9:17], 16) != zlib.crc32(body.encode()):
            return None
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("kind"), str) else None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a read of a journal piece gave."""

    records: list[Record]
    end: int
    """Offset behind the last complete line: where the next read starts."""
    damaged: list[int]
    """Offsets of complete lines that are not what was written."""
    good_end: int
    """Offset behind the last good line."""


def read_chunk(path: Path, offset: int = 0) -> Chunk:
    """All complete lines from `offset` on. A line without its newline is not there yet."""
    with path.open("rb") as file:
        return read_chunk_of(file, offset)


def read_chunk_of(file: BinaryIO, offset: int) -> Chunk:
    """`read_chunk` of an open file."""
    file.seek(offset)
    return _parse(file.read(), offset)


def _parse(data: bytes, offset: int) -> Chunk:
    records: list[Record] = []
    damaged: list[int] = []
    start, good_end = 0, offset
    while (stop := data.find(b"\n", start)) >= 0:
        record = decode_line(data[start : stop + 1])
        if record is None:
            damaged.append(offset + start)
        else:
            records.append(record)
            good_end = offset + stop + 1
        start = stop + 1
    return Chunk(records, offset + start, damaged, good_end)


class Journal:
    """The live piece, open for appending. One process at a time: the caller holds the lock."""

    def __init__(self, layout: Layout, descriptor: int, piece: int, size: int) -> None:
        self._layout = layout
        self._descriptor = descriptor
        self.piece = piece
        self.size = size
        """Bytes of the live piece that are on the disk."""

    @classmethod
    def create(cls, layout: Layout, header: Mapping[str, Any], *, piece: int) -> Journal:
        """Start a piece. Its header is durable before the file has its name."""
        line = encode_line({"kind": "journal", "piece": piece, **header})
        temporary = layout.journal.with_name(f"journal.{new_id()}.tmp")
        write_new_file(temporary, line)
        os.replace(temporary, layout.journal)
        sync_folder(layout.root)
        return cls(layout, cls._open(layout), piece, len(line))

    @classmethod
    def reopen(cls, layout: Layout) -> Journal:
        """Go on with the live piece after a crash: cut what a crash left behind the last record.

        Raises:
            StoreError: the piece has lost its header.
        """
        chunk = read_chunk(layout.journal)
        if not chunk.records or chunk.records[0]["kind"] != "journal":
            raise StoreError(f"{layout.journal}: the journal has lost its first record")
        descriptor = cls._open(layout)
        if os.fstat(descriptor).st_size > chunk.good_end:
            os.ftruncate(descriptor, chunk.good_end)
            os.fsync(descriptor)
        return cls(layout, descriptor, int(chunk.records[0]["piece"]), chunk.good_end)

    @staticmethod
    def _open(layout: Layout) -> int:
        return os.open(layout.journal, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write and fsync one record. When this returns, the record is acknowledged.

        Raises:
            StoreWriteError: the disk refused; what it had taken of the record is cut off again.
        """
        line = encode_line(record)
        try:
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self.size)
            raise StoreWriteError(f"{self._layout.journal}: {error.strerror}") from error
        self.size += len(line)

    def rotate(self, header: Mapping[str, Any]) -> None:
        """Complete this piece and start the next one.

        Between the two renames there is no live piece: readers wait, and `reopen_or_restart`
        starts one after a crash.
        """
        self.close()
        self._layout.pieces.mkdir(exist_ok=True)
        os.rename(self._layout.journal, self._layout.piece(self.piece))
        sync_folder(self._layout.pieces)
        fresh = Journal.create(self._layout, header, piece=self.piece + 1)
        self._descriptor, self.piece, self.size = fresh._descriptor, fresh.piece, fresh.size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
