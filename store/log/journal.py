"""The commit log: one fsynced line = one acknowledged step.

Each line is a JSON object that begins with the CRC-32 of the rest of the line, so that a line torn
by a crash or rotted on the disk is recognised. All records of a run are one chain: each says in
`run` whose it is, in `seq` the how manieth it is, and in `prev` the checksum of the line before.
So a record that is missing, repeated or another run's is recognised, too.

The log is written in pieces: `journal.ndjson` is the live one, `journal/000001.ndjson` and so on
are complete and wait to be packed. Every piece begins with a header that repeats what the pieces
before it decided (`State`, below). `journal.tail` says how many records were acknowledged.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import StoreError, StoreWriteError
from ..schema import SCHEMA_VERSION, check_version
from .durable import new_id, read_regular, sync_path, write_all, write_new_file
from .layout import FileGroup, Layout


class JournalState:
    """The state after some journal records. The writer keeps one, each reader its own.

    A rewind to step c begins a new attempt: whatever earlier attempts wrote for steps after c is
    hidden from then on, and stays on the disk.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.description: Mapping[str, Any] | None = None
        """What `run.json` says."""
        self.attempt = 1
        self.rewinds: list[tuple[int, int]] = []
        """(attempt that it began, last step that it left visible), in order."""
        self.last_step = -1
        """Last acknowledged step that is visible."""
        self.status: str | None = None
        """How the run ended; None while nobody said so."""
        self.ended_at: float | None = None
        self.unfinished: dict[str, FileGroup] = {}
        """Micro-segments of steps that have no step record yet."""
        self.committed: list[FileGroup] = []
        """Segments of acknowledged steps that no pack holds."""

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take one more record.

        Raises:
            StoreError: the record contradicts the schema.
        """
        try:
            self._apply(record)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"journal of {self.run_id}: a {record['kind']!r} record is not what this version "
                f"writes ({error!r})"
            ) from error

    def header(self, wall_time: float) -> dict[str, Any]:
        """The first record of the next piece: enough to forget the pieces before."""
        return {
            "schema": SCHEMA_VERSION,
            "description": self.description,
            "attempt": self.attempt,
            "rewinds": [list(pair) for pair in self.rewinds],
            "last_step": self.last_step,
            "status": self.status,
            "ended_at": self.ended_at,
            "unfinished": [segment.to_json() for segment in self.unfinished.values()],
            "wall_time": wall_time,
        }

    def limit(self, attempt: int) -> int | None:
        """The last visible step of an attempt; None where no later attempt rewound it."""
        limits = [step for began, step in self.rewinds if began > attempt]
        return min(limits) if limits else None

    def _apply(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:  # other records hold events alone
            case "journal":
                check_version(record["schema"], f"journal of {self.run_id}")
                self.description = record["description"]
                self.attempt = int(record["attempt"])
                self.rewinds = [(int(attempt), int(step)) for attempt, step in record["rewinds"]]
                self.last_step = int(record["last_step"])
                self.status, self.ended_at = record["status"], record["ended_at"]
                segments = [FileGroup.from_json(value) for value in record["unfinished"]]
                self.unfinished = {segment.id: segment for segment in segments}
            case "micro":
                segment = FileGroup.from_json(record["segment"])
                self.unfinished[segment.id] = segment
            case "step":
                for replaced in record["replaces"]:
                    self.unfinished.pop(replaced, None)
                if record["segment"] is not None:
                    self.committed.append(FileGroup.from_json(record["segment"]))
                self.last_step = int(record["step"])
            case "rewind":
                self.attempt = int(record["attempt"])
                self.last_step = int(record["from_step"])
                self.rewinds.append((self.attempt, self.last_step))
                self.unfinished.clear()
                self.status = self.ended_at = None
            case "close":
                self.status, self.ended_at = str(record["status"]), float(record["wall_time"])


_PREFIX = '{"crc": "'
_BODY = len('{"crc": "00000000", ')
_TAIL_BYTES = 128
_TAIL_ATTEMPTS = 5
_NO_CRC = "00000000"

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


def _crc_of(line: bytes) -> str:
    """The checksum that a line begins with."""
    return line[9:17].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a read of a journal piece gave."""

    records: list[Record]
    crcs: list[str]
    """Checksum of each record's line."""
    damaged: list[int]
    """Offsets of complete lines that are not what was written."""
    end: int
    """Offset behind the last complete line: where the next read starts."""
    good_end: int
    """Offset behind the last good line."""


def read_chunk(path: Path) -> Chunk:
    """All complete lines of a file. A line without its newline is not there yet."""
    return parse_chunk(read_regular(path))


def parse_chunk(data: bytes, offset: int = 0) -> Chunk:
    """All complete lines of what was read from `offset` on."""
    records: list[Record] = []
    damaged: list[int] = []
    crcs: list[str] = []
    end = good_end = offset
    for line in io.BytesIO(data):
        if not line.endswith(b"\n"):
            break
        start, end = end, end + len(line)
        if (record := decode_line(line)) is None:
            damaged.append(start)
        else:
            records.append(record)
            crcs.append(_crc_of(line))
            good_end = end
    return Chunk(records, crcs, damaged, end, good_end)


@dataclass(slots=True)
class Chain:
    """How far the chain of a run's records was followed, by its writer or by a reader."""

    mark: str
    """What the run's records carry in `run`."""
    seq: int | None = 0
    """Number of the next record; None where it is not known, behind a piece that is missing."""
    crc: str = _NO_CRC
    """Checksum of the last line."""
    num_damaged: int = 0
    """Damaged lines that no gap in the numbers has accounted for yet."""

    @classmethod
    def of(cls, run_id: str) -> Chain:
        """The chain of a run, at its beginning."""
        return cls(f"{zlib.crc32(run_id.encode()):08x}")

    def line(self, record: Mapping[str, Any]) -> bytes:
        """A record as the next line."""
        return encode_line({**record, "run": self.mark, "seq": self.seq, "prev": self.crc})

    def add(self, line: bytes) -> None:
        """That a line was written."""
        self.seq, self.crc = (self.seq or 0) + 1, _crc_of(line)

    def take(self, chunk: Chunk) -> tuple[list[Record], list[str]]:
        """The records of a chunk that continue the chain, and what is wrong with the others."""
        problems = [
            f"the record at byte {offset} is damaged and left out" for offset in chunk.damaged
        ]
        self.num_damaged += len(chunk.damaged)
        taken = []
        for record, crc in zip(chunk.records, chunk.crcs, strict=True):
            seq = record.get("seq")
            if record.get("run") != self.mark or not isinstance(seq, int):
                problems.append(f"record {seq} belongs to another run and is left out")
            elif self.seq is not None and seq < self.seq:
                problems.append(f"record {seq} does not follow record {self.seq - 1}; left out")
            elif seq == self.seq and record.get("prev") != self.crc:
                problems.append(f"record {seq} does not follow the one before; left out")
            else:
                problems += self.missing(seq, f"before record {seq}")
                taken.append(record)
                self.seq, self.crc = seq + 1, crc
        return taken, problems

    def missing(self, seq: int, where: str) -> list[str]:
        """That records are missing, if the next one has the number `seq`; mostly nothing."""
        gap = 0 if self.seq is None else seq - self.seq
        num_missing = gap - self.num_damaged
        self.num_damaged = max(0, self.num_damaged - gap)
        records = "record is" if num_missing == 1 else "records are"
        return [f"{num_missing} {records} missing {where}"] if num_missing > 0 else []


def read_tail(layout: Layout) -> tuple[int, str]:
    """How many records were acknowledged, as `journal.tail` says, and what is wrong with it."""
    problem = ""
    for _ in range(_TAIL_ATTEMPTS):  # the writer may be at it
        try:
            record = decode_line(read_regular(layout.tail).rstrip() + b"\n") or {}
        except FileNotFoundError:
            problem = "it is missing, so records at the journal's end may be missing"
        except OSError as error:
            problem = str(error.strerror)
        else:
            if isinstance(record.get("seq"), int):
                return int(record["seq"]), ""
            problem = "it is damaged, so records at the journal's end may be missing"
    return 0, problem


class Journal:
    """The live piece, open for appending. One process at a time: the caller holds the lock."""

    def __init__(self, layout: Layout, piece: int, chain: Chain, size: int) -> None:
        """`size`: bytes of the piece that count; a crash may have left more behind them."""
        self._layout = layout
        self._chain = chain
        self.piece = piece
        self.size = size
        self._descriptor = os.open(layout.journal, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._tail = os.open(layout.tail, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(self._descriptor).st_size > size:
            os.ftruncate(self._descriptor, size)
            os.fsync(self._descriptor)
        self._note_tail()

    @classmethod
    def create(cls, layout: Layout, header: Mapping[str, Any], piece: int, chain: Chain) -> Journal:
        """Start a piece. Its header is durable before the file has its name."""
        line = chain.line({"kind": "journal", "piece": piece, **header})
        chain.add(line)
        temporary = layout.journal.with_name(f"journal.{new_id()}.tmp")
        write_new_file(temporary, line)
        os.replace(temporary, layout.journal)
        sync_path(layout.root)
        return cls(layout, piece, chain, len(line))

    def append(self, record: Mapping[str, Any]) -> None:
        """Write and fsync one record. When this returns, the record is acknowledged.

        Raises:
            StoreWriteError: the disk refused; what it had taken of the record is cut off again.
        """
        line = self._chain.line(record)
        try:
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self.size)
            raise StoreWriteError(f"{self._layout.journal}: {error.strerror}") from error
        self._chain.add(line)
        self.size += len(line)
        self._note_tail()

    def _note_tail(self) -> None:
        """Note the acknowledged end. Not synced: after a power cut it may only be an older one."""
        line = encode_line({"kind": "tail", "seq": self._chain.seq})
        os.pwrite(self._tail, line[:-1].ljust(_TAIL_BYTES - 1) + b"\n", 0)

    def rotate(self, header: Mapping[str, Any]) -> None:
        """Complete this piece and start the next one.

        Between the two renames there is no live piece: readers show the complete ones, and a
        resumed writer starts one after a crash.
        """
        self.close()
        complete_piece(self._layout, self.piece)
        fresh = Journal.create(self._layout, header, self.piece + 1, replace(self._chain))
        self._descriptor, self._tail = fresh._descriptor, fresh._tail
        self.piece, self._chain, self.size = fresh.piece, fresh._chain, fresh.size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            os.close(self._tail)
            self._descriptor = -1


def complete_piece(layout: Layout, number: int) -> None:
    """Move the live piece, which has this number, among the complete ones."""
    layout.pieces.mkdir(exist_ok=True)
    os.rename(layout.journal, layout.piece(number))
    sync_path(layout.pieces)
