"""Merge segments into packs: thousands of small files become a few large ones.

A complete piece of the journal becomes a pack, with the segments that it names. The live piece is
never packed, so that packing may run beside a writer. The only commit is the rename of the pack's
folder: killed before it, nothing happened; killed after it, the next pack removes what is left.

Nothing is deleted that has not just been proven whole elsewhere: a piece is packed only if it and
its segments are whole and the next piece continues it; each file of the pack is read back and
hashed, and hashed again before what it replaced goes. A damaged piece stays as it is.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import RunBusyError, StoreError
from ..schema import DATA_TABLES, EVENT_TABLES
from ..steer.commands import remove_commands
from .committer import load_committer
from .durable import FileLock, is_locked, new_id, sync_path
from .events import EventColumns
from .index import read_run_json
from .journal import Chain, JournalState, Record, read_chunk
from .layout import FileGroup, Layout
from .packs import Pack, read_pack, write_pack_json
from .parquet import damage_of, write_pack_file
from .remote.pulling import refuse_copy

_GRACE_S = 30.0


@dataclass(slots=True, kw_only=True)
class PackReport:
    """What a pack did."""

    num_steps: int = 0
    num_packs: int = 0
    num_files_before: int = 0
    num_files_after: int = 0
    damaged: list[str] = field(default_factory=list)
    """Why pieces and what packs replaced stay as they are."""


def pack(path: str | Path, *, grace_s: float | None = None) -> PackReport:
    """Pack the journal's complete pieces; of a run that nobody writes, everything.

    Args:
        grace_s: how long replaced files stay for readers that have them open; by default 30
            seconds beside a writer and none otherwise (a reader that misses a file looks again).

    Raises:
        NotARunError: no run there.
        RunBusyError: another process packs it.
        StoreError: the run cannot be read, or the disk refuses.
    """
    layout = Layout(Path(path).resolve())
    refuse_copy(layout)
    packing = _Packing(layout, str(read_run_json(layout)["run_id"]))
    lock = FileLock(layout.pack_lock)
    try:
        lock.acquire()
    except RunBusyError:
        raise RunBusyError(f"{layout.root}: another process is packing this run") from None
    try:
        for leftover in layout.packs.glob("[0-9]*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        is_live = not _rotate_if_idle(layout)
        packing.pack_pieces()
        time.sleep((_GRACE_S if is_live else 0.0) if grace_s is None else grace_s)
        packing.remove_packed()
        return packing.report
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{layout.root}: {error.strerror or error}") from error
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


@dataclass(slots=True)
class _Packing:
    """The work on one run."""

    layout: Layout
    run_id: str
    report: PackReport = field(default_factory=PackReport)

    def pack_pieces(self) -> None:
        """Make a pack of each complete piece that is whole."""
        layout, chain, packed = self.layout, Chain.of(self.run_id), self.layout.pack_numbers()
        for number in range(1, max([0, *packed, *layout.piece_numbers()]) + 1):
            if number in packed:
                chain = read_pack(layout, number, self.run_id).chain
                continue
            try:
                records, problems = chain.take(read_chunk(layout.piece(number)))
            except FileNotFoundError:
                self.report.damaged.append(f"{layout.piece(number)}: it is missing")
                chain.seq = None
                continue
            header = self._next_header(number, chain)
            if header is None:
                problems.append("the piece behind it does not continue it")
                chain.seq = None  # which is no fault of that piece
            elif not problems:
                problems = self._pack_piece(number, records, chain, header)
            self.report.damaged += [f"{layout.piece(number)}: {what}" for what in problems]

    def remove_packed(self) -> None:
        """Delete what packs replaced, once these are proven whole: first segments, then pieces."""
        layout = self.layout
        for number in sorted(set(layout.piece_numbers()) & set(layout.pack_numbers())):
            made = read_pack(layout, number, self.run_id)
            bad = [f"{why}; what it replaced stays" for why in self._damages(made.groups)]
            self.report.damaged += bad
            if bad:
                continue
            records = read_chunk(layout.piece(number)).records
            for segment in _segments(records):
                for entry in segment.files:
                    (layout.root / entry.path).unlink(missing_ok=True)
            events = (event for record in records for event in record.get("command_events", ()))
            remove_commands(layout.root, {event["command_id"] for event in events})
            layout.piece(number).unlink()

    def _next_header(self, number: int, chain: Chain) -> Record | None:
        """The first record of the next piece, if it continues the chain."""
        for path in (self.layout.piece(number + 1), self.layout.journal):
            with suppress(FileNotFoundError):
                first = next(iter(read_chunk(path).records), {})
                is_next = (first.get("seq"), first.get("prev")) == (chain.seq, chain.crc)
                return first if first.get("kind") == "journal" and is_next else None
        return None

    def _damages(self, groups: Sequence[FileGroup]) -> list[str]:
        root = self.layout.root
        entries = [entry for group in groups for entry in group.files]
        return [f"{root / e.path}: {why}" for e in entries if (why := damage_of(root, e))]

    def _pack_piece(
        self, number: int, records: Sequence[Record], chain: Chain, header: Record
    ) -> list[str]:
        """Make a pack of a whole piece; why it cannot be made, which mostly is nothing."""
        layout, report, segments = self.layout, self.report, _segments(records)
        if whys := self._damages(segments):
            return whys
        folder = layout.pack(number).with_suffix(".tmp")
        folder.mkdir(parents=True)
        events = [record for record in records if record["kind"] in ("step", "event")]
        groups = tuple(
            self._write_group(folder, number, attempt, list(parts))
            for attempt, parts in itertools.groupby(events, lambda record: int(record["attempt"]))
        )
        state = {name: header[name] for name in JournalState("").header(0.0)}
        first = int(records[0]["seq"])
        pack = Pack(groups=groups, first_seq=first, chain=chain, state=state)
        write_pack_json(folder, pack)
        sync_path(folder)
        folder.rename(layout.pack(number))
        sync_path(layout.packs)
        report.num_packs += 1
        report.num_steps += sum(record["kind"] == "step" for record in events)
        report.num_files_before += 1 + sum(len(segment.files) for segment in segments)
        report.num_files_after += 1 + sum(len(group.files) for group in groups)
        return []

    def _write_group(
        self, folder: Path, number: int, attempt: int, records: Sequence[Record]
    ) -> FileGroup:
        """The files of the steps of one attempt."""
        identity, segments = new_id(), _segments(records)
        events = EventColumns(self.run_id)
        for record in records:
            events.add(record)
        tables = {name: rows for name in EVENT_TABLES if (rows := events.table(name)).num_rows}
        steps = {record["step"] for record in records}
        for table in tables.values():
            if "step" in table.column_names:
                steps |= set(table.column("step").to_pylist())
        if "metrics" in tables:
            order = [("key", "ascending"), ("step", "ascending")]
            tables["metrics"] = tables["metrics"].sort_by(order)
        row_groups: dict[str, Iterable[pa.Table]] = {name: [t] for name, t in tables.items()}
        for name in DATA_TABLES:
            paths = [e.path for segment in segments for e in segment.files if e.table == name]
            if paths:
                row_groups[name] = (pq.read_table(self.layout.root / path) for path in paths)
        files = (
            write_pack_file(
                folder, f"pack/{number:06d}/{name}-{attempt}-{identity}.parquet", name, parts
            )
            for name, parts in row_groups.items()
        )
        return FileGroup(
            id=identity,
            attempt=attempt,
            first_step=min(steps),
            last_step=max(steps),
            files=tuple(files),
        )


def _segments(records: Sequence[Record]) -> list[FileGroup]:
    """The segments of acknowledged steps that some records name."""
    values = (record["segment"] for record in records if record["kind"] == "step")
    return [FileGroup.from_json(value) for value in values if value is not None]


def main() -> None:
    """`python -m echoscope.store.log.packing RUN`: what a writer starts beside itself."""
    os.nice(10)
    sys.exit(1 if pack(sys.argv[1]).damaged else 0)


if __name__ == "__main__":
    main()
