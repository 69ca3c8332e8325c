"""SQL of somebody else, within limits: in a process of its own that can be ended at any time.

DuckDB heeds its limits of time and memory while it runs a query, but not while it makes the plan,
which a few hundred characters can let grow without end. So the limits are those of the operating
system: of the memory of a process, and of its life. `worker.py` is that process. It is started
with the first query, and again after it had to be ended.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from echoscope.text.limited_child import connected_child, environment

from .. import errors
from ..errors import QueryError

if TYPE_CHECKING:
    import duckdb

MAX_WORKERS = 3
"""Queries that are answered at once; others wait."""
GRACE_S = 1.0
"""How long a query may take to end by itself once its time is over."""
START_S = 120.0
"""For the process to start and to read the journal of a run: not the time of the query."""
SHORTEN = "Ask for fewer steps, for example: WHERE step BETWEEN 100 AND 200"
_INTERRUPTED = "the query was interrupted"
_MEMORY = re.compile(r"([0-9]+) ?([MG])B")
_KINDS = ("QueryError", "NotARunError", "StoreVersionError", "StoreError")
"""Errors of `store.errors` that the process names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlLimits:
    """What a query may take."""

    seconds: float = 10.0
    memory: str = "1GB"
    """For DuckDB; the process may take half a gigabyte more. `MB` or `GB`."""
    rows: int | None = None
    """Rows of the answer; further ones are left out."""
    answer_bytes: int = 256_000_000
    """Of the whole answer; a larger one is refused."""
    advice: str = ""
    """Where to raise the limits, in a sentence that ends a refusal."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < 1e9:
            raise QueryError(
                f"a query may take {self.seconds:g} seconds, but the limit must be above 0"
            )
        if not self.memory_bytes:
            raise QueryError(f"a memory limit is 500MB or 4GB, not {self.memory[:40]!r}")

    @property
    def memory_bytes(self) -> int:
        """0 where `memory` is none."""
        match = _MEMORY.fullmatch(self.memory)
        return int(match[1]) * {"M": 10**6, "G": 10**9}[match[2]] if match else 0

    def refusal(self, text: str) -> QueryError:
        """A refusal, with the advice."""
        return QueryError(f"{text}. {self.advice}" if self.advice else text)


OWN = SqlLimits(seconds=300.0, memory="4GB", answer_bytes=4_000_000_000)
"""Of a query that a person types at their own prompt."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundedAnswer:
    """What a query gave."""

    table: pa.Table
    warnings: tuple[str, ...]
    """Files of the run that were left out."""
    is_cut: bool
    """There are more rows than the limits let through."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlRequest:
    """One query, as the process is asked."""

    path: str
    """A run, or a folder of runs."""
    folder: str
    """That a relative path begins from."""
    sql: str
    all_attempts: bool
    limits: SqlLimits


Params = Sequence[Any] | Mapping[str, Any] | None


def ask(
    path: str | Path,
    sql: str,
    params: Params = None,
    *,
    limits: SqlLimits,
    all_attempts: bool = False,
    running: RunningQuery | None = None,
) -> BoundedAnswer:
    """Answer one SELECT over a run, or over the runs of a folder, in a process of its own.

    Args:
        running: Another thread may stop the query with it.

    Raises:
        QueryError: not one SELECT that only reads, DuckDB refuses it, it was stopped, or it goes
            beyond the limits; one line.
        StoreError: the run cannot be read.
    """
    question = SqlRequest(
        path=str(path), folder=os.getcwd(), sql=sql, all_attempts=all_attempts, limits=limits
    )
    given = table_bytes(_row(params)) if params else b""
    running = running or RunningQuery()
    with _POOL.worker(limits) as worker, running.on(worker):
        return worker.ask(json.dumps(asdict(question)).encode(), given, limits)


def warm_up(limits: SqlLimits) -> None:
    """Start a process if none waits: a person is about to type a query."""
    _POOL.warm_up(limits)


def end_all() -> None:
    """End every process, also those that answer a query at this moment."""
    _POOL.close()


class RunningQuery:
    """The query that a reader is answering: another thread may stop it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answering: duckdb.DuckDBPyConnection | _Worker | None = None
        self._is_interrupted = False

    def begin(self) -> None:
        """A new query begins: what was stopped before is over."""
        with self._lock:
            self._is_interrupted = False

    def interrupt(self) -> None:
        """Stop the query, also where it has not reached DuckDB yet."""
        with self._lock:
            self._is_interrupted = True
            if self._answering is not None:
                self._answering.interrupt()

    @contextmanager
    def on(self, answering: duckdb.DuckDBPyConnection | _Worker) -> Iterator[None]:
        """While this lasts, the query is being answered.

        Raises:
            QueryError: the query was stopped before.
        """
        with self._lock:
            if self._is_interrupted:
                raise QueryError(_INTERRUPTED)
            self._answering = answering
        try:
            yield
        finally:
            with self._lock:
                self._answering = None


class _Worker:
    """One process. Whatever goes wrong in it, the next query has another one.

    Messages are bytes: JSON, and streams of Arrow. Nothing is unpickled.
    """

    def __init__(self, memory: str) -> None:
        self.memory = memory
        self.is_fit = False
        """It waits for a question: not while it answers one, nor after it failed to."""
        self._is_stopped = False
        self._process, self._connection = connected_child(f"{__package__}.worker", environment())

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: bytes, params: bytes, limits: SqlLimits) -> BoundedAnswer:
        """Put a question, and read the answer.

        Raises:
            QueryError, StoreError: as `ask`.
        """
        self.is_fit = False
        started = time.monotonic()
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # then nothing comes back either
                self._connection.send_bytes(question)
                self._connection.send_bytes(params)
            head = self._head(START_S)
            if head.get("state") == "begun":
                started = time.monotonic()
                head = self._head(limits.seconds + 2 * GRACE_S)
            seconds = time.monotonic() - started
            if head.get("state") != "answer":
                raise self._refusal(head, limits)
            data = self._message(START_S, 2 * limits.answer_bytes + 1_000_000)
            table = pa.ipc.open_stream(data).read_all()
            table.validate()
        except QueryError:
            raise
        except (EOFError, TimeoutError, ValueError, ConnectionError, pa.ArrowException) as error:
            raise limits.refusal(self._why_ended(error, limits)) from error
        self.is_fit = True
        return BoundedAnswer(
            table=table,
            warnings=tuple(map(str, head["warnings"])),
            is_cut=bool(head["is_cut"]),
            seconds=seconds,
        )

    def _message(self, patience_s: float, most_bytes: int) -> bytes:
        if not self._connection.poll(patience_s):
            raise TimeoutError("no answer in time")
        return self._connection.recv_bytes(most_bytes)

    def _head(self, patience_s: float) -> dict[str, Any]:
        """The next message, which is a JSON object."""
        return dict(json.loads(self._message(patience_s, 10_000_000)))

    def _refusal(self, head: Mapping[str, Any], limits: SqlLimits) -> Exception:
        """The error that the process names."""
        self.is_fit = bool(head.get("is_fit"))
        kind, text = str(head.get("state")), str(head.get("text"))
        if kind == "time":
            return limits.refusal(_stopped_words(limits))
        if kind == "limit":
            return limits.refusal(text)
        error_class: type[Exception] = vars(errors)[kind if kind in _KINDS else "QueryError"]
        return error_class(text)

    def _why_ended(self, error: Exception, limits: SqlLimits) -> str:
        """Why the process gave no answer, once it has ended."""
        if self._is_stopped:
            return _INTERRUPTED
        is_late = isinstance(error, TimeoutError)
        if isinstance(error, EOFError | ConnectionError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(START_S)
            is_late = self._process.returncode == -signal.SIGALRM
        if is_late:
            return _stopped_words(limits)
        return f"the query needs more than the {limits.memory} that it may use. {SHORTEN}"

    def interrupt(self) -> None:
        """End the process, because nobody wants the answer any more."""
        self._is_stopped = True
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()


def _stopped_words(limits: SqlLimits) -> str:
    return f"the query was stopped after {limits.seconds:g} seconds. {SHORTEN}"


class _Pool:
    """The processes of this one. One at most waits for a next query: it takes about 100 MB."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """After a fork the processes are those of the parent."""
        self._lock = threading.Lock()
        self._free = threading.Semaphore(MAX_WORKERS)
        self._idle: _Worker | None = None
        self._busy: set[_Worker] = set()

    @contextmanager
    def worker(self, limits: SqlLimits) -> Iterator[_Worker]:
        """A process for one query.

        Raises:
            QueryError: too many others are being answered.
        """
        if not self._free.acquire(timeout=limits.seconds + GRACE_S):
            raise QueryError(
                f"{MAX_WORKERS} other queries are running; ask again when one has ended"
            )
        try:
            worker = self._take(limits.memory)
            try:
                yield worker
            finally:
                self._give_back(worker)
        finally:
            self._free.release()

    def _take(self, memory: str) -> _Worker:
        with self._lock:
            worker = self._idle
            if worker is not None and worker.memory == memory and worker.is_alive:
                self._idle = None
            else:
                worker = _Worker(memory)
            self._busy.add(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
            ended: _Worker | None = worker
            if worker.is_fit:
                ended, self._idle = self._idle, worker
        if ended is not None:
            ended.close()

    def warm_up(self, limits: SqlLimits) -> None:
        with self._lock:
            if self._idle is None and not self._busy:
                self._idle = _Worker(limits.memory)
                self._idle.is_fit = True

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, None
            for worker in self._busy:
                worker.interrupt()
        if idle is not None:
            idle.close()


_POOL = _Pool()
os.register_at_fork(after_in_child=_POOL.forget)
atexit.register(end_all)


def _row(params: Sequence[Any] | Mapping[str, Any]) -> pa.Table:
    """Parameters as a table of one row: a column each, by name or by number."""
    named = params if isinstance(params, Mapping) else {str(n): v for n, v in enumerate(params, 1)}
    try:
        columns = [pa.array([list(v) if isinstance(v, tuple) else v]) for v in named.values()]
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise QueryError(f"a parameter has no type that a query knows: {error}") from error
    return pa.Table.from_arrays(columns, names=[str(name) for name in named])


def table_bytes(table: pa.Table) -> pa.Buffer:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()
