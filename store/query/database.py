"""An in-memory DuckDB whose views show runs as their journals and packs tell them.

SQL from a browser or a notebook can neither change a run nor look around on the machine. Three
things see to that, each on its own: a query is checked before it is run (`check.py`); it runs
on a connection of its own, in a transaction that cannot write; and the only files that DuckDB can
reach are the data files of the run, through an interface that has no way to write (`run_files.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import QueryError, StoreError
from ..log.index import RunIndex, VisibleFile
from ..log.remote.pulling import is_held
from ..schema import EVENT_TABLES, TABLES, arrow_schema, create_table_sql
from ..status import RUNNING
from ..steer.commands import MailFolder, folder_mark
from .check import CheckedQuery, one_line
from .run_files import SCHEME, RunFiles
from .sql_process import RunningQuery

T = TypeVar("T")
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
_FEW_FILES = 16
"""Of one table of a run: some thousand steps."""
_MAX_FORGOTTEN = 1_000
"""Files that went away since DuckDB was opened: it keeps the footers of all that it has read."""


def quote(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def insert(connection: duckdb.DuckDBPyConnection, target: str, rows: pa.Table) -> None:
    """Put rows into a table that has their columns."""
    if rows.num_rows:
        connection.register("new_rows", rows)
        connection.execute(f"INSERT INTO {target} BY NAME FROM new_rows")
        connection.unregister("new_rows")


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

    Most readers ask for little: DuckDB is opened with the first query, and the files of a table are
    shown with the first query that names it.
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
        self._views: dict[str, str] = {}
        """Tables whose files are shown, and the SQL of their views."""
        self._read_files: set[str] = set()
        """Files that a view has named since DuckDB was opened."""
        self._runs: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []
        self._mailboxes: list[int | None] = []
        self._mail: dict[str, MailFolder] = {}
        for index in indexes:
            self.add(index)

    @property
    def has_duckdb(self) -> bool:
        return self._connection is not None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB, opened where it is not yet. Queries run on cursors of it."""
        with self._lock:
            if self._connection is None:
                self._connection = connect(self._files, self._memory_limit)
                self._views, self._runs, self._pending, self._mailboxes = {}, [], [], []
                self._read_files = set()
                for name in TABLES:
                    self._connection.execute(create_table_sql(name, f"live_{name}"))
                    self._connection.execute(f"CREATE VIEW {name} AS FROM live_{name}")
                self._connection.execute(create_table_sql("commands", "pending_commands"))
                for index in self.indexes.values():
                    self._take_events(index)
                self._refresh_rows()
            return self._connection

    def add(self, index: RunIndex) -> None:
        """Show one more run.

        Raises:
            StoreError: another folder already has its run id.
        """
        with self._lock:
            other = self.indexes.get(index.run_id)
            if other is not None:
                raise StoreError(
                    f"{index.layout.root}: a copy of {other.layout.root}, with the same run id "
                    f"{index.run_id!r}; move the copy to another folder of runs to open it there"
                )
            self.indexes[index.run_id] = index
            self._prefixes[index.run_id] = self._files.add(index.layout.root)
            self._take_events(index)

    def remove(self, run_id: str) -> None:
        """Stop showing a run, because its folder is gone."""
        with self._lock:
            self._delete_events(self.indexes.pop(run_id))
            del self._prefixes[run_id]

    def refresh(self) -> None:
        """Catch up with every run.

        Raises:
            StoreError: a journal cannot be read now.
        """
        with self._lock:
            self._catch_up()
            if self._connection is not None:
                self._refresh_rows()

    def run(self, query: CheckedQuery, params: Any, running: RunningQuery) -> pa.Table:
        """Run checked SQL, on a connection and in a read-only transaction of its own.

        The files of its tables are hashed before their first use. SQL is asked for again where
        files were packed away meanwhile.

        Raises:
            QueryError: DuckDB refuses the query.
            StoreError: the files keep changing.
        """

        def answer() -> pa.Table:
            try:
                with self._reading(query.tables) as connection, running.on(connection):
                    return connection.sql(query.sql, params=params).to_arrow_table()
            except _QUERY_ERRORS as error:
                raise QueryError(one_line(error)) from error

        return self._again(answer, QueryError)

    def _again(self, read: Callable[[], T], refusal: Callable[[str], Exception]) -> T:
        """Read files, once more where they were packed away meanwhile.

        Args:
            refusal: the error where they are there, and cannot be read.

        Raises:
            StoreError: the files keep changing.
        """
        for attempt in range(_RETRIES):
            try:
                return read()
            except (duckdb.Error, OSError, pa.ArrowException) as error:
                if not self._catch_up() and attempt:
                    raise refusal(one_line(error)) from error
        raise StoreError(f"{self.folder}: the files of the run keep changing, try again")

    def step_rows(self, index: RunIndex, name: str, step: int) -> pa.Table:
        """The visible rows of one step of a data table, after catching up; raises as `_again`."""
        self.refresh()
        schema = arrow_schema(name)
        is_of_step = pc.field("step") == step

        def read() -> pa.Table:
            with self._lock:
                self._check_files(index, [name], step)
                files = [f for f in index.files(name) if f.first_step <= step <= f.last_step]
            parts = (file.rows(index.layout.root, where=is_of_step) for file in files)
            return pa.concat_tables([schema.empty_table(), *parts])

        return self._again(read, lambda why: StoreError(f"{index.layout.root}: {why}"))

    def few_rows(
        self, index: RunIndex, name: str, keys: Sequence[str] | None = None
    ) -> pa.Table | None:
        """The visible rows of an event table of one run, after catching up, without DuckDB.

        None where DuckDB is open or the files are many: then DuckDB is faster. To open one takes
        longer than to read the few files of a usual run, and a page may ask of a hundred runs.

        Raises as `_again`.

        Args:
            keys: Of the table `metrics`: only these.
        """
        self.refresh()
        of_keys = None if keys is None else pc.field("key").isin(list(keys))

        def read() -> pa.Table | None:
            with self._lock:
                if self._connection is not None or len(index.visible_files(name)) > _FEW_FILES:
                    return None
                self._check_files(index, [name])
                files, live = index.files(name), index.events.table(name)
            parts = [file.rows(index.layout.root, where=of_keys) for file in files]
            rows = pa.concat_tables([*parts, live if of_keys is None else live.filter(of_keys)])
            return self._with_waiting(index, rows) if name == "commands" else rows

        return self._again(read, lambda why: StoreError(f"{index.layout.root}: {why}"))

    def _with_waiting(self, index: RunIndex, commands: pa.Table) -> pa.Table:
        """Commands of the journal, then those that still wait in the mailbox."""
        with self._lock:
            run_id = index.run_id
            mail = self._mail.setdefault(run_id, MailFolder(index.layout.root, run_id))
            pending = mail.rows()
        answered = set(commands.column("command_id").to_pylist())
        waiting = [row for row in pending if row["command_id"] not in answered]
        return pa.concat_tables([commands, pa.Table.from_pylist(waiting, schema=commands.schema)])

    @contextmanager
    def _reading(self, tables: Iterable[str]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for one query over some tables, in a transaction that cannot write."""
        with self._lock:
            for index in self.indexes.values():
                self._check_files(index, tables)
            for name in tables:
                self._show(name)
            connection = self.connection.cursor()
        try:
            connection.execute("BEGIN TRANSACTION READ ONLY")
            yield connection
        finally:
            connection.close()

    def _check_files(self, index: RunIndex, names: Iterable[str], step: int | None = None) -> None:
        """Hash files that were not hashed before; damaged ones are left out.

        Args:
            step: only those that may hold rows of this step; None for all.
        """
        for _ in range(_RETRIES):
            files: list[VisibleFile] = [
                file
                for name in names
                for file in index.visible_files(name)
                if step is None or file.first_step <= step <= file.last_step
            ]
            # What is news may be missing because it was packed: then the journal says so.
            if not index.check_files(files) or not self.follow(index):
                return
            for file in files:
                index.left_out.pop(file.entry.path, None)

    def _show(self, name: str) -> None:
        """Make the view of a table over the files that count and are whole."""
        sql = self._view_sql(name)
        if self._views.get(name) != sql:
            self.connection.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")
            self._views[name] = sql

    def _view_sql(self, name: str) -> str:
        parts = [f"FROM live_{name}"]
        for run_id, index in self.indexes.items():
            prefix = self._prefixes[run_id]
            files = [(prefix + file.entry.path, file.limit) for file in index.files(name)]
            self._read_files.update(path for path, _ in files)
            if whole := [quote(path) for path, limit in files if limit is None]:
                parts.append(f"FROM read_parquet([{', '.join(whole)}])")
            for path, limit in files:
                if limit is not None:
                    parts.append(f"FROM read_parquet({quote(path)}) WHERE step <= {limit}")
        columns = ", ".join(f'"{column}"' for column in TABLES[name].column_names)
        rows = " UNION ALL BY NAME ".join(f"({part})" for part in parts)
        sql = f"SELECT {columns} FROM ({rows})"
        if name != "commands":
            return sql
        return (
            f"{sql} UNION ALL SELECT * FROM pending_commands WHERE command_id NOT IN "
            f"(SELECT command_id FROM ({sql}))"
        )

    def _forget_footers(self) -> bool:
        """Close DuckDB where it remembers the footers of many files that are gone.

        Its cache makes queries over many files fast, and forgets nothing. Queries that run at this
        moment end on the DuckDB on which they began; the next one opens another.
        """
        named = {
            self._prefixes[run_id] + entry.path
            for run_id, index in self.indexes.items()
            for group in index.groups
            for entry in group.files
        }
        if len(self._read_files - named) <= _MAX_FORGOTTEN:
            return False
        self._connection = None
        for index in self.indexes.values():
            index.reload()
        return True

    def _take_events(self, index: RunIndex) -> None:
        if self._connection is None:
            return  # they wait in the index
        for name in EVENT_TABLES:
            if not index.events.is_empty(name):
                insert(self._connection, f"live_{name}", index.events.table(name))
        index.events.clear()

    def _delete_events(self, index: RunIndex) -> None:
        if self._connection is not None:
            for name in EVENT_TABLES:
                self._connection.execute(
                    f"DELETE FROM live_{name} WHERE run_id = ?", [index.run_id]
                )

    def _catch_up(self) -> bool:
        """Follow every journal; whether one had news."""
        with self._lock:
            has_news = [self.follow(index) for index in self.indexes.values()]
            return any(has_news)

    def follow(self, index: RunIndex) -> bool:
        """Follow the journal of one run; whether it had news.

        Raises:
            StoreError: it cannot be read any more, or, from an OSError, not now.
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
                if self._forget_footers():
                    return True
                self._delete_events(index)
            if change != "same":
                self._take_events(index)
            return change != "same"

    def _refresh_rows(self) -> None:
        """The rows that no file holds: of the runs, and of commands that wait in mailboxes."""
        rows = [run_row(index) for index in self.indexes.values()]
        if rows != self._runs:
            self._replace("live_runs", pa.Table.from_pylist(rows, schema=arrow_schema("runs")))
            self._runs = rows
        marks = [folder_mark(index.layout.commands) for index in self.indexes.values()]
        if marks == self._mailboxes and None not in marks:
            return
        self._mailboxes = marks
        self._mail = {
            run_id: self._mail.get(run_id) or MailFolder(index.layout.root, run_id)
            for run_id, index in self.indexes.items()
        }
        pending = [row for mail in self._mail.values() for row in mail.rows()]
        if pending != self._pending:
            table = pa.Table.from_pylist(pending, schema=arrow_schema("commands"))
            self._replace("pending_commands", table)
            self._pending = pending

    def _replace(self, target: str, rows: pa.Table) -> None:
        self.connection.execute(f"BEGIN; DELETE FROM {target}")
        insert(self.connection, target, rows)
        self.connection.execute("COMMIT")


def run_row(index: RunIndex) -> dict[str, Any]:
    """The row of `runs`."""
    run, state = index.run, index.state
    row = {name: run.get(name) for name in TABLES["runs"].column_names}
    return row | {
        # Nobody holds it and nobody closed it: it crashed.
        "status": RUNNING if is_held(index.layout) else state.status or "crashed",
        "ended_at": state.ended_at,
        "attempt": state.attempt,
        "last_step": state.last_step,
        "path": str(index.layout.root),
    }
