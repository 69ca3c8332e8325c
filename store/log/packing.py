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
from collections.abc import Iterable, Iterator
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
from .durable import FileLock, is_locked, new_id
from .events import EventColumns
from .index import read_run_json
from .integrity import damage_of
from .journal import Piece, Record, check_ends, read_chunk, read_piece
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
    waiting = list(pieces)[:-1]
    good = {number: pieces[number] for number in waiting if not pieces[number].faults}
    packs: list[Pack] = []
    loose: list[Segment] = []
    damaged = list(problems)
    acknowledged: set[str] = set()
    groups = list(_groups(good.values(), run_id))
    for group in groups:
        made = _write_pack(layout, group, damaged, loose)
        if made.files:
            packs.append(made)
        for record in group.records:
            acknowledged |= {row["command_id"] for row in record.get("command_events", ())}
    kept = {segment.id for segment in loose}
    done = [s for group in groups for s in group.segments if s.id not in kept]
    dropped = [f"journal/{piece.path.name}" for piece in good.values()]
    dropped += [entry.path for segment in done for entry in segment.files]
    if waiting:
        now, ids = time.time(), tuple(made.id for made in packs)
        last = waiting[-1]
        proofs = (
            PieceProof(
                piece=number,
                num_bytes=len(piece.data),
                sha256=hashlib.sha256(piece.data).hexdigest(),
            )
            for number, piece in good.items()
        )
        write_manifest(
            layout,
            Manifest(
                run_id=run_id,
                piece=last,
                packs=(*manifest.packs, *packs),
                loose=(*manifest.loose, *loose),
                dropped=(
                    *manifest.dropped,
                    *(Dropped(path=path, since=now, packs=ids) for path in dropped),
                ),
                pieces=(*manifest.pieces, *proofs),
                kept=(*manifest.kept, *(n for n in waiting if n not in good)),
                state=_state_of(pieces[last + 1].header if last + 1 in pieces else None),
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


def _complete_pieces(
    layout: Layout, manifest: Manifest, run_id: str
) -> tuple[dict[int, Piece], list[str]]:
    """The pieces that are there, by number, the live one last; what is wrong, by name.

    A piece is whole if all its records are there in order, and if its length and SHA-256 are what
    its successor says. Pieces of format 1 have no such words about them.

    Raises:
        StoreError: the manifest does not know of packs that the journal does.
    """
    live = read_piece(layout.journal, run_id, is_live=True)
    if live is None:
        return {}, []  # between two renames of the writer: the next pack has more luck
    numbers = layout.piece_numbers()
    first = manifest.piece + 1
    if not manifest.packs and numbers and numbers[0] > first and manifest.piece == 0:
        raise StoreError(
            f"{layout.manifest}: it is missing, and pieces of the journal were packed; "
            f"`echoscope runs repair {layout.root}` rebuilds it"
        )
    if live.header is None:
        return {}, [f"{layout.journal}: the journal has lost its first record"]
    pieces: dict[int, Piece] = {}
    problems: list[str] = []
    last = int(live.header["piece"]) - 1
    for number in range(first, last + 1):
        piece = read_piece(layout.piece(number), run_id)
        if piece is None:
            problems.append(f"{layout.piece(number)}: it is missing")
        else:
            pieces[number] = piece
    pieces[last + 1] = live
    check_ends(pieces)
    for number, piece in list(pieces.items())[:-1]:
        successor = pieces[number + 1].header if number + 1 in pieces else None
        is_bound = successor is not None and bool(successor.get("previous"))
        if not piece.faults and piece.header and piece.header.get("format") and not is_bound:
            piece.faults.append("the piece behind it, which says how long it is, is damaged")
        problems += [f"{piece.path}: {what}" for what in piece.faults]
    return pieces, problems


def _state_of(header: Record | None) -> dict[str, Any] | None:
    """The state of the run that a header repeats, for the manifest."""
    if header is None:
        return None
    names = RunState("").header(0.0).keys()
    return {name: value for name, value in header.items() if name in names}


def _groups(pieces: Iterable[Piece], run_id: str) -> Iterator[_Group]:
    """The records of some pieces, cut where the attempt changes and at a number of steps."""
    group: _Group | None = None
    for piece in pieces:
        state = RunState(run_id)
        for record in (*([piece.header] if piece.header else []), *piece.records):
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
        whys = (
            f"{layout.root / entry.path}: {why}"
            for entry in segment.files
            if (why := damage_of(layout.root, entry))
        )
        if why := next(whys, ""):
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
