"""Follows one run's journal and packs: which files count now, and which events are new."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import NotARunError, StoreError, StoreVersionError
from ..schema import DATA_TABLES, TABLES, arrow_schema, check_version
from .durable import open_regular, read_checked_json, read_json_object
from .events import EventColumns
from .journal import Chain, Chunk, JournalState, Record, parse_chunk, read_chunk, read_tail
from .layout import FileEntry, FileGroup, Layout
from .packs import PACK_JSON, Pack, read_pack
from .parquet import CHECKS
from .remote.pulling import RemoteRun

if TYPE_CHECKING:
    from pyarrow import dataset

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

    def rows(
        self,
        root: Path,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """What is visible of it.

        Args:
            root: the run's folder.
            columns: only these; None for all.

        Raises:
            OSError, pa.ArrowException: it is gone or damaged.
        """
        if self.limit is not None:
            is_visible = pc.field("step") <= self.limit
            where = is_visible if where is None else where & is_visible
        return _fragment(str(root / self.entry.path)).to_table(
            schema=arrow_schema(self.entry.table),
            columns=None if columns is None else list(columns),
            filter=where,
        )


@lru_cache(maxsize=256)
def _fragment(path: str) -> dataset.Fragment:
    """A data file with its footer, which says in which row group a step is. It is read once: data
    files never change."""
    from pyarrow import dataset  # it imports pandas, which a run without packs does without
    from pyarrow.fs import LocalFileSystem

    return dataset.ParquetFileFormat().make_fragment(path, filesystem=LocalFileSystem())


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Something about a file of the run that is not what was written."""

    path: Path
    what: str
    lost: str = "the records that it held"

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(slots=True)
class LivePiece:
    """The piece of the journal that is being written, as far as it was read."""

    number: int
    inode: int | None
    """None where there is none: between two pieces."""
    end: int = 0
    """Offset behind the last complete line."""
    good_end: int = 0
    """Offset behind the last good line."""


def read_run_json(layout: Layout) -> dict[str, Any]:
    """The content of `run.json`, or what the journal repeats of it where it is damaged.

    Raises:
        NotARunError: no run there.
        StoreVersionError: written by another version of the store.
        StoreError: damaged, and the journal does not repeat it.
    """
    return _describe(layout)[0]


def _describe(layout: Layout) -> tuple[dict[str, Any], FileProblem | None]:
    """`read_run_json`, and what is wrong with `run.json`."""
    layout.require_run()
    try:
        return _checked_description(layout, read_checked_json(layout.run_json)), None
    except (NotARunError, StoreVersionError):
        raise
    except StoreError as error:
        repeated = _repeated_description(layout)
        if repeated is None:
            raise
        what = str(error).removeprefix(f"{layout.run_json}: ")
        problem = FileProblem(layout.run_json, f"{what}; the journal's copy is used", "nothing")
        return _checked_description(layout, repeated), problem


def _checked_description(layout: Layout, value: dict[str, Any]) -> dict[str, Any]:
    check_version(value.get("schema_version"), str(layout.root))
    if not isinstance(value.get("run_id"), str):
        raise StoreError(f"{layout.run_json}: has no run_id")
    return value


def _repeated_description(layout: Layout) -> dict[str, Any] | None:
    """What the newest readable header of the journal, or a pack, repeats of `run.json`."""
    pieces = [layout.journal, *map(layout.piece, reversed(layout.piece_numbers()))]
    for path in pieces:
        try:
            records = read_chunk(path).records
        except OSError:
            continue
        if records and isinstance(records[0].get("description"), dict):
            return dict(records[0]["description"])
    for number in reversed(layout.pack_numbers()):
        try:
            return dict(read_json_object(layout.pack(number) / PACK_JSON)["state"]["description"])
        except (OSError, KeyError, TypeError):
            continue
    return None


class RunIndex:
    """State of one run as its files tell it; `refresh` catches up."""

    def __init__(self, path: Path, *, all_attempts: bool = False) -> None:
        self.layout = Layout(path.resolve())
        self._remote = RemoteRun.of(self.layout.root)
        self.run, self._run_json_problem = _describe(self.layout)
        self.run_id: str = self.run["run_id"]
        self.problems: list[FileProblem] = []
        """What is wrong with `run.json`, the packs and the journal. Readers show the rest."""
        self.left_out: dict[str, str] = {}
        """Data files, relative to the run, that cannot be used now -> what is wrong."""
        self._all_attempts = all_attempts
        self.state = JournalState(self.run_id)
        self.packs: dict[int, Pack] = {}
        self.events = EventColumns(self.run_id)
        """The rows of the event tables that no pack holds."""
        self.chain = Chain.of(self.run_id)
        self.live = LivePiece(1, None)
        self.num_acknowledged = 0
        """Records of the whole journal, as `journal.tail` says."""
        self._pack_numbers: list[int] | None = None
        self._told: set[str] = set()
        self._reload()

    @property
    def warnings(self) -> list[str]:
        """What cannot be read and is left out, each naming its file."""
        files = (
            f"{self.layout.root / path}: {why}; left out" for path, why in self.left_out.items()
        )
        return [*map(str, self.problems), *files]

    @property
    def is_live_whole(self) -> bool:
        """Whether the live piece is there and whole: a writer may go on with it."""
        is_damaged = any(problem.path == self.layout.journal for problem in self.problems)
        return self.live.inode is not None and not is_damaged

    def refresh(self) -> bool:
        """Read what was appended since the last call; whether there was something.

        Raises:
            OSError: a file cannot be read now; the next call reads everything again.
        """
        if self._remote is not None:
            self._remote.follow()
        try:
            records = self._new_records()
        except OSError:
            self._pack_numbers = None
            raise
        if records is None:
            self._reload()
            return True
        for record in records:
            self.state.apply(record)
            self._add_events(record)
        return bool(records)

    def check_files(self, files: Iterable[VisibleFile]) -> bool:
        """Look which of some files are whole: the others are left out; whether that is news."""
        before, entries = dict(self.left_out), [file.entry for file in files]
        self.fetch(entries)
        for path, why in CHECKS.damages(self.layout.root, entries).items():
            if not why:
                self.left_out.pop(path, None)
            elif self.left_out.get(path) != why:
                self.left_out[path] = why
                self._tell(f"{self.layout.root / path}: {why}; left out")
        return self.left_out != before

    def fetch(self, entries: Iterable[FileEntry]) -> None:
        """Have data files on this disk, where the run is a copy of one far away."""
        if self._remote is not None:
            self._remote.fetch(entries)

    def files(self, table: str) -> list[VisibleFile]:
        """The files that hold visible rows of a table and are not known to be damaged."""
        return [file for file in self.visible_files(table) if file.entry.path not in self.left_out]

    def visible_files(self, table: str) -> list[VisibleFile]:
        """The files that hold visible rows of a table, packs first."""
        visible = []
        for group in self.groups:
            limit = None if self._all_attempts else self.state.limit(group.attempt)
            is_cut = limit is not None and group.last_step > limit and not TABLES[table].is_audit
            # Events may be dated before the first step of their pack.
            if is_cut and limit is not None and group.first_step > limit and table in DATA_TABLES:
                continue
            visible += [
                VisibleFile(e, limit if is_cut else None, group.first_step, group.last_step)
                for e in group.files
                if e.table == table
            ]
        return visible

    def whole_rows(self, file: VisibleFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of a file; none of a damaged one: the page of the run says which is damaged."""
        try:
            return file.rows(self.layout.root, columns)
        except (OSError, pa.ArrowException):
            nothing = arrow_schema(file.entry.table).empty_table()
            return nothing if columns is None else nothing.select(columns)

    @property
    def groups(self) -> tuple[FileGroup, ...]:
        """All files that count, of hidden steps as well: of packs, and of segments."""
        packed = (group for pack in self.packs.values() for group in pack.groups)
        return (*packed, *self.segments)

    @property
    def segments(self) -> tuple[FileGroup, ...]:
        """Those that no pack holds."""
        return (*self.state.committed, *self.state.unfinished.values())

    def event_rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of an event table: those in packs, and those in `events`.

        Damaged files are left out, with a warning.
        """
        self.check_files(self.visible_files(table))
        packed = map(self.whole_rows, self.files(table))
        events = pa.concat_tables([*packed, self.events.table(table)])
        rows: list[dict[str, Any]] = events.to_pylist()
        return rows

    def _reload(self) -> None:
        """Read everything again.

        Raises:
            StoreError: the files of the run keep changing, or nothing of them can be read.
        """
        for _ in range(_LOAD_ATTEMPTS):
            try:
                self._load_once()
                return
            except _MovedError:
                time.sleep(_LOAD_PAUSE_S)
        raise StoreError(f"{self.layout.root}: the files of the run keep changing, try again")

    def _load_once(self) -> None:
        self._pack_numbers = None
        self.problems = []
        if self._run_json_problem is not None:
            self._note(self._run_json_problem)
        # Before the journal, which can only be longer then.
        self.num_acknowledged, tail_problem = read_tail(self.layout)
        numbers = self.layout.pack_numbers()
        chunk = self._read_live(max([0, *numbers, *self.layout.piece_numbers()]) + 1)
        self.state = JournalState(self.run_id)
        self.events = EventColumns(self.run_id)
        self.chain, self.packs = Chain.of(self.run_id), {}
        records: list[Record] = []
        for number in range(1, self.live.number):
            pack = self._read_pack(number) if number in numbers else None
            if pack is not None:
                self.packs[number] = pack
                self._note_missing(self.layout.pack(number), pack.first_seq, "before this pack")
                self.chain = Chain(pack.chain.mark, pack.chain.seq, pack.chain.crc)
                records.append({"kind": "journal", **pack.state})
            else:
                records += self._complete_records(number, numbers)
        records += self._follow(self.layout.journal, chunk) if chunk is not None else []
        if self.layout.pack_numbers() != numbers:
            raise _MovedError
        if tail_problem:
            self._note(FileProblem(self.layout.tail, tail_problem, "perhaps the last records"))
        where = "at its end, although they were acknowledged"
        self._note_missing(self.layout.journal, self.num_acknowledged, where)
        if self.problems and not records:
            raise StoreError(f"{self.problems[0]}, and nothing else of the journal can be read")
        self._pack_numbers = numbers
        # Rewinds first: what they hide must not enter the event tables at all.
        for record in records:
            self.state.apply(record)
        for record in records:
            self._add_events(record)

    def _read_live(self, last: int) -> Chunk | None:
        """The live piece from its beginning; `last` is its number if its header is damaged."""
        try:
            with open_regular(self.layout.journal) as file:
                inode = os.fstat(file.fileno()).st_ino
                chunk = parse_chunk(file.read())
        except FileNotFoundError:
            # Between two pieces, or a crash left it so: the complete ones are all there is.
            complete = max([0, *self.layout.pack_numbers(), *self.layout.piece_numbers()])
            self.live = LivePiece(complete + 1, None)
            return None
        header = chunk.records[0] if chunk.records else {}
        number = header.get("piece")
        self.live = LivePiece(
            number if isinstance(number, int) else last, inode, chunk.end, chunk.good_end
        )
        return chunk

    def _new_records(self) -> list[Record] | None:
        """What was appended to the live piece; None where everything must be read again."""
        if self.layout.pack_numbers() != self._pack_numbers:
            return None
        try:
            with open_regular(self.layout.journal) as file:
                stats = os.fstat(file.fileno())
                if stats.st_ino != self.live.inode or stats.st_size < self.live.end:
                    return None
                if stats.st_size == self.live.end:
                    return []
                file.seek(self.live.end)
                chunk = parse_chunk(file.read(), self.live.end)
        except FileNotFoundError:
            return [] if self.live.inode is None else None
        self.live.end, self.live.good_end = chunk.end, chunk.good_end
        records = self._follow(self.layout.journal, chunk)
        return None if any(record["kind"] == "rewind" for record in records) else records

    def _read_pack(self, number: int) -> Pack | None:
        try:
            return read_pack(self.layout, number, self.run_id)
        except StoreVersionError:
            raise
        except StoreError as error:
            path, what = self.layout.pack(number) / PACK_JSON, str(error).split(": ", 1)[1]
            self._note(FileProblem(path, what, "the steps of this pack"))
            return None

    def _complete_records(self, number: int, packed: list[int]) -> list[Record]:
        """The good records of a complete piece."""
        path = self.layout.piece(number)
        try:
            return self._follow(path, read_chunk(path))
        except FileNotFoundError:
            if self.layout.pack_numbers() != packed:
                raise _MovedError from None
        if number not in packed:
            self._note(FileProblem(path, "it is missing", "the steps that only it names"))
        self.chain.seq = None
        return []

    def _follow(self, path: Path, chunk: Chunk) -> list[Record]:
        """The records of a chunk that continue the chain; notes what is wrong with the others."""
        records, problems = self.chain.take(chunk)
        for what in problems:
            self._note(FileProblem(path, what, "one record" if "at byte" in what else "records"))
        return records

    def _note_missing(self, path: Path, seq: int, where: str) -> None:
        for what in self.chain.missing(seq, where):
            self._note(FileProblem(path, what, "those records"))

    def _note(self, problem: FileProblem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            self._tell(str(problem))

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning(text)

    def _add_events(self, record: Record) -> None:
        if record["kind"] in ("step", "event"):
            limit = None if self._all_attempts else self.state.limit(record["attempt"])
            self.events.add(record, limit)
