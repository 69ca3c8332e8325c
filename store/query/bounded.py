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
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from echoscope.text.limited_child import environment

from .. import errors
from ..errors import QueryError

MAX_WORKERS = 3
"""Queries that are answered at once; others wait."""
MAX_IDLE = 1
"""Processes that wait for a next query: each takes about 100 MB."""
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

    def sentence(self, text: str) -> str:
        """A refusal, with the advice."""
        return f"{text}. {self.advice}" if self.advice else text


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
class Question:
    """One query, as the process is asked."""

    path: str
    """A run, or a folder of runs."""
    folder: str
    """That a relative path begins from."""
    sql: str
    all_attempts: bool
    has_warnings: bool
    limits: SqlLimits


Params = Sequence[Any] | Mapping[str, Any] | None


def ask(
    path: str | Path,
    sql: str,
    params: Params = None,
    *,
    limits: SqlLimits,
    all_attempts: bool = False,
    has_warnings: bool = False,
    running: RunningQuery | None = None,
) -> BoundedAnswer:
    """Answer one SELECT over a run, or over the runs of a folder, in a process of its own.

    Args:
        has_warnings: Whether every table is looked through for files that cannot be read.
        running: Another thread may stop the query with it.

    Raises:
        QueryError: not one SELECT that only reads, DuckDB refuses it, it was stopped, or it goes
            beyond the limits; one line.
        StoreError: the run cannot be read.
    """
    question = Question(
        path=str(path),
        folder=os.getcwd(),
        sql=sql,
        all_attempts=all_attempts,
        has_warnings=has_warnings,
        limits=limits,
    )
    data = json.dumps(asdict(question)).encode()
    given = written(_row(params)) if params else b""
    running = running or RunningQuery()
    with _POOL.worker(limits) as worker, running.on(worker):
        return worker.ask((data, given), limits)


def warm_up(limits: SqlLimits) -> None:
    """Start a process if none waits: a person is about to type a query."""
    _POOL.warm_up(limits)


def end_all() -> None:
    """End every process, also those that answer a query at this moment."""
    _POOL.close()


class Interruptible(Protocol):
    """What answers a query: a connection to DuckDB, or a process."""

    def interrupt(self) -> None: ...


class RunningQuery:
    """The query that a reader is answering: another thread may stop it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answering: Interruptible | None = None
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
    def on(self, answering: Interruptible) -> Iterator[None]:
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
    """One process. Whatever goes wrong in it, the next query has another one."""

    def __init__(self, memory: str) -> None:
        self.memory = memory
        self.is_fit = False
        """It waits for a question: not while it answers one, nor after it failed to."""
        self._is_stopped = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__package__}.worker import work; work()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin
        self._answers = _Answers(self._process.stdout.fileno())

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, frames: Sequence[bytes], limits: SqlLimits) -> BoundedAnswer:
        """Put a question, and read the answer.

        Raises:
            QueryError, StoreError: as `ask`.
        """
        self.is_fit = False
        started = time.monotonic()
        try:
            self._answers.until(started + START_S)
            with suppress(BrokenPipeError):  # then nothing comes back either
                for frame in frames:
                    write_frame(self._requests, frame)
                self._requests.flush()
            head = self._answers.head()
            if head.get("state") == "begun":
                started = time.monotonic()
                self._answers.until(started + limits.seconds + 2 * GRACE_S)
                head = self._answers.head()
            seconds = time.monotonic() - started
            if head.get("state") != "answer":
                raise self._refusal(head, limits)
            self._answers.until(time.monotonic() + START_S, limits.answer_bytes)
            table = pa.ipc.open_stream(pa.PythonFile(self._answers, mode="r")).read_all()
            table.validate()
        except (EOFError, TimeoutError, ValueError, KeyError, pa.ArrowException) as error:
            if isinstance(error, QueryError):
                raise
            raise QueryError(limits.sentence(self._why_ended(error, limits))) from error
        self.is_fit = True
        return BoundedAnswer(
            table=table,
            warnings=tuple(map(str, head["warnings"])),
            is_cut=bool(head["is_cut"]),
            seconds=seconds,
        )

    def _refusal(self, head: Mapping[str, Any], limits: SqlLimits) -> Exception:
        """The error that the process names."""
        self.is_fit = bool(head.get("is_fit"))
        kind, text = str(head.get("state")), str(head.get("text"))
        if kind == "time":
            return QueryError(limits.sentence(_stopped_words(limits)))
        if kind == "limit":
            return QueryError(limits.sentence(text))
        found: type[Exception] = vars(errors)[kind if kind in _KINDS else "QueryError"]
        return found(text)

    def _why_ended(self, error: Exception, limits: SqlLimits) -> str:
        """Why the process gave no answer, once it has ended."""
        if self._is_stopped:
            return _INTERRUPTED
        is_late = isinstance(error, TimeoutError)
        if not is_late and isinstance(error, EOFError):
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
        self._answers.is_closed = True
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not written goes nowhere
                    pipe.close()


def _stopped_words(limits: SqlLimits) -> str:
    return f"the query was stopped after {limits.seconds:g} seconds. {SHORTEN}"


class _Answers:
    """What a process writes, read until a deadline and not beyond a size."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._deadline = 0.0
        self._bytes_left = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self.is_closed = False

    @property
    def closed(self) -> bool:
        """For Arrow."""
        return self.is_closed

    def until(self, deadline: float, most_bytes: int = 1_000_000) -> None:
        self._deadline, self._bytes_left = deadline, 2 * most_bytes + 1_000_000

    def head(self) -> dict[str, Any]:
        """The next frame, which is a JSON object."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        value = json.loads(self._exactly(length))
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return value

    def _exactly(self, size: int) -> bytes:
        data = self.read(size)
        if len(data) < size:
            raise EOFError("the process ended")
        return data

    def read(self, size: int) -> bytes:
        """So many bytes; fewer where the process has ended.

        Raises:
            TimeoutError: they did not come in time.
            ValueError: more than may come.
        """
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ValueError("the answer is larger than it may be")
        data = bytearray(size)
        view, num_read = memoryview(data), 0
        while num_read < size:
            left_ms = int((self._deadline - time.monotonic()) * 1000)
            if left_ms < 0:
                raise TimeoutError("no answer in time")
            if self._poll.poll(left_ms + 1):
                part = os.readv(self._descriptor, [view[num_read:]])
                if not part:
                    break
                num_read += part
        return bytes(view[:num_read])


class _Pool:
    """The processes of this one."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """After a fork the processes are those of the parent."""
        self._lock = threading.Lock()
        self._free = threading.Semaphore(MAX_WORKERS)
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

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
            worker = next((w for w in self._idle if w.memory == memory and w.is_alive), None)
            if worker is None:
                worker = _Worker(memory)
            else:
                self._idle.remove(worker)
            self._busy.append(worker)
        return worker

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            if worker in self._busy:
                self._busy.remove(worker)
            if worker.is_fit:
                self._idle.append(worker)
            ended = [] if worker.is_fit else [worker]
            ended += [self._idle.pop(0) for _ in self._idle[MAX_IDLE:]]
        for one in ended:
            one.close()

    def warm_up(self, limits: SqlLimits) -> None:
        with self._lock:
            if not any(w.memory == limits.memory for w in self._idle + self._busy):
                worker = _Worker(limits.memory)
                worker.is_fit = True
                self._idle.append(worker)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for worker in busy:
            worker.interrupt()
        for worker in idle:
            worker.close()


_POOL = _Pool()
os.register_at_fork(after_in_child=_POOL.forget)
atexit.register(end_all)

_LENGTH = struct.Struct(">I")


def write_frame(file: Any, data: bytes) -> None:
    """A length and so many bytes."""
    file.write(_LENGTH.pack(len(data)))
    file.write(data)


def read_frame(file: Any) -> bytes | None:
    """The next frame; None at the end."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    data: bytes = file.read(*_LENGTH.unpack(head))
    return data


def _row(params: Sequence[Any] | Mapping[str, Any]) -> pa.Table:
    """Parameters as a table of one row: a column each, by name or by number."""
    named = params if isinstance(params, Mapping) else {str(n): v for n, v in enumerate(params, 1)}
    try:
        columns = [pa.array([list(v) if isinstance(v, tuple) else v]) for v in named.values()]
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise QueryError(f"a parameter has no type that a query knows: {error}") from error
    return pa.Table.from_arrays(columns, names=[str(name) for name in named])


def written(table: pa.Table) -> bytes:
    """A small table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
