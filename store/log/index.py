"""Follows one run's journal and manifest: which files count now, and which events are new."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import NotARunError, StoreError, StoreVersionError
from ..schema import DATA_TABLES, TABLES, check_version
from .durable import open_regular, read_checked_json, read_json_object
from .events import EventColumns
from .integrity import CHECKS
from .journal import (
    Chunk,
    Follower,
    Record,
    Tail,
    read_chunk,
    read_chunk_of,
    read_tail,
    run_mark,
    tail_problems,
)
from .layout import FileEntry, Layout, Segment
from .packs.manifest import Manifest, load_manifest
from .packs.salvage import Salvage, salvage
from .state import RunState

logger = logging.getLogger("echoscope.store")

_LOAD_ATTEMPTS = 50
_LOAD_PAUSE_S = 0.01
_TAIL_ATTEMPTS = 5
_RETRY_S = 1.0
"""A file that could not be read is tried again after so long."""
_UNKNOWN_MARK = (-1, -1, -1)
"""Of a manifest that no file has: what was read so far is not to be built upon."""


class _MovedError(Exception):
    """A pack or a rotation moved files while we read: start over."""


@dataclass(frozen=True, slots=True)
class VisibleFile:
    """A data file and the last step of it that is visible; None for all of it."""

    entry: FileEntry
    limit: int | None
    first_step: int
    last_step: int
    left: Salvage | None = None
    """What is left of it where it is damaged; None where it is whole, as far as is known."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a file of the run that is not what was written."""

    path: Path
    what: str
    lost: str = "the records that it held"

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def read_run_json(layout: Layout) -> dict[str, Any]:
    """The content of `run.json`, or what the journal repeats of it where it is damaged.

    Raises:
        NotARunError: no run there.
        StoreVersionError: written by a newer major version.
        StoreError: damaged, and the journal does not repeat it.
    """
    return describe_run(layout)[0]


def describe_run(layout: Layout) -> tuple[dict[str, Any], Problem | None]:
    """`read_run_json`, and what is wrong with `run.json`."""
    layout.require_run()
    try:
        return _checked_description(layout, read_checked_json(layout.run_json)), None
    except (NotARunError, StoreVersionError):
        raise
    except StoreError as error:
        _refuse_newer(layout)
        repeated = _repeated_description(layout)
        if repeated is None:
            raise StoreError(
                f"{error}; `echoscope runs repair {layout.root}` rebuilds what can be rebuilt"
            ) from error
        what = str(error).removeprefix(f"{layout.run_json}: ")
        problem = Problem(layout.run_json, f"{what}; the journal's copy is used", "nothing")
        return _checked_description(layout, repeated), problem


def _refuse_newer(layout: Layout) -> None:
    """Raises StoreVersionError where a newer Echoscope wrote the run, however it checks it."""
    try:
        version = read_json_object(layout.run_json).get("schema_version")
    except StoreError:
        return
    check_version(version, str(layout.root))


def _checked_description(layout: Layout, value: dict[str, Any]) -> dict[str, Any]:
    check_version(value.get("schema_version"), str(layout.root))
    if not isinstance(value.get("run_id"), str):
        raise StoreError(f"{layout.run_json}: has no run_id")
    return value


def _repeated_description(layout: Layout) -> dict[str, Any] | None:
    """What the newest readable header of the journal repeats of `run.json`."""
    numbers = reversed(layout.piece_numbers())
    for path in (layout.journal, *(layout.piece(number) for number in numbers)):
        try:
            records = read_chunk(path).records
        except OSError:
            continue
        if records and isinstance(records[0].get("description"), dict):
            return dict(records[0]["description"])
    return None


def _lost_part(file: VisibleFile, left: Salvage) -> VisibleFile:
    entry = replace(file.entry, num_rows=file.entry.num_rows - left.num_rows)
    if not left.lost_steps:
        return replace(file, entry=entry)
    first, last = left.lost_steps[0][0], left.lost_steps[-1][1]
    return replace(file, entry=entry, first_step=first, last_step=last)


class RunIndex:
    """State of one run as its files tell it; `refresh` catches up.

    `events` collects rows of the event tables: whoever uses them takes and clears them.
    """

    def __init__(self, path: Path, *, all_attempts: bool = False) -> None:
        self.layout = Layout(path.resolve())
        self.run, description_problem = describe_run(self.layout)
        self.run_id: str = self.run["run_id"]
        self.warnings: list[str] = []
        self.bad_paths: dict[str, str] = {}
        """Data files, relative to the run, that are damaged and are left out -> what is wrong."""
        self._salvaged: dict[str, tuple[str, Salvage]] = {}
        """Damaged files of packs that are read in part: what is wrong, and what is left."""
        self._unreadable: dict[str, tuple[float, str, str]] = {}
        """Data files that the system did not let us read: when to try again, why, the warning."""
        self.problems: list[Problem] = []
        """What is wrong with `run.json`, the manifest and the journal. Readers show the rest."""
        self.is_checked = True
        """False for runs of format 1, which carry no checksums of manifest and journal."""
        self._all_attempts = all_attempts
        self.state = RunState(self.run_id)
        self.manifest = Manifest()
        self.events = EventColumns(self.run_id)
        self._manifest_mark: tuple[int, int, int] | None = None
        self._piece, self._inode, self._offset = 0, 0, 0
        self._follower = Follower(run_mark(self.run_id))
        if description_problem is not None:
            self._note(description_problem)
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

        Raises:
            OSError: a file cannot be read now; the next call reads everything again.
        """
        try:
            return self._refresh()
        except OSError:
            self._manifest_mark = _UNKNOWN_MARK
            raise

    def leave_out(self, entry: FileEntry, why: str) -> bool:
        """Leave a damaged file out, but for what of it is proven; whether that is news."""
        try:
            left = salvage(self.layout.root, entry)
        except OSError as error:
            self.set_aside(entry.path, f"it cannot be read ({error.strerror or error})")
            return True
        if left is None:
            is_news = entry.path not in self.bad_paths
            self.bad_paths[entry.path] = why
        else:
            _, before = self._salvaged.get(entry.path, ("", None))
            is_news = before is None or before.tail != left.tail
            self._salvaged[entry.path] = why, left
        lost = "" if left is None else f": {left.lost(entry)}"
        self.warn(f"{self.layout.root / entry.path}: {why}; left out{lost}")
        return is_news

    def set_aside(self, path: str, why: str) -> None:
        """Leave a data file out for a moment: the system did not let us read it."""
        warning = f"{self.layout.root / path}: {why}; left out until it can be read"
        self._unreadable[path] = (time.monotonic() + _RETRY_S, why, warning)
        self.warn(warning)

    def try_again(self) -> bool:
        """Take files back in whose time has come; whether there was one."""
        now = time.monotonic()
        due = [path for path, (at, _, _) in self._unreadable.items() if at <= now]
        for path in due:
            _, _, warning = self._unreadable.pop(path)
            self.warnings.remove(warning)
        return bool(due)

    def _refresh(self) -> str:
        if self._mark() != self._manifest_mark:
            self._load()
            return "reset"
        try:
            records = self._new_records(is_first=False)
        except (_MovedError, FileNotFoundError):
            self._load()
            return "reset"
        if any(record["kind"] == "rewind" for record in records):
            self._load()
            return "reset"
        for record in records:
            self._take(record)
        return "grown" if records else "same"

    def files(self, table: str) -> list[VisibleFile]:
        """The files that hold visible rows of a table and can be read, packs first."""
        left_out = self.bad_paths.keys() | self._unreadable.keys()
        files = [file for file in self._visible(table) if file.entry.path not in left_out]
        if not self._salvaged:
            return files
        lefts = {path: left for path, (_, left) in self._salvaged.items()}
        return [replace(file, left=lefts.get(file.entry.path)) for file in files]

    def files_left_out(self, table: str) -> list[tuple[VisibleFile, str]]:
        """The files with visible rows of a table that are left out, and what is wrong with each.

        Of a file that is read in part: with the rows and the steps that it lost alone.
        """
        whys = self.bad_paths | {path: why for path, (_, why, _) in self._unreadable.items()}
        out = []
        for file in self._visible(table):
            path = file.entry.path
            if path in whys:
                out.append((file, whys[path]))
            elif path in self._salvaged:
                why, left = self._salvaged[path]
                part = _lost_part(file, left)
                out += [(part, why)] if part.entry.num_rows else []
        return out

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Those that no pack holds, of hidden steps as well."""
        state = self.state
        return (*self.manifest.loose, *state.committed, *state.unfinished.values())

    def _visible(self, table: str) -> list[VisibleFile]:
        visible = []
        for pack in self.manifest.packs:
            limit = None if self._all_attempts else self.state.limit(pack.attempt)
            is_cut = limit is not None and pack.last_step > limit and not TABLES[table].is_audit
            # Events may be dated before the first step of their pack.
            if is_cut and limit is not None and pack.first_step > limit and table in DATA_TABLES:
                continue
            visible += [
                VisibleFile(e, limit if is_cut else None, pack.first_step, pack.last_step)
                for e in pack.files
                if e.table == table
            ]
        for segment in self.segments:
            if self._all_attempts or self.state.is_visible(segment):
                visible += [
                    VisibleFile(e, None, segment.step, segment.step)
                    for e in segment.files
                    if e.table == table
                ]
        return visible

    def event_rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of an event table: those in packs, and those in `events`."""
        fresh: list[dict[str, Any]] = self.events.table(table).to_pylist()
        return self.packed_rows(table) + fresh

    def packed_rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of an event table that are in packs. Damaged packs are left out, with a warning."""
        rows: list[dict[str, Any]] = []
        for pack in self.manifest.packs:
            for entry in pack.files:
                if entry.table != table:
                    continue
                path = self.layout.root / entry.path
                try:
                    why = CHECKS.damage(self.layout.root, entry)
                    if not why:
                        rows += pq.read_table(path).to_pylist()
                    elif left := salvage(self.layout.root, entry):
                        why += f"; left out: {left.lost(entry)}"
                        rows += pa.concat_tables(left.rows(path)).to_pylist()
                except (OSError, pa.ArrowException) as error:
                    why = f"cannot be read ({error})"
                if why:
                    self.warn(f"{path}: {why}")
        return rows

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            stats = os.stat(self.layout.manifest)
        except FileNotFoundError:
            return None
        return stats.st_ino, stats.st_mtime_ns, stats.st_size

    def _load(self) -> None:
        for _ in range(_LOAD_ATTEMPTS):
            try:
                self._load_once()
                return
            except (_MovedError, FileNotFoundError):
                time.sleep(_LOAD_PAUSE_S)
        raise StoreError(f"{self.layout.root}: a piece of the journal is missing")

    def _load_once(self) -> None:
        tail, tail_problem = self._read_tail()
        self._manifest_mark = self._mark()
        manifest, what = load_manifest(self.layout, self.run_id)
        if what:
            lost = "nothing: its copy is used" if manifest is not None else "all packed steps"
            self._note(Problem(self.layout.manifest, what.split(": ", 1)[-1], lost))
        if manifest is None:
            first = min(self.layout.piece_numbers(), default=self._live_number(1))
            manifest = Manifest(piece=first - 1)
        self.manifest = manifest
        self.state = RunState(self.run_id)
        self.events.clear()
        self._piece, self._inode, self._offset = self.manifest.piece + 1, -1, 0
        self._follower = Follower(run_mark(self.run_id))
        self._chunk: Chunk | None = None
        records: list[Record] = []
        if manifest.state is not None:
            records.append({"kind": "journal", "run_id": self.run_id, **manifest.state})
        for number in manifest.kept:
            records += self._kept_records(number)
        records += self._new_records(is_first=True)
        if self._mark() != self._manifest_mark:
            raise _MovedError
        self._check_tail(tail, tail_problem)
        self._require_ours(records)
        if not self.is_checked:
            self.warn(
                f"{self.layout.root}: its journal and manifest carry no checksums; an older "
                "version wrote the run"
            )
        # Rewinds first: what they hide must not enter the event tables at all.
        for record in records:
            self.state.apply(record)
        for record in records:
            self._add_events(record)

    def _require_ours(self, records: list[Record]) -> None:
        """Raises StoreError where the journal is another run's as a whole."""
        foreign = any("another run" in problem.what for problem in self.problems)
        if foreign and not records and not self.manifest.packs:
            raise StoreError(
                f"{self.layout.root}: run.json belongs to run {self.run_id!r}, and the journal to "
                "another run; put back the one that is right"
            )

    def _read_tail(self) -> tuple[Tail | None, str]:
        """The acknowledged end, read before the journal: the journal can only be longer."""
        for _ in range(_TAIL_ATTEMPTS):  # the writer may be at it
            try:
                return read_tail(self.layout), ""
            except StoreError as error:
                problem = str(error).split(": ", 1)[1]
        return None, problem

    def _check_tail(self, tail: Tail | None, problem: str) -> None:
        path = self.layout.journal
        if problem:
            self._note(Problem(self.layout.tail, problem, "perhaps the last records"))
        elif tail is None:
            if self.is_checked and self._inode != -1:
                what = "it is missing, so records at the journal's end may be missing"
                self._note(Problem(self.layout.tail, what, "perhaps the last records"))
        elif self._inode == -1:
            if tail.piece > max(self.layout.piece_numbers(), default=self.manifest.piece):
                self._note(Problem(path, "it is missing", "the records since the last piece"))
        elif self._chunk is not None:
            for what in tail_problems(tail, self._piece, self._chunk):
                self._note(Problem(path, what))

    def _kept_records(self, number: int) -> list[Record]:
        """What is left of a damaged piece that stayed when its neighbours were packed."""
        path = self.layout.piece(number)
        follower = Follower(run_mark(self.run_id))
        try:
            records = follower.take(read_chunk(path))
        except FileNotFoundError:
            self._note(Problem(path, "it is missing"))
            return []
        for what in follower.problems:
            self._note(Problem(path, what))
        return records

    def _new_records(self, *, is_first: bool) -> list[Record]:
        """Records behind our position, from complete pieces and then from the live one."""
        live = self._read_live()
        if live is None:
            return []
        number, inode, chunk = live
        records: list[Record] = []
        before: tuple[Path, Follower, int] | None = None
        while self._piece < number:
            path = self.layout.piece(self._piece)
            try:
                piece = read_chunk(path, self._offset)
            except FileNotFoundError:
                # Gone because it was packed: then the manifest is a new one.
                if not is_first or self._mark() != self._manifest_mark:
                    raise
                self._note(Problem(path, "it is missing", "the steps that only it names"))
                before = None
            else:
                records += self._follow(path, piece, before)
                before = (path, self._follower, piece.end)
            self._piece, self._offset = self._piece + 1, 0
            self._follower = Follower(run_mark(self.run_id))
        if chunk is not None:
            records += self._follow(self.layout.journal, chunk, before)
            self._inode, self._offset = inode, chunk.end
            if is_first:
                self._chunk = chunk
        return records

    def _follow(
        self, path: Path, chunk: Chunk, before: tuple[Path, Follower, int] | None
    ) -> list[Record]:
        """The good records of a chunk; notes what is wrong with it and with the piece before."""
        is_start = self._follower.seq == 0
        records = self._follower.take(chunk)
        problems = list(self._follower.problems)
        if is_start and (not records or records[0]["kind"] != "journal"):
            if chunk.records and "seq" not in chunk.records[0]:
                raise StoreError(f"{path}: the journal has lost its first record")
            if not problems:
                problems = ["the journal has lost its first record"]
        for what in problems:
            self._note(Problem(path, what, "one record" if "at byte" in what else "records"))
        if is_start and records and records[0].get("run_id", self.run_id) != self.run_id:
            self._note(Problem(path, "it belongs to another run and is left out"))
            return []
        if is_start and records and records[0]["kind"] == "journal":
            self.is_checked = bool(records[0].get("format"))
            if before is not None:
                earlier, follower, end = before
                for what in follower.check_end(records[0], end):
                    self._note(Problem(earlier, what, "those records"))
        return records

    def _live_number(self, at_least: int) -> int:
        """The number of a live piece that has lost its header."""
        return max([at_least, *(number + 1 for number in self.layout.piece_numbers())])

    def _read_live(self) -> tuple[int, int, Chunk | None] | None:
        """Number, inode and news of the live piece; None where nothing is new."""
        try:
            with open_regular(self.layout.journal) as file:
                stats = os.fstat(file.fileno())
                if stats.st_ino == self._inode:
                    if stats.st_size == self._offset:
                        return None
                    if stats.st_size < self._offset:
                        raise _MovedError
                    return self._piece, self._inode, read_chunk_of(file, self._offset)
                chunk = read_chunk_of(file, 0)
        except FileNotFoundError:
            # Between two pieces, or a crash left it so: the complete ones are all there is.
            return max(self.layout.piece_numbers(), default=self.manifest.piece) + 1, -1, None
        header = chunk.records[0] if chunk.records else {}
        number = header.get("piece")
        if header.get("kind") != "journal" or not isinstance(number, int):
            number = self._live_number(self._piece)
        if number < self._piece:
            raise _MovedError
        if number == self._piece and self._offset:
            raise _MovedError
        return number, stats.st_ino, chunk

    def _note(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
        self.warn(str(problem))

    def _take(self, record: Record) -> None:
        self.state.apply(record)
        self._add_events(record)

    def _add_events(self, record: Record) -> None:
        if record["kind"] in ("step", "event"):
            limit = None if self._all_attempts else self.state.limit(record["attempt"])
            self.events.add(record, limit)
