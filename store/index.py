"""Follows one run's journal and manifest: which files count now, and which events are new."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .durable import read_json_object
from .errors import StoreError
from .events import EventColumns
from .journal import Chunk, Record, read_chunk, read_chunk_of
from .layout import FileEntry, Layout
from .manifest import Manifest, read_manifest
from .schema import DATA_TABLES, TABLES, check_version
from .state import RunState

logger = logging.getLogger("echoscope.store")

_LOAD_ATTEMPTS = 50
_LOAD_PAUSE_S = 0.01


class _MovedError(Exception):
    """A pack or a rotation moved files while we read: start over."""


@dataclass(frozen=True, slots=True)
class VisibleFile:
    """A data file and the last step of it that is visible; None for all of it."""

    entry: FileEntry
    limit: int | None
    first_step: int
    last_step: int


def read_run_json(layout: Layout) -> dict[str, Any]:
    """The content of `run.json`.

    Raises:
        NotARunError: no run there.
        StoreVersionError: written by a newer major version.
        StoreError: damaged.
    """
    layout.require_run()
    value = read_json_object(layout.run_json)
    check_version(value.get("schema_version"), str(layout.root))
    if not isinstance(value.get("run_id"), str):
        raise StoreError(f"{layout.run_json}: has no run_id")
    return value


class RunIndex:
    """State of one run as its files tell it; `refresh` catches up.

    `events` collects rows of the event tables: whoever uses them takes and clears them.
    """

    def __init__(self, path: Path, *, all_attempts: bool = False) -> None:
        self.layout = Layout(path.resolve())
        self.run = read_run_json(self.layout)
        self.run_id: str = self.run["run_id"]
        self.warnings: list[str] = []
        self.bad_paths: set[str] = set()
        """Data files, relative to the run, that cannot be read and are left out."""
        self.damaged_lines: list[str] = []
        self._all_attempts = all_attempts
        self.state = RunState(self.run_id)
        self.manifest = Manifest()
        self.events = EventColumns(self.run_id)
        self._manifest_mark: tuple[int, int, int] | None = None
        self._piece, self._inode, self._offset = 0, 0, 0
        self._load()

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)
            logger.warning(message)

    def refresh(self) -> str:
        """Read what was appended since the last call.

        Returns:
            `"same"`; `"grown"` (new events in `events`, perhaps new files); or `"reset"`
            (everything was read again: `events` holds all of them).
        """
        if self._mark() != self._manifest_mark:
            self._load()
            return "reset"
        try:
            chunks = list(self._new_chunks())
        except (_MovedError, FileNotFoundError):
            self._load()
            return "reset"
        records = [record for chunk in chunks for record in chunk.records]
        if any(record["kind"] == "rewind" for record in records):
            self._load()
            return "reset"
        for record in records:
            self._take(record)
        return "grown" if records else "same"

    def files(self, table: str) -> list[VisibleFile]:
        """The files that hold visible rows of a table, packs first."""
        found = []
        for pack in self.manifest.packs:
            limit = None if self._all_attempts else self.state.limit(pack.attempt)
            is_cut = limit is not None and pack.last_step > limit and not TABLES[table].is_audit
            # Events may be dated before the first step of their pack.
            if is_cut and limit is not None and pack.first_step > limit and table in DATA_TABLES:
                continue
            found += [
                VisibleFile(e, limit if is_cut else None, pack.first_step, pack.last_step)
                for e in pack.files
                if e.table == table
            ]
        state = self.state
        for segment in (*self.manifest.loose, *state.committed, *state.unfinished.values()):
            if self._all_attempts or state.is_visible(segment):
                found += [
                    VisibleFile(e, None, segment.step, segment.step)
                    for e in segment.files
                    if e.table == table
                ]
        return [file for file in found if file.entry.path not in self.bad_paths]

    def packed_rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of an event table that are in packs. Damaged packs are left out, with a warning."""
        rows: list[dict[str, Any]] = []
        for pack in self.manifest.packs:
            for entry in pack.files:
                if entry.table != table:
                    continue
                try:
                    rows += pq.read_table(self.layout.root / entry.path).to_pylist()
                except (OSError, pa.ArrowException) as error:
                    self.warn(f"{self.layout.root / entry.path}: cannot be read ({error})")
        return rows

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.layout.manifest)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _load(self) -> None:
        for _ in range(_LOAD_ATTEMPTS):
            try:
                self._load_once()
                return
            except (_MovedError, FileNotFoundError):
                time.sleep(_LOAD_PAUSE_S)
        raise StoreError(f"{self.layout.root}: a piece of the journal is missing")

    def _load_once(self) -> None:
        self._manifest_mark = self._mark()
        self.manifest = read_manifest(self.layout)
        self.state = RunState(self.run_id)
        self.events.clear()
        self._piece, self._inode, self._offset = self.manifest.piece + 1, -1, 0
        records = [record for chunk in self._new_chunks() for record in chunk.records]
        if self._mark() != self._manifest_mark:
            raise _MovedError
        # Rewinds first: what they hide must not enter the event tables at all.
        for record in records:
            self.state.apply(record)
        for record in records:
            self._add_events(record)

    def _new_chunks(self) -> Iterator[Chunk]:
        """Chunks behind our position, from complete pieces and then from the live one."""
        live = self._read_live()
        if live is None:
            return
        number, inode, chunk = live
        while self._piece < number:
            yield self._checked(
                self.layout.piece(self._piece),
                read_chunk(self.layout.piece(self._piece), self._offset),
            )
            self._piece, self._offset = self._piece + 1, 0
        if chunk is not None:
            self._inode, self._offset = inode, chunk.end
            yield self._checked(self.layout.journal, chunk)

    def _read_live(self) -> tuple[int, int, Chunk | None] | None:
        """Number, inode and news of the live piece; None where nothing is new."""
        try:
            with self.layout.journal.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino == self._inode:
                    if found.st_size == self._offset:
                        return None
                    if found.st_size < self._offset:
                        raise _MovedError
                    return self._piece, self._inode, read_chunk_of(file, self._offset)
                chunk = read_chunk_of(file, 0)
        except FileNotFoundError:
            # Between two pieces, or a crash left it so: the complete ones are all there is.
            return max(self.layout.piece_numbers(), default=self.manifest.piece) + 1, -1, None
        header = chunk.records[0] if chunk.records else {}
        number = header.get("piece")
        if header.get("kind") != "journal" or not isinstance(number, int):
            raise StoreError(f"{self.layout.journal}: the journal has lost its first record")
        if number < self._piece:
            raise _MovedError
        if number == self._piece and self._offset:
            raise _MovedError
        return number, found.st_ino, chunk

    def _checked(self, path: Path, chunk: Chunk) -> Chunk:
        for offset in chunk.damaged:
            message = f"{path}: the record at byte {offset} is damaged and left out"
            if message not in self.damaged_lines:
                self.damaged_lines.append(message)
            self.warn(message)
        return chunk

    def _take(self, record: Record) -> None:
        self.state.apply(record)
        self._add_events(record)

    def _add_events(self, record: Record) -> None:
        if record["kind"] in ("step", "event"):
            limit = None if self._all_attempts else self.state.limit(record["attempt"])
            self.events.add(record, limit)
