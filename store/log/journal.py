"""The commit log: one fsynced line = one acknowledged step.

Each line is a JSON object that begins with the CRC-32 of the rest of the line, so that a line torn
by a crash or rotted on the disk is recognised. A record also carries its place: `run` (whose it
is), `seq` (the how manieth of its piece) and `prev` (the checksum of the line before), so that a
record that is missing, repeated or another run's is recognised, too.

The log is written in pieces: `journal.ndjson` is the live one, `journal/000001.ndjson` and so on
are complete and wait to be packed. Every piece begins with a header that repeats what the pieces
before it decided (`state.py`) and says how long the piece before it is, with its SHA-256.
`journal.tail` says of the live piece up to where its records were acknowledged.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import StoreError, StoreWriteError
from .durable import (
    CHECKED_FORMAT,
    new_id,
    open_regular,
    read_regular,
    sync_folder,
    write_all,
    write_new_file,
)
from .layout import Layout

_PREFIX = '{"crc": "'
_BODY = len('{"crc": "00000000", ')
_TAIL_BYTES = 128
_NO_CRC = "00000000"
_PLACE = ("crc", "run", "seq", "prev")

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


def crc_of(line: bytes) -> str:
    """The checksum that a line begins with."""
    return line[9:17].decode(errors="replace")


def run_mark(run_id: str) -> str:
    """What the records of a run carry in `run`: 8 hex characters."""
    return f"{zlib.crc32(run_id.encode()):08x}"


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
    crcs: list[str] = field(default_factory=list)
    """Checksum of each record's line."""


def read_chunk(path: Path, offset: int = 0) -> Chunk:
    """All complete lines from `offset` on. A line without its newline is not there yet."""
    with open_regular(path) as file:
        return read_chunk_of(file, offset)


def read_chunk_of(file: BinaryIO, offset: int) -> Chunk:
    """`read_chunk` of an open file."""
    file.seek(offset)
    return parse_chunk(file.read(), offset)


def parse_chunk(data: bytes, offset: int = 0) -> Chunk:
    """All complete lines of what was read from `offset` on."""
    records: list[Record] = []
    damaged: list[int] = []
    crcs: list[str] = []
    start, good_end = 0, offset
    while (stop := data.find(b"\n", start)) >= 0:
        record = decode_line(data[start : stop + 1])
        if record is None:
            damaged.append(offset + start)
        else:
            records.append(record)
            good_end = offset + stop + 1
            crcs.append(crc_of(data[start : start + _BODY]))
        start = stop + 1
    return Chunk(records, offset + start, damaged, good_end, crcs)


@dataclass(slots=True)
class Follower:
    """Reads one piece in order and tells what of it is missing, repeated or not this run's.

    Records of format 1 have no place; they are taken as they come.
    """

    mark: str
    """`run_mark` of the run."""
    seq: int = 0
    """Records of the piece that were written so far."""
    crc: str | None = None
    """Checksum of the last line; None where it is not known."""
    num_lost: int = 0
    """Damaged lines that no gap in the numbers has accounted for yet."""
    problems: list[str] = field(default_factory=list)
    """What is wrong, in words, with the last chunk."""

    def take(self, chunk: Chunk) -> list[Record]:
        """The records of a chunk that belong to the piece, in the order they were written."""
        self.problems = [f"the record at byte {at} is damaged and left out" for at in chunk.damaged]
        self.num_lost += len(chunk.damaged)
        entries = []
        for record, crc in zip(chunk.records, chunk.crcs, strict=True):
            if record.get("run", self.mark) == self.mark:
                entries.append((record, crc))
            else:
                what = f"record {record.get('seq')} belongs to another run and is left out"
                self.problems.append(what)
        seqs = [record.get("seq", -1) for record, _ in entries]
        if any(later < earlier for earlier, later in itertools.pairwise(seqs)):
            entries.sort(key=lambda entry: entry[0].get("seq", -1))
            self.problems.append("its records were not in order")
        taken: list[Record] = []
        for record, crc in entries:
            seq = record.get("seq")
            if seq is None:
                seq = self.seq
            elif seq < self.seq:
                self.problems.append(f"record {seq} occurs twice; the second one is left out")
                continue
            elif seq == self.seq and self.crc is not None and record["prev"] != self.crc:
                self.problems.append(f"record {seq} does not follow the one before and is left out")
                continue
            gap = seq - self.seq
            if gap > self.num_lost:
                lost = _records(gap - self.num_lost)
                self.problems.append(f"{lost} missing before record {seq}")
            self.num_lost = max(0, self.num_lost - gap)
            taken.append(record)
            self.seq, self.crc = seq + 1, crc
        return taken

    def check_end(self, successor: Mapping[str, Any], end: int) -> list[str]:
        """What the next piece's header says against this piece, which was read up to `end`."""
        previous = successor.get("previous")
        if previous is None:
            return []
        missing = previous["records"] - self.seq - self.num_lost
        if missing > 0:
            return [f"{_records(missing)} missing at its end"]
        if end != previous["bytes"]:
            return [f"it has {end} bytes, not {previous['bytes']}"]
        return []


def _records(count: int) -> str:
    return "1 record is" if count == 1 else f"{count} records are"


def encode_piece(records: Sequence[Mapping[str, Any]], run_id: str, crc: str = _NO_CRC) -> bytes:
    """The lines of a piece that consists of some records; whatever place they had is forgotten.

    Args:
        crc: checksum of the last line of the piece before.
    """
    written = _Written(run_mark(run_id), crc=crc)
    lines = []
    for record in records:
        lines.append(written.line({k: v for k, v in record.items() if k not in _PLACE}))
        written.take(lines[-1])
    return b"".join(lines)


@dataclass(frozen=True, slots=True)
class Tail:
    """Up to where the live piece of the journal was acknowledged."""

    piece: int
    size: int
    crc: str
    """Checksum of the last acknowledged line."""


def encode_tail(piece: int, size: int, last: str) -> bytes:
    """The content of `journal.tail`, of a fixed length."""
    line = encode_line({"kind": "tail", "piece": piece, "bytes": size, "last": last})
    return line[:-1].ljust(_TAIL_BYTES - 1) + b"\n"


def read_tail(layout: Layout) -> Tail | None:
    """The acknowledged end of the journal; None where the run carries none.

    Raises:
        StoreError: damaged.
    """
    try:
        record = decode_line(read_regular(layout.tail).rstrip() + b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{layout.tail}: {error.strerror}") from error
    try:
        if record is not None:
            return Tail(int(record["piece"]), int(record["bytes"]), str(record["last"]))
    except (KeyError, TypeError, ValueError):
        pass
    raise StoreError(
        f"{layout.tail}: it is damaged, so records at the journal's end may be missing"
    )


@dataclass(slots=True)
class _Written:
    """What the live piece consists of, as far as it is acknowledged."""

    mark: str
    size: int = 0
    seq: int = 0
    crc: str = _NO_CRC
    digest: Any = field(default_factory=hashlib.sha256)

    def line(self, record: Mapping[str, Any]) -> bytes:
        return encode_line({**record, "run": self.mark, "seq": self.seq, "prev": self.crc})

    def take(self, line: bytes) -> None:
        self.size += len(line)
        self.seq += 1
        self.crc = crc_of(line)
        self.digest.update(line)

    def proof(self, piece: int) -> dict[str, Any]:
        """What the next header says of this piece."""
        return {
            "piece": piece,
            "bytes": self.size,
            "records": self.seq,
            "sha256": self.digest.hexdigest(),
        }


class Journal:
    """The live piece, open for appending. One process at a time: the caller holds the lock."""

    def __init__(self, layout: Layout, piece: int, written: _Written) -> None:
        self._layout = layout
        self._descriptor = os.open(layout.journal, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._tail = os.open(layout.tail, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._written = written
        self.piece = piece
        self._note_tail()

    @property
    def size(self) -> int:
        """Bytes of the live piece that are on the disk."""
        return self._written.size

    @classmethod
    def create(
        cls,
        layout: Layout,
        header: Mapping[str, Any],
        *,
        piece: int,
        previous: Mapping[str, Any] | None = None,
        crc: str = _NO_CRC,
    ) -> Journal:
        """Start a piece. Its header is durable before the file has its name.

        Args:
            previous: number, length and SHA-256 of the piece before.
            crc: checksum of that piece's last line.
        """
        written = _Written(run_mark(header["run_id"]), crc=crc)
        line = written.line(
            {
                "kind": "journal",
                "format": CHECKED_FORMAT,
                "piece": piece,
                "previous": None if previous is None else dict(previous),
                **header,
            }
        )
        written.take(line)
        temporary = layout.journal.with_name(f"journal.{new_id()}.tmp")
        write_new_file(temporary, line)
        os.replace(temporary, layout.journal)
        sync_folder(layout.root)
        return cls(layout, piece, written)

    @classmethod
    def reopen(cls, layout: Layout, run_id: str) -> Journal:
        """Go on with the live piece after a crash: cut what a crash left behind the last record.

        Raises:
            StoreError: acknowledged records of the piece are damaged or missing.
        """
        piece = read_live_piece(layout, run_id)
        header = None if piece is None else piece.header
        if piece is None or header is None:
            raise StoreError(
                f"{layout.journal}: the journal has lost its first record; "
                f"`echoscope runs repair {layout.root}` writes a copy that is whole"
            )
        if header.get("format") and piece.faults:
            raise StoreError(
                f"{layout.journal}: {piece.faults[0]}; `echoscope runs repair {layout.root}` "
                "writes a copy that can go on"
            )
        chunk = piece.chunk
        written = _Written(run_mark(run_id), chunk.good_end, len(chunk.records), chunk.crcs[-1])
        written.digest.update(piece.data[: chunk.good_end])
        made = cls(layout, int(header["piece"]), written)
        if len(piece.data) > chunk.good_end:
            os.ftruncate(made._descriptor, chunk.good_end)
            os.fsync(made._descriptor)
        return made

    def append(self, record: Mapping[str, Any]) -> None:
        """Write and fsync one record. When this returns, the record is acknowledged.

        Raises:
            StoreWriteError: the disk refused; what it had taken of the record is cut off again.
        """
        line = self._written.line(record)
        try:
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self.size)
            raise StoreWriteError(f"{self._layout.journal}: {error.strerror}") from error
        self._written.take(line)
        self._note_tail()

    def _note_tail(self) -> None:
        """Note the acknowledged end. Not synced: after a power cut it may only be an older one."""
        os.pwrite(self._tail, encode_tail(self.piece, self._written.size, self._written.crc), 0)

    def rotate(self, header: Mapping[str, Any]) -> None:
        """Complete this piece and start the next one.

        Between the two renames there is no live piece: readers wait, and a resumed writer starts
        one after a crash.
        """
        self.close()
        self._layout.pieces.mkdir(exist_ok=True)
        os.rename(self._layout.journal, self._layout.piece(self.piece))
        sync_folder(self._layout.pieces)
        proof, crc = self._written.proof(self.piece), self._written.crc
        fresh = Journal.create(self._layout, header, piece=self.piece + 1, previous=proof, crc=crc)
        self._descriptor, self._tail = fresh._descriptor, fresh._tail
        self.piece, self._written = fresh.piece, fresh._written

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            os.close(self._tail)
            self._descriptor = -1


@dataclass(slots=True, kw_only=True)
class Piece:
    """A piece of the journal as far as it can be read."""

    path: Path
    data: bytes = b""
    chunk: Chunk = field(default_factory=lambda: parse_chunk(b""))
    header: Record | None = None
    records: list[Record] = field(default_factory=list)
    """Those behind the header that belong to it, in the order they were written."""
    faults: list[str] = field(default_factory=list)
    """What is wrong with it, in words."""
    follower: Follower = field(default_factory=lambda: Follower(""))


def read_piece(path: Path, run_id: str, *, is_live: bool = False) -> Piece | None:
    """A piece, and what its records say of it; None where it is not there.

    Behind the last good record of the live piece may be what a crash tore: it never counted.
    """
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return None
    chunk = parse_chunk(data)
    if is_live:
        chunk = replace(chunk, damaged=[at for at in chunk.damaged if at < chunk.good_end])
    follower = Follower(run_mark(run_id))
    taken = follower.take(chunk)
    header = taken[0] if taken and taken[0]["kind"] == "journal" else None
    faults = follower.problems
    if header is not None and header.get("run_id") != run_id:
        header, taken, faults = None, [], ["it belongs to another run"]
    return Piece(
        path=path,
        data=data,
        chunk=chunk,
        header=header,
        records=[record for record in taken if record["kind"] != "journal"],
        faults=faults if header or faults else ["it has lost its first record"],
        follower=follower,
    )


def read_live_piece(layout: Layout, run_id: str) -> Piece | None:
    """The live piece; among its faults, what its acknowledged end says against it."""
    piece = read_piece(layout.journal, run_id, is_live=True)
    if piece is not None and piece.header is not None:
        try:
            tail = read_tail(layout)
        except StoreError:
            tail = None  # a power cut may have left it empty: the records speak for themselves
        piece.faults += tail_problems(tail, int(piece.header["piece"]), piece.chunk)
    return piece


def check_ends(pieces: Mapping[int, Piece]) -> None:
    """Hold each piece against what the next one says of it: its records, its length, its SHA-256.

    Args:
        pieces: by number; where the next one is not there, nothing is said.
    """
    for number, piece in pieces.items():
        successor = pieces[number + 1].header if number + 1 in pieces else None
        if successor is None:
            continue
        piece.faults += piece.follower.check_end(successor, piece.chunk.end)
        proven = (successor.get("previous") or {}).get("sha256")
        if not piece.faults and proven not in (None, hashlib.sha256(piece.data).hexdigest()):
            piece.faults.append("its content changed after it was written")


def tail_problems(tail: Tail | None, piece: int, chunk: Chunk) -> list[str]:
    """What the acknowledged end says against the live piece, read from its beginning."""
    if tail is None or tail.piece < piece:
        return []
    if tail.piece > piece:
        return [f"piece {tail.piece} was acknowledged after it, and is missing"]
    if tail.crc not in chunk.crcs:
        return [f"records that were acknowledged are missing or damaged before byte {tail.size}"]
    return []


def piece_proof(path: Path, number: int) -> tuple[dict[str, Any], str]:
    """Number, length and SHA-256 of a complete piece, and the checksum of its last line."""
    data = read_regular(path)
    chunk = parse_chunk(data, 0)
    proof = {
        "piece": number,
        "bytes": len(data),
        "records": len(chunk.records),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return proof, chunk.crcs[-1] if chunk.crcs else _NO_CRC
