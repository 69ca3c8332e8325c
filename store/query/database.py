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
from ..schema import DATA_TABLES, TABLES, arrow_schema, create_table_sql
from ..status import RUNNING
from ..steer.commands import MailFolder
from .check import CheckedQuery, one_line
from .run_files import SCHEME, RunFiles
from .sql_process import RunningQuery

T = TypeVar("T")
Steps = tuple[int, int]
"""The first and the last of a range."""
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
                self._views, self._read_files = {}, set()
                for name in TABLES:
                    # Empty: `_reading` puts the rows that no file holds in its place.
                    self._connection.execute(create_table_sql(name, f"live_{name}"))
                    self._connection.execute(f"CREATE VIEW {name} AS FROM live_{name}")
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
            self._mail[index.run_id] = MailFolder(index.layout.root, index.run_id)

    def remove(self, run_id: str) -> None:
        """Stop showing a run, because its folder is gone."""
        with self._lock:
            del self.indexes[run_id], self._prefixes[run_id], self._mail[run_id]

    def refresh(self) -> bool:
        """Catch up with every run; whether one had news.

        Raises:
            StoreError: a journal cannot be read now.
        """
        with self._lock:
            has_news = [self.follow(index) for index in self.indexes.values()]
            return any(has_news)

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
                if not self.refresh() and attempt:
                    raise refusal(one_line(error)) from error
        raise StoreError(f"{self.folder}: the files of the run keep changing, try again")

    def step_rows(
        self, index: RunIndex, name: str, steps: Steps, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The visible rows of some steps of a data table, after catching up; raises as `_again`.

        Args:
            columns: Only these; None for all.
        """
        self.follow(index)
        nothing = arrow_schema(name).empty_table()
        nothing = nothing if columns is None else nothing.select(columns)
        is_of_steps = (pc.field("step") >= steps[0]) & (pc.field("step") <= steps[1])

        def read() -> pa.Table:
            with self._lock:
                self._check_files(index, [name], steps)
                files = [file for file in index.files(name) if _has_some(file, steps)]
            parts = (file.rows(index.layout.root, columns, is_of_steps) for file in files)
            return pa.concat_tables([nothing, *parts])

        return self._again(read, lambda why: StoreError(f"{index.layout.root}: {why}"))

    def few_rows(
        self, index: RunIndex, name: str, keys: Sequence[str] | None = None
    ) -> pa.Table | None:
        """The visible rows of an event table of one run, after catching up, without DuckDB.

        None where the files are many: then DuckDB is faster. To open one takes longer than to read
        the few files of a usual run, and a page may ask of a hundred runs.

        Raises as `_again`.

        Args:
            keys: Of the table `metrics`: only these.
        """
        self.follow(index)
        of_keys = None if keys is None else pc.field("key").isin(list(keys))

        def read() -> pa.Table | None:
            with self._lock:
                if len(index.visible_files(name)) > _FEW_FILES:
                    return None
                self._check_files(index, [name])
                files, live = index.files(name), self._live_rows(index, name)
            parts = [file.rows(index.layout.root, where=of_keys) for file in files]
            return pa.concat_tables([*parts, live if of_keys is None else live.filter(of_keys)])

        return self._again(read, lambda why: StoreError(f"{index.layout.root}: {why}"))

    def _live_rows(self, index: RunIndex, name: str) -> pa.Table:
        """The rows of an event table of one run that no file holds."""
        live = index.events.table(name)
        if name != "commands" or not (mail := self._mail[index.run_id].rows()):
            return live
        columns = ["command_id"]
        stored = (file.rows(index.layout.root, columns) for file in index.files(name))
        stored_ids = {row["command_id"] for rows in (live, *stored) for row in rows.to_pylist()}
        waiting = [row for row in mail if row["command_id"] not in stored_ids]
        return pa.concat_tables([live, pa.Table.from_pylist(waiting, schema=live.schema)])

    def _live_table(self, name: str) -> pa.Table:
        """The rows of a table that no file holds, of all runs."""
        schema, indexes = arrow_schema(name), self.indexes.values()
        if name == "runs":
            return pa.Table.from_pylist([run_row(index) for index in indexes], schema=schema)
        live = (self._live_rows(index, name) for index in indexes)
        return pa.concat_tables([schema.empty_table(), *live])

    @contextmanager
    def _reading(self, tables: Iterable[str]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for one query over some tables, in a transaction that cannot write."""
        with self._lock:
            for index in self.indexes.values():
                self._check_files(index, tables)
            self._forget_footers()
            for name in tables:
                self._show(name)
            connection = self.connection.cursor()
            for name in set(tables) - set(DATA_TABLES):
                connection.register(f"live_{name}", self._live_table(name))
            connection.execute("BEGIN TRANSACTION READ ONLY")
            # With its first statement it begins: no other thread's view comes to these rows.
            connection.execute("FROM live_tokens")
        try:
            yield connection
        finally:
            connection.close()

    def _check_files(
        self, index: RunIndex, names: Iterable[str], steps: Steps | None = None
    ) -> None:
        """Hash files that were not hashed before; damaged ones are left out.

        Args:
            steps: only those that may hold rows of these steps; None for all.
        """
        for _ in range(_RETRIES):
            visible = (file for name in names for file in index.visible_files(name))
            files = [file for file in visible if steps is None or _has_some(file, steps)]
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
        return f"SELECT {columns} FROM ({rows})"

    def _forget_footers(self) -> None:
        """Close DuckDB where it remembers the footers of many files that are gone.

        Its cache makes queries over many files fast, and forgets nothing. Queries that run at this
        moment end on the DuckDB on which they began; the next one opens another.
        """
        if len(self._read_files) <= _MAX_FORGOTTEN:
            return
        named = {
            self._prefixes[run_id] + entry.path
            for run_id, index in self.indexes.items()
            for group in index.groups
            for entry in group.files
        }
        if len(self._read_files - named) > _MAX_FORGOTTEN:
            self._connection = None

    def follow(self, index: RunIndex) -> bool:
        """Follow the journal of one run; whether it had news.

        Raises:
            StoreError: it cannot be read any more, or, from an OSError, not now.
        """
        with self._lock:
            try:
                return index.refresh()
            except StoreError:
                raise
            except OSError as error:
                why = error.strerror or str(error)
                raise StoreError(
                    f"{index.layout.root}: cannot be read now ({why}); ask again"
                ) from error


def _has_some(file: VisibleFile, steps: Steps) -> bool:
    """Whether a file may hold rows of some steps."""
    return file.first_step <= steps[1] and steps[0] <= file.last_step


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
