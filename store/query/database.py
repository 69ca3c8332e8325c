"""An in-memory DuckDB whose views show runs as their journals and manifests tell them.

SQL from a browser or a notebook can neither change a run nor look around on the machine. Three
things see to that, each on its own: a query is checked before it is run (`check.py`); it runs
on a connection of its own, in a transaction that cannot write; and the only files that DuckDB can
reach are the data files of the run, through an interface that has no way to write (`run_files.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ..errors import QueryError, StoreError
from ..log.durable import is_locked
from ..log.index import RunIndex, VisibleFile
from ..log.integrity import CHECKS, proven_damage
from ..log.layout import FileEntry
from ..schema import EVENT_TABLES, SCHEMA_VERSION, TABLES, arrow_schema, create_table_sql
from ..steer.commands import PendingCommands, folder_mark
from .bounded import RunningQuery
from .check import CheckedQuery, one_line
from .lookup import StepLookup
from .run_files import SCHEME, RunFiles

_QUERY_ERRORS = (
    duckdb.ParserException,
    duckdb.CatalogException,
    duckdb.BinderException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.PermissionException,
    duckdb.OutOfMemoryException,
    duckdb.InterruptException,
    duckdb.TransactionException,
)
"""Errors that the query is to blame for, never a file."""
_STRANGERS_THREADS = 4
_RETRIES = 8
_MAX_FORGOTTEN = 1_000
"""Files that went away since DuckDB was opened: it keeps the footers of all that it has read."""


def quote(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def connect(files: RunFiles, memory_limit: str = "") -> duckdb.DuckDBPyConnection:
    """A private DuckDB that can read some files and write none: nothing is spilled to the disk.

    `memory_limit`, such as `"1GB"`, is for queries of strangers: what does not fit is refused.
    """
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    )
    connection.register_filesystem(files)
    connection.execute("SET GLOBAL parquet_metadata_cache = true")
    connection.execute("SET enable_external_file_cache = false")
    if memory_limit:
        connection.execute(f"SET memory_limit = {quote(memory_limit)}")
        connection.execute(f"SET threads = {min(_STRANGERS_THREADS, os.cpu_count() or 1)}")
    connection.execute("SET temp_directory = ''")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET disabled_filesystems = 'LocalFileSystem'")
    connection.execute(f"SET allowed_directories = ['{SCHEME}://']")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


class RunDatabase:
    """Views over several runs, kept up to date. Cursors of one database may be used in threads.

    Most readers ask for little: DuckDB is opened with the first query, and a view is made with the
    first query that names it.
    """

    def __init__(
        self,
        folder: Path,
        indexes: Sequence[RunIndex],
        memory_limit: str = "",
        *,
        all_attempts: bool = False,
    ) -> None:
        self.folder = folder.resolve()
        self.all_attempts = all_attempts
        """Whether the indexes show what a rewind hid."""
        self.indexes: dict[str, RunIndex] = {}
        self._prefixes: dict[str, str] = {}
        self._files = RunFiles()
        self._memory_limit = memory_limit
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.RLock()
        self._scans: dict[str, str] = {}
        """Views that were made, and their SQL."""
        self._named: set[str] = set()
        """Files that a view may have named since DuckDB was opened."""
        self._runs: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []
        self._mailboxes: list[int | None] = []
        self._mail: dict[str, PendingCommands] = {}
        self._lookup = StepLookup()
        self._is_stale = True
        self._num_refreshes = 0
        for index in indexes:
            self.add(index)
        self.refresh()

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB, opened where it is not yet. Queries run on cursors of it."""
        with self._lock:
            if self._connection is None:
                self._connection = connect(self._files, self._memory_limit)
                try:
                    self._create_tables()
                    for index in self.indexes.values():
                        self._insert_events(index)
                except BaseException:
                    # No half-filled DuckDB: the next caller begins anew, with all events.
                    self._connection.close()
                    self._connection = None
                    raise
                for index in self.indexes.values():
                    index.events.clear()
                self._renew()
            return self._connection

    def show(self, names: Iterable[str]) -> None:
        """Make the views of some tables, as of the last `refresh`.

        Raises:
            StoreError: the files keep changing.
        """
        with self._lock:
            for name in names:
                if name not in self._scans:
                    self._refresh_view(name)

    def add(self, index: RunIndex) -> None:
        """Show one more run.

        Raises:
            StoreError: another folder already has its run id, or its journal holds events of
                other types than ours.
        """
        with self._lock:
            other = self.indexes.get(index.run_id)
            if other is not None:
                raise StoreError(
                    f"{index.layout.root}: a copy of {other.layout.root}, with the same run id "
                    f"{index.run_id!r}; move the copy to another folder of runs to open it there"
                )
            _settle_events(index)
            self.indexes[index.run_id] = index
            self._prefixes[index.run_id] = self._files.add(index.layout.root)
            self._take_events(index)
            self._is_stale = True

    def remove(self, run_id: str) -> None:
        """Stop showing a run, because its folder is gone."""
        with self._lock:
            index = self.indexes.pop(run_id)
            del self._prefixes[run_id]
            self._delete_events(index)
            self._is_stale = True

    def refresh(self) -> None:
        """Catch up with every run.

        Raises:
            StoreError: the journal of the only run cannot be read now.
        """
        with self._lock:
            self._catch_up()
            for index in self.indexes.values():
                self._is_stale |= index.try_again()
            if self._connection is not None:
                self._renew()

    def _renew(self) -> None:
        """What DuckDB shows, as the files of the runs are known by now."""
        if self._is_stale:
            self._forget_footers()
        self._refresh_runs()
        self._refresh_pending()
        if self._is_stale:
            for name in list(self._scans):
                self._refresh_view(name)
            self._is_stale = False
            self._num_refreshes += 1

    def run(self, query: CheckedQuery, params: Any, running: RunningQuery) -> pa.Table:
        """Run checked SQL, on a connection and in a read-only transaction of its own.

        SQL is asked for again where files were packed away meanwhile, or are damaged.

        Raises:
            QueryError: DuckDB refuses the query.
            StoreError: the files keep changing.
        """
        for attempt in range(_RETRIES):
            before = self._num_refreshes
            self.show(TABLES if query.is_about_tables else query.tables)
            try:
                self._require_whole(query.tables)
                with self._reading() as connection, running.on(connection):
                    return connection.sql(query.sql, params=params).to_arrow_table()
            except _QUERY_ERRORS as error:
                raise QueryError(one_line(error)) from error
            except (duckdb.Error, OSError) as error:
                is_repaired = self._repair(is_thorough=attempt > 0)
                # Another thread's reader may have caught up first: the views are new, or will be.
                is_new = self._is_stale or self._num_refreshes != before
                if not (is_repaired or is_new):
                    raise QueryError(one_line(error)) from error
                self.refresh()
        raise StoreError(f"{self.folder}: the files of the run keep changing, try again")

    def step_rows(self, index: RunIndex, name: str, step: int) -> pa.Table:
        """The visible rows of one step of a data table, after catching up.

        Raises:
            StoreError: the files keep changing.
        """
        for attempt in range(_RETRIES):
            self.refresh()
            with self._lock:
                files = [f for f in index.files(name) if f.first_step <= step <= f.last_step]
            try:
                if self._leave_out(index, files):
                    continue
                return self._lookup.rows(index.layout.root, name, files, step)
            except (OSError, pa.ArrowException) as error:
                if not self._repair(is_thorough=attempt > 0):
                    raise StoreError(f"{index.layout.root}: {one_line(error)}") from error
        raise StoreError(f"{self.folder}: the files of the run keep changing, try again")

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for one query, in a transaction that cannot write."""
        with self._lock:
            connection = self.connection.cursor()
        try:
            connection.execute("BEGIN TRANSACTION READ ONLY")
            yield connection
        finally:
            connection.close()

    def _require_whole(self, names: Iterable[str]) -> None:
        """Hash the files of some tables that were not hashed before; damaged ones are left out.

        Raises:
            OSError: a file is gone, perhaps because it was packed.
        """
        is_changed = False
        for index in list(self.indexes.values()):
            with self._lock:
                files = [file for name in names for file in index.files(name)]
            is_changed |= self._leave_out(index, files)
        if is_changed:
            self.refresh()

    def _leave_out(self, index: RunIndex, files: Sequence[VisibleFile]) -> bool:
        """Leave out what is damaged of some files; whether there was anything."""
        root = index.layout.root
        bad = CHECKS.damaged((root, file.entry) for file in files if file.left is None)
        with self._lock:
            for _, entry, why in bad:
                index.leave_out(entry, why)
                self._is_stale = True
        return bool(bad)

    def _create_tables(self) -> None:
        for name in TABLES:
            self.connection.execute(create_table_sql(name, f"live_{name}"))
        self.connection.execute(create_table_sql("commands", "pending_commands"))

    def _forget_footers(self) -> None:
        """Begin with a new DuckDB where the old one remembers many files that are gone.

        Its cache of footers makes queries over many files fast, and forgets nothing. Queries that
        run at this moment end on the DuckDB on which they began.
        """
        now = {self._prefixes[index.run_id] + entry.path for index, entry in self._entries()}
        self._named |= now
        if len(self._named) - len(now) <= _MAX_FORGOTTEN:
            return
        old = self.connection
        shown = list(self._scans)
        tables = [*(f"live_{name}" for name in TABLES), "pending_commands"]
        rows = {name: old.sql(f"SELECT * FROM {name}").to_arrow_table() for name in tables}
        self._connection = connect(self._files, self._memory_limit)
        self._create_tables()
        for name, table in rows.items():
            if table.num_rows:
                self._replace(name, table)
        old.close()
        self._scans = dict.fromkeys(shown, "")  # each is made again
        self._named = now

    def _scan(self, name: str) -> str:
        """SQL for the visible rows of one table."""
        parts = [f"FROM live_{name}"]
        for index in self.indexes.values():
            prefix = self._prefixes[index.run_id]
            files = index.files(name)
            parts += _read_parts([(file, self._files.name_of(prefix, file)) for file in files])
        columns = ", ".join(f'"{column}"' for column in TABLES[name].column_names)
        return f"SELECT {columns} FROM ({' UNION ALL BY NAME '.join(parts)})"

    def _take_events(self, index: RunIndex) -> None:
        if self._connection is not None:  # or they wait in the index
            self._insert_events(index)
            index.events.clear()

    def _insert_events(self, index: RunIndex) -> None:
        for name in EVENT_TABLES:
            if not index.events.is_empty(name):
                rows = index.events.table(name)
                self.connection.register("new_rows", rows)
                self.connection.execute(f"INSERT INTO live_{name} BY NAME SELECT * FROM new_rows")
                self.connection.unregister("new_rows")

    def _delete_events(self, index: RunIndex) -> None:
        if self._connection is None:
            return
        for name in EVENT_TABLES:
            self.connection.execute(f"DELETE FROM live_{name} WHERE run_id = ?", [index.run_id])

    def _catch_up(self) -> bool:
        """Follow every journal; whether one had news."""
        has_news = [self.follow(index) for index in self.indexes.values()]
        return any(has_news)

    def follow(self, index: RunIndex) -> bool:
        """Follow the journal of one run; whether it had news.

        Raises:
            StoreError: it cannot be read any more, or, from an OSError, not now; or it holds
                events of other types than ours.
        """
        with self._lock:
            try:
                change = index.refresh()
            except StoreError:
                raise
            except OSError as error:
                why = error.strerror or str(error)
                raise StoreError(
                    f"{index.layout.root}: cannot be read now ({why}); ask again"
                ) from error
            if change == "reset":
                self._delete_events(index)
            if change != "same":
                _settle_events(index)
                self._take_events(index)
                self._is_stale = True
            return change != "same"

    def _refresh_view(self, name: str) -> None:
        for attempt in range(_RETRIES):
            sql = self._view_sql(name)
            if self._scans.get(name) == sql:
                return
            try:
                self.connection.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")
            except duckdb.Error as error:
                # Creating a view opens its first file: packed away by now, or damaged.
                if not self._repair(is_thorough=attempt > 0):
                    raise StoreError(f"{self.folder}: {one_line(error)}") from error
            else:
                self._scans[name] = sql
                return
        raise StoreError(f"{self.folder}: the files of the run keep changing, try again")

    def _view_sql(self, name: str) -> str:
        sql = self._scan(name)
        if name != "commands":
            return sql
        return (
            f"{sql} UNION ALL SELECT * FROM pending_commands WHERE command_id NOT IN "
            f"(SELECT command_id FROM ({sql}))"
        )

    def _refresh_runs(self) -> None:
        rows = [run_row(index) for index in self.indexes.values()]
        if rows != self._runs:
            self._replace("live_runs", pa.Table.from_pylist(rows, schema=arrow_schema("runs")))
            self._runs = rows

    def _refresh_pending(self) -> None:
        marks = [folder_mark(index.layout.commands) for index in self.indexes.values()]
        if marks == self._mailboxes and None not in marks:
            return
        self._mailboxes = marks
        self._mail = {
            run_id: self._mail.get(run_id) or PendingCommands(index.layout.root, run_id)
            for run_id, index in self.indexes.items()
        }
        rows = [row for mail in self._mail.values() for row in mail.rows()]
        if rows != self._pending:
            table = pa.Table.from_pylist(rows, schema=arrow_schema("commands"))
            self._replace("pending_commands", table)
            self._pending = rows

    def _replace(self, target: str, rows: pa.Table) -> None:
        self.connection.register("new_rows", rows)
        self.connection.execute(f"BEGIN; DELETE FROM {target}")
        self.connection.execute(f"INSERT INTO {target} SELECT * FROM new_rows")
        self.connection.execute("COMMIT")
        self.connection.unregister("new_rows")

    def _entries(self) -> list[tuple[RunIndex, FileEntry]]:
        """Every data file that is shown, with its run."""
        return [
            (index, file.entry)
            for index in self.indexes.values()
            for name in TABLES
            for file in index.files(name)
        ]

    def _repair(self, *, is_thorough: bool) -> bool:
        """After a failure: catch up, or leave out what is damaged.

        Returns whether anything changed, so that asking again makes sense.
        """
        with self._lock:
            is_changed = self._catch_up()
            if is_changed and not is_thorough:
                return True
            damaged = []
            for index, entry in self._entries():
                try:
                    why = proven_damage(index.layout.root, entry)
                except OSError as error:
                    index.set_aside(entry.path, f"it cannot be read ({error.strerror or error})")
                    is_changed = self._is_stale = True
                else:
                    damaged += [(index, entry, why)] if why else []
            # What went away because it was packed is not named any more by now.
            is_changed = self._catch_up() or is_changed
            for index, entry, why in damaged:
                paths = (f.entry.path for name in TABLES for f in index.files(name))
                if entry.path in paths and index.leave_out(entry, why):
                    is_changed = self._is_stale = True
            return is_changed


def _settle_events(index: RunIndex) -> None:
    """Raises StoreError where an event does not fit its table: not with some later query."""
    try:
        index.events.settle()
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        why = " ".join(str(error).split())[:200]
        raise StoreError(f"{index.layout.root}: its journal holds a wrong value ({why})") from error


def _read_parts(files: Sequence[tuple[VisibleFile, str]]) -> list[str]:
    """`read_parquet` calls for files and their names: one for files read whole, one per file that
    is cut at a step."""
    whole = [(file.entry, name) for file, name in files if file.limit is None]
    # Only files of other minor versions can differ in their columns: asking DuckDB to reconcile
    # them would open every file of the list.
    reconcile = any(entry.schema_version != SCHEMA_VERSION for entry, _ in whole)
    parts = []
    if whole:
        names = ", ".join(quote(name) for _, name in whole)
        option = ", union_by_name = true" if reconcile else ""
        parts.append(f"FROM read_parquet([{names}]{option})")
    parts += [
        f"FROM read_parquet([{quote(name)}]) WHERE step <= {file.limit}"
        for file, name in files
        if file.limit is not None
    ]
    return [f"({part})" for part in parts]


def run_status(index: RunIndex) -> str:
    """`"running"` while a process holds the run; else how it ended, or `"crashed"`."""
    if is_locked(index.layout.writer_lock):
        return "running"
    return index.state.status or "crashed"


def run_row(index: RunIndex) -> dict[str, Any]:
    """The row of `runs`."""
    run, state = index.run, index.state
    row = {name: run.get(name) for name in TABLES["runs"].column_names}
    return row | {
        "status": run_status(index),
        "ended_at": state.ended_at,
        "attempt": state.attempt,
        "last_step": state.last_step,
        "path": str(index.layout.root),
    }
