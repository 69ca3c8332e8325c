"""Merge segments into packs: thousands of small files become a few large ones.

Packing reads complete pieces of the journal, never the live one, so that it may run beside a
writer. Its only commit is the replacement of MANIFEST.json: killed before it, nothing happened;
killed after it, the next pack removes what is left over.

Nothing is deleted that has not just been proven whole elsewhere: a piece is packed only if it is
what its successor says of it, each pack is read back and hashed, and hashed again before what it
replaced goes. A damaged piece stays with the segments that it names, and its neighbours are packed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import RunBusyError, StoreError
from ..query.lookup import conform
from ..schema import DATA_TABLES, EVENT_TABLES
from ..steer.commands import remove_commands
from .committer import load_committer
from .durable import (
    FileLock,
    is_locked,
    new_id,
    read_regular,
)
from .events import EventColumns
from .index import read_run_json
from .integrity import damage_of
from .journal import Chunk, Follower, Record, parse_chunk, read_chunk, run_mark
from .layout import Layout, Pack, Segment, is_own_name
from .packs.manifest import Dropped, Manifest, PieceProof, read_manifest, write_manifest
from .packs.pack_file import write_pack_file
from .state import RunState

_MAX_STEPS = 1024
_GRACE_S = 30.0
_MAX_GROUPS = 16
_MIN_GROUP_ROWS = 16
"""Row groups of a packed event table, and rows of one: a damage costs one row group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What a pack did."""

    num_steps: int
    num_packs: int
    num_files_before: int
    num_files_after: int
    damaged: tuple[str, ...]
    """Pieces and segments that could not be packed and stay as they are, each with the reason."""


@dataclass(slots=True)
class _Group:
    """Records of one attempt that go into one pack."""

    attempt: int
    segments: list[Segment] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    num_steps: int = 0


def pack(path: str | Path, *, grace_s: float | None = None) -> PackReport:
    """Pack what the journal's complete pieces name; of a run that nobody writes, everything.

    Args:
        grace_s: how long replaced files stay for readers that have them open; by default 30
            seconds beside a writer and none otherwise (a reader that misses a file looks again).

    Raises:
        NotARunError: no run there.
        RunBusyError: another process packs it.
        StoreError: the run cannot be read, or the disk refuses.
    """
    layout = Layout(Path(path).resolve())
    read_run_json(layout)
    lock = FileLock(layout.pack_lock)
    try:
        lock.acquire()
    except RunBusyError:
        raise RunBusyError(f"{layout.root}: another process is packing this run") from None
    try:
        for leftover in layout.left_by_packing():
            leftover.unlink(missing_ok=True)
        is_live = not _rotate_if_idle(layout)
        report = _pack_pieces(layout)
        time.sleep((_GRACE_S if is_live else 0.0) if grace_s is None else grace_s)
        kept = _remove_dropped(layout)
        return replace(report, damaged=(*report.damaged, *kept))
    finally:
        lock.release()


def _rotate_if_idle(layout: Layout) -> bool:
    """Complete the live piece where no writer does; whether the run is nobody's."""
    if is_locked(layout.writer_lock):
        return False
    lock = FileLock(layout.writer_lock)
    try:
        lock.acquire()
    except RunBusyError:
        return False
    try:
        committer, _ = load_committer(layout, rotate_every=1)
        if len(read_chunk(layout.journal).records) > 1:
            committer.rotate()
        committer.release()
    finally:
        lock.release()
    return True


def _pack_pieces(layout: Layout) -> PackReport:
    run_id = str(read_run_json(layout)["run_id"])
    manifest = read_manifest(layout)
    pieces, problems = _complete_pieces(layout, manifest, run_id)
    if not problems:
        _remove_orphans(layout, manifest)
    good = [piece for piece in pieces if piece.is_whole]
    packs: list[Pack] = []
    loose: list[Segment] = []
    damaged = list(problems)
    acknowledged: set[str] = set()
    groups = list(_groups(good, run_id))
    for group in groups:
        made = _write_pack(layout, group, damaged, loose)
        if made.files:
            packs.append(made)
        for record in group.records:
            acknowledged |= {row["command_id"] for row in record.get("command_events", ())}
    kept = {segment.id for segment in loose}
    done = [s for group in groups for s in group.segments if s.id not in kept]
    dropped = [f"journal/{piece.path.name}" for piece in good]
    dropped += [entry.path for segment in done for entry in segment.files]
    if pieces:
        now, ids = time.time(), tuple(made.id for made in packs)
        write_manifest(
            layout,
            Manifest(
                run_id=run_id,
                piece=pieces[-1].number,
                packs=(*manifest.packs, *packs),
                loose=(*manifest.loose, *loose),
                dropped=(
                    *manifest.dropped,
                    *(Dropped(path=path, since=now, packs=ids) for path in dropped),
                ),
                pieces=(*manifest.pieces, *(piece.proof for piece in good)),
                kept=(*manifest.kept, *(p.number for p in pieces if not p.is_whole)),
                state=pieces[-1].state_after,
            ),
        )
        remove_commands(layout.root, acknowledged)
    return PackReport(
        num_steps=sum(group.num_steps for group in groups),
        num_packs=len(packs),
        num_files_before=len(dropped),
        num_files_after=sum(len(made.files) for made in packs),
        damaged=tuple(damaged),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A complete piece of the journal."""

    number: int
    path: Path
    records: list[Record]
    is_whole: bool
    proof: PieceProof
    state_after: dict[str, Any] | None
    """What the header of the next piece says."""


def _complete_pieces(
    layout: Layout, manifest: Manifest, run_id: str
) -> tuple[list[_Piece], list[str]]:
    """The pieces that wait to be packed, and what is wrong with them, by name.

    A piece is whole if all its records are there in order, and if its length and SHA-256 are what
    its successor says. Pieces of format 1 have no such words about them.

    Raises:
        StoreError: the manifest does not know of packs that the journal does.
    """
    try:
        live = read_chunk(layout.journal)
    except FileNotFoundError:
        return [], []  # between two renames of the writer: the next pack has more luck
    numbers = layout.piece_numbers()
    first = manifest.piece + 1
    if not manifest.packs and numbers and numbers[0] > first and manifest.piece == 0:
        raise StoreError(
            f"{layout.manifest}: it is missing, and pieces of the journal were packed; "
            f"`echoscope runs repair {layout.root}` rebuilds it"
        )
    header = live.records[0] if live.records else {}
    if header.get("kind") != "journal":
        return [], [f"{layout.journal}: the journal has lost its first record"]
    pieces: list[_Piece] = []
    problems: list[str] = []
    last = int(header["piece"]) - 1
    headers = {last + 1: header}
    chunks: dict[int, tuple[Chunk, bytes]] = {}
    for number in range(first, last + 1):
        try:
            data = read_regular(layout.piece(number))
        except FileNotFoundError:
            problems.append(f"{layout.piece(number)}: it is missing")
            continue
        chunks[number] = (parse_chunk(data), data)
        if chunks[number][0].records:
            headers[number] = chunks[number][0].records[0]
    for number, (chunk, data) in chunks.items():
        follower = Follower(run_mark(run_id))
        records = follower.take(chunk)
        successor = headers.get(number + 1, {})
        if successor.get("kind") != "journal":
            successor = {}
        faults = [*follower.problems, *follower.check_end(successor, chunk.end)]
        digest = hashlib.sha256(data).hexdigest()
        previous = successor.get("previous") or {}
        if not faults and previous.get("sha256", digest) != digest:
            faults = ["its content changed after it was written"]
        if not records or records[0]["kind"] != "journal" or records[0]["run_id"] != run_id:
            faults = faults or ["it has lost its first record"]
        is_bound = bool(previous) or not records or not records[0].get("format")
        if not faults and not is_bound:
            faults = ["the piece behind it, which says how long it is, is damaged"]
        path = layout.piece(number)
        problems += [f"{path}: {what}" for what in faults]
        state = None
        if successor:
            names = set(RunState("").header(0.0))
            state = {name: value for name, value in successor.items() if name in names}
        pieces.append(
            _Piece(
                number=number,
                path=path,
                records=records,
                is_whole=not faults,
                proof=PieceProof(piece=number, num_bytes=len(data), sha256=digest),
                state_after=state,
            )
        )
    return pieces, problems


def _groups(pieces: Sequence[_Piece], run_id: str) -> Iterator[_Group]:
    """The records of some pieces, cut where the attempt changes and at a number of steps."""
    group: _Group | None = None
    for piece in pieces:
        state = RunState(run_id)
        for record in piece.records:
            before = len(state.committed)
            state.apply(record)
            if record["kind"] not in ("step", "event"):
                continue
            is_full = group is not None and group.num_steps >= _MAX_STEPS
            if group is None or group.attempt != record["attempt"] or is_full:
                if group is not None:
                    yield group
                group = _Group(attempt=record["attempt"])
            group.segments += state.committed[before:]
            group.records.append(record)
            group.num_steps += record["kind"] == "step"
    if group is not None:
        yield group


def _write_pack(layout: Layout, group: _Group, damaged: list[str], loose: list[Segment]) -> Pack:
    events = EventColumns(read_run_json(layout)["run_id"])
    for record in group.records:
        events.add(record)
    tables = {name: events.table(name) for name in EVENT_TABLES if not events.is_empty(name)}
    steps = {record["step"] for record in group.records}
    for table in tables.values():
        if "step" in table.column_names:
            steps |= set(table.column("step").to_pylist())
    first, last, identity = min(steps), max(steps), new_id()
    good = []
    for segment in group.segments:
        why = _segment_damage(layout, segment)
        if why:
            damaged.append(why)
            loose.append(segment)
        else:
            good.append(segment)
    files = []
    for name in DATA_TABLES:
        paths = [e.path for segment in good for e in segment.files if e.table == name]
        if paths:
            relative = f"pack/{name}/{first:08d}-{last:08d}-{identity}.parquet"
            rows = (conform(pq.read_table(layout.root / p), name) for p in paths)
            files.append(write_pack_file(layout, relative, name, rows))
    for name, table in tables.items():
        relative = f"pack/{name}/{first:08d}-{last:08d}-{identity}.parquet"
        if name == "metrics":
            table = table.sort_by([("key", "ascending"), ("step", "ascending")])
        files.append(write_pack_file(layout, relative, name, _row_groups(table)))
    return Pack(
        id=identity, attempt=group.attempt, first_step=first, last_step=last, files=tuple(files)
    )


def _row_groups(events: pa.Table) -> Iterator[pa.Table]:
    """Few row groups, so that queries stay fast, and several, so that one damage costs little."""
    size = max(_MIN_GROUP_ROWS, -(-events.num_rows // _MAX_GROUPS))
    return (events.slice(start, size) for start in range(0, events.num_rows, size))


def _segment_damage(layout: Layout, segment: Segment) -> str:
    for entry in segment.files:
        path = layout.root / entry.path
        try:
            data = read_regular(path)
        except OSError as error:
            return f"{path}: {error.strerror}"
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            return f"{path}: its content changed after it was written"
    return ""


def _remove_orphans(layout: Layout, manifest: Manifest) -> None:
    """Pack files that no manifest names: a killed pack left them.

    Their content lies in pieces and segments that were just found whole.
    """
    named = {entry.path for made in manifest.packs for entry in made.files}
    for path in layout.root.glob("pack/*/*.parquet"):
        relative = str(path.relative_to(layout.root))
        if relative not in named and is_own_name(relative):
            path.unlink(missing_ok=True)


def _remove_dropped(layout: Layout) -> list[str]:
    """Delete what packs replaced, once these are proven whole; what stays, with the reason."""
    manifest = read_manifest(layout)
    if not manifest.dropped:
        return []
    needed = {identity for entry in manifest.dropped for identity in entry.packs}
    bad = {
        made.id: f"{layout.root / entry.path}: {why}; what it replaced stays"
        for made in manifest.packs
        if made.id in needed
        for entry in made.files
        if (why := damage_of(layout.root, entry))
    }
    bad |= {
        identity: f"{layout.manifest}: pack {identity} is not named; what it replaced stays"
        for identity in needed - {made.id for made in manifest.packs}
    }
    kept = [entry for entry in manifest.dropped if bad.keys() & set(entry.packs)]
    for entry in manifest.dropped:
        if entry not in kept:
            (layout.root / entry.path).unlink(missing_ok=True)
    write_manifest(layout, replace(manifest, dropped=tuple(kept)))
    return list(bad.values())


def main() -> None:
    """`python -m echoscope.store.log.packing RUN`: what a writer starts beside itself."""
    os.nice(10)
    sys.exit(1 if pack(sys.argv[1]).damaged else 0)


if __name__ == "__main__":
    main()
