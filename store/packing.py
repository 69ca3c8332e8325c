"""Merge segments into packs: thousands of small files become a few large ones.

Packing reads complete pieces of the journal, never the live one, so that it may run beside a
writer. Its only commit is the replacement of MANIFEST.json: killed before it, nothing happened;
killed after it, the next pack removes what is left over.
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

from .commands import remove_commands
from .committer import load_committer
from .durable import FileLock, is_locked, new_id, parquet_options, sync_folder, write_all
from .errors import RunBusyError, StoreError
from .events import EventColumns
from .index import read_run_json
from .journal import Record, read_chunk
from .layout import FileEntry, Layout, Pack, Segment
from .lookup import conform
from .manifest import Dropped, Manifest, read_manifest, write_manifest
from .schema import DATA_TABLES, EVENT_TABLES, SCHEMA_VERSION, arrow_schema
from .state import RunState

_MAX_STEPS = 1024
_GRACE_S = 30.0
_METRIC_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What a pack did."""

    num_steps: int
    num_packs: int
    num_files_before: int
    num_files_after: int
    damaged: tuple[str, ...]
    """Segments that could not be packed and stay as they are, each with the reason."""


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
        is_live = not _rotate_if_idle(layout)
        report = _pack_pieces(layout)
        time.sleep((_GRACE_S if is_live else 0.0) if grace_s is None else grace_s)
        _remove_dropped(layout)
        return report
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
    manifest = read_manifest(layout)
    _remove_orphans(layout, manifest)
    last_piece = _last_complete_piece(layout)
    pieces = range(manifest.piece + 1, last_piece + 1)
    packs: list[Pack] = []
    loose: list[Segment] = []
    damaged: list[str] = []
    dropped = [f"journal/{layout.piece(number).name}" for number in pieces]
    acknowledged: set[str] = set()
    groups = list(_groups(layout, pieces))
    for group in groups:
        made = _write_pack(layout, group, damaged, loose)
        if made.files:
            packs.append(made)
        for record in group.records:
            acknowledged |= {row["command_id"] for row in record.get("command_events", ())}
    kept = {segment.id for segment in loose}
    done = [s for group in groups for s in group.segments if s.id not in kept]
    dropped += [entry.path for segment in done for entry in segment.files]
    if pieces:
        now = time.time()
        write_manifest(
            layout,
            Manifest(
                piece=last_piece,
                packs=(*manifest.packs, *packs),
                loose=(*manifest.loose, *loose),
                dropped=(*manifest.dropped, *(Dropped(path=p, since=now) for p in dropped)),
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


def _last_complete_piece(layout: Layout) -> int:
    """A piece is complete once the live one has a higher number."""
    try:
        header = read_chunk(layout.journal).records[0]
    except FileNotFoundError:
        return 0  # between two renames of the writer: the next pack has more luck
    return int(header["piece"]) - 1


def _groups(layout: Layout, pieces: Sequence[int]) -> Iterator[_Group]:
    """The records of some pieces, cut where the attempt changes and at a number of steps."""
    group: _Group | None = None
    for number in pieces:
        chunk = read_chunk(layout.piece(number))
        if chunk.damaged:
            raise StoreError(
                f"{layout.piece(number)}: the record at byte {chunk.damaged[0]} is damaged; the "
                "piece stays unpacked, so that nothing more is lost"
            )
        state = RunState("")
        for record in chunk.records:
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
            files.append(_write(layout, relative, name, rows, row_group_size=None))
    for name, table in tables.items():
        relative = f"pack/{name}/{first:08d}-{last:08d}-{identity}.parquet"
        if name == "metrics":
            table = table.sort_by([("key", "ascending"), ("step", "ascending")])
        files.append(_write(layout, relative, name, iter([table]), row_group_size=_METRIC_ROWS))
    return Pack(
        id=identity, attempt=group.attempt, first_step=first, last_step=last, files=tuple(files)
    )


def _segment_damage(layout: Layout, segment: Segment) -> str:
    for entry in segment.files:
        path = layout.root / entry.path
        try:
            data = path.read_bytes()
        except OSError as error:
            return f"{path}: {error.strerror}"
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            return f"{path}: its content changed after it was written"
    return ""


class _HashingFile:
    """A file to write to that hashes what passes."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        write_all(self._descriptor, view)
        self._hash.update(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)

    def finish(self) -> str:
        """Make the file durable; its SHA-256."""
        os.fsync(self._descriptor)
        self.close()
        return self._hash.hexdigest()


def _write(
    layout: Layout,
    relative: str,
    name: str,
    tables: Iterator[pa.Table],
    *,
    row_group_size: int | None,
) -> FileEntry:
    path = layout.root / relative
    path.parent.mkdir(exist_ok=True)  # a table that came after the run began
    num_rows = 0
    sink = _HashingFile(path)
    try:
        writer = pq.ParquetWriter(sink, arrow_schema(name), **parquet_options(name, packed=True))
        for table in tables:
            writer.write_table(table, row_group_size=row_group_size)
            num_rows += table.num_rows
        writer.close()
        digest = sink.finish()
        sync_folder(path.parent)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StoreError(f"{path}: {error.strerror or error}") from error
    finally:
        sink.close()
    return FileEntry(
        table=name,
        path=relative,
        num_rows=num_rows,
        num_bytes=sink.size,
        sha256=digest,
        schema_version=SCHEMA_VERSION,
    )


def _remove_orphans(layout: Layout, manifest: Manifest) -> None:
    """Pack files that no manifest names: a killed pack left them."""
    named = {entry.path for made in manifest.packs for entry in made.files}
    for path in layout.root.glob("pack/*/*.parquet"):
        if str(path.relative_to(layout.root)) not in named:
            path.unlink(missing_ok=True)


def _remove_dropped(layout: Layout) -> None:
    manifest = read_manifest(layout)
    if manifest.dropped:
        for entry in manifest.dropped:
            (layout.root / entry.path).unlink(missing_ok=True)
        write_manifest(layout, replace(manifest, dropped=()))


def main() -> None:
    """`python -m echoscope.store.packing RUN`: what a writer starts beside itself."""
    os.nice(10)
    pack(sys.argv[1])


if __name__ == "__main__":
    main()
