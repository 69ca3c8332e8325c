"""The process that answers SQL of somebody else: `sql_process.py` starts it, asks it, and ends it.

It reads questions from a socket and writes answers to it, and ends when that is closed. What ends
it earlier is the operating system: a signal when the time of a query is over, and a limit of memory
that counts everything, the planning of a query included.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ..errors import NotARunError, QueryError, StoreError
from ..log.layout import Layout
from ..reader import RunReader, RunsReader, open_run, open_runs
from .check import checked_query
from .sql_process import GRACE_S, SHORTEN, SqlLimits, SqlRequest, table_bytes

MAX_READERS = 2
SLACK_BYTES = 512 << 20
"""For the answer as Arrow, and for what allocators leave unused."""


def work(descriptor: int) -> None:
    """Answer questions until there are no more: `python -c "from ... import work; work(7)"`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: whoever asked decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes no file
    with Connection(descriptor) as connection, suppress(EOFError, ConnectionError):
        while True:
            fields = json.loads(connection.recv_bytes())
            params = connection.recv_bytes()
            question = SqlRequest(**fields | {"limits": SqlLimits(**fields["limits"])})
            _answer(question, params, connection)


def _answer(question: SqlRequest, params: bytes, connection: Connection) -> None:
    """Answer one question: a head in JSON, and the rows as a stream of Arrow."""
    started = time.monotonic()
    try:
        reader = _reader(question)
        _send(connection, {"state": "begun"})
        started = time.monotonic()
        with _limited(reader, question):
            table, is_cut = _asked(reader, question, _values(params))
        data = table_bytes(table)
    except StoreError as error:
        _send(connection, {"state": type(error).__name__, "text": str(error), "is_fit": True})
    except QueryError as error:
        is_late = time.monotonic() - started >= question.limits.seconds
        has_filled = isinstance(error.__cause__, duckdb.OutOfMemoryException)
        kind = "time" if is_late else "limit" if has_filled else "QueryError"
        # Memory that was filled to its limit may not all have come back.
        _send(connection, {"state": kind, "text": str(error), "is_fit": not has_filled})
    except Exception as error:  # noqa: BLE001 -- told to whoever asked; raised, nobody would see it
        # Not fit for another question: who knows what was left unfinished.
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        text = f"the answer cannot be put together ({why}). {SHORTEN}"
        _send(connection, {"state": "QueryError", "text": text})
    else:
        _send(connection, {"state": "answer", "is_cut": is_cut, "warnings": reader.warnings})
        connection.send_bytes(data)


def _send(connection: Connection, head: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(head).encode())


@contextmanager
def _limited(reader: RunReader | RunsReader, question: SqlRequest) -> Iterator[None]:
    """While this lasts, the query has its time: DuckDB is asked to stop, and then the process ends.

    The alarm is the operating system's: it needs neither Python nor whoever asked.
    """
    timer = threading.Timer(question.limits.seconds, reader.interrupt)
    timer.daemon = True
    signal.setitimer(signal.ITIMER_REAL, question.limits.seconds + GRACE_S)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _asked(
    reader: RunReader | RunsReader, question: SqlRequest, params: Any
) -> tuple[pa.Table, bool]:
    """The answer, and whether it is cut."""
    limits, query = question.limits, question.sql.strip().rstrip(";")
    most = limits.rows
    if most is not None:
        # Before it stands between brackets, which it might close.
        checked_query(query)
        # The line break ends a comment at the end of the query.
        query = f"SELECT * FROM (\n{query}\n) LIMIT {most + 1}"
    table = reader.sql(query, params)
    if table.nbytes > limits.answer_bytes:
        raise QueryError(
            f"the answer has {table.nbytes / 1e6:,.0f} MB, at most "
            f"{limits.answer_bytes / 1e6:,.0f} MB are given. Name fewer columns, or ask for the "
            "beginning of texts: left(response, 200)"
        )
    return (table, False) if most is None else (table.slice(0, most), table.num_rows > most)


def _values(params: bytes) -> list[Any] | dict[str, Any] | None:
    """The parameters of a query, by name or by number."""
    if not params:
        return None
    (row,) = pa.ipc.open_stream(params).read_all().to_pylist(maps_as_pydicts="lossy")
    return list(row.values()) if all(name.isdecimal() for name in row) else row


def _reader(question: SqlRequest) -> RunReader | RunsReader:
    """A reader of a run, or of the runs in a folder that is none, with DuckDB opened."""
    limits = question.limits
    os.chdir(question.folder)
    path = Path(question.path)
    run_json = Layout(path).run_json
    is_run = run_json.is_file() or not path.is_dir()
    stats = run_json.stat() if run_json.is_file() else path.stat() if path.is_dir() else None
    # Inodes are used again: another run may have taken the place of one.
    identity = stats and ((stats.st_ino, stats.st_mtime_ns) if is_run else stats.st_ino)
    key = (path.resolve(), identity)
    reader = _opened(path, key, is_run, question.all_attempts, limits.memory)
    reader.sql("SELECT 1")
    _limit_memory(limits.memory_bytes)
    return reader


@lru_cache(maxsize=MAX_READERS)
def _opened(
    path: Path, key: Hashable, is_run: bool, all_attempts: bool, memory: str
) -> RunReader | RunsReader:
    """A reader of a path; `key` says what lies there now."""
    if is_run:
        return open_run(path, all_attempts=all_attempts, memory_limit=memory)
    reader = open_runs(path, memory_limit=memory)
    if not reader.infos():
        raise NotARunError(f"{path}: not a run, and holds none")
    return reader


def _limit_memory(num_bytes: int) -> None:
    """Once, with DuckDB and its threads there: from now on no more than this comes on top."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + num_bytes + SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
