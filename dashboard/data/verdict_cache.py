"""Verdicts, worked out beside the pages by `diagnose`, and kept until a run has moved.

A long run is judged in a process of its own: in this one, all pages would wait for seconds. A
verdict is computed in Python throughout, and only one thread of a process runs Python at a time.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path

from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import INPUTS, Diagnosis, Judgement
from echoscope.diagnostics.read.sources import Opened, open_source, opened_run
from echoscope.diagnostics.read.table import MetricTable, TableBuilder
from echoscope.store.errors import StoreError
from echoscope.store.reader import RunReader, open_run
from echoscope.text.limited_child import connected_child, environment

LONG = 500
"""Steps from which on a run is judged by a process of its own; it takes a second to start."""
NICENESS = 5
"""On top of that of the dashboard, which goes first."""
MAX_ROWS = 4_000
"""Steps that are judged one by one; a longer run is averaged over equal ranges of steps."""
MAX_WATCHED = 64
REST = 4.0
"""A verdict rests for so many times what it took, unless somebody waits for longer than that."""

Open = Callable[[], RunReader]


@dataclass(slots=True)
class _Watched:
    """What is known about one run."""

    position: Hashable = None
    verdict: Verdict | None = None
    judgement: Judgement = field(default_factory=Judgement)
    future: Future[Verdict] | None = None
    rests_until: float = 0.0


@dataclass(slots=True)
class Judge:
    """Verdicts of the runs that are looked at. May be used from several threads."""

    _watched: OrderedDict[Path, _Watched] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="judge")
    )

    def verdict(self, path: Path, position: Hashable, open_run: Open, wait_s: float) -> Verdict:
        """The verdict at `position`, or the one before if that takes longer than `wait_s`.

        Raises:
            StoreError: the run cannot be read.
        """
        with self._lock:
            watched = self._watched.setdefault(path, _Watched())
            self._watched.move_to_end(path)
            while len(self._watched) > MAX_WATCHED:
                self._watched.popitem(last=False)
            is_resting = time.monotonic() + wait_s < watched.rests_until
            if watched.verdict is not None and (watched.position == position or is_resting):
                return watched.verdict
            if watched.future is None:
                watched.future = self._pool.submit(self._work, watched, position, open_run)
            future = watched.future
        wait([future], timeout=wait_s)
        return future.result() if future.done() else watched.verdict or _nothing_yet()

    def is_busy(self, path: Path) -> bool:
        with self._lock:
            watched = self._watched.get(path)
            return watched is not None and watched.future is not None

    def known(self, path: Path) -> Verdict | None:
        with self._lock:
            watched = self._watched.get(path)
            return None if watched is None else watched.verdict

    def clear(self) -> None:
        with self._lock:
            self._watched.clear()

    def _work(self, watched: _Watched, position: Hashable, open_run: Open) -> Verdict:
        began = time.monotonic()
        try:
            judged = _judged_on(watched.judgement, open_run())
            with self._lock:
                watched.position, watched.verdict, watched.judgement = position, *judged
            return judged[0]
        finally:
            ended = time.monotonic()
            with self._lock:
                watched.future, watched.rests_until = None, ended + REST * (ended - began)


def judge_at(run: RunReader, step: int | None) -> Verdict:
    """What a live monitor would have said after a step, None for the last: nothing later is read.

    Raises:
        StoreError: the run cannot be read.
    """
    return _judged_on(Judgement(), run, step)[0]


def _judged_on(
    judgement: Judgement, run: RunReader, step: int | None = None
) -> tuple[Verdict, Judgement]:
    """The verdict after a step, None for the last, and what takes in the steps that follow.

    A page asks after each step of a live run: then only the new steps are judged.
    """
    last_step = run.info().last_step
    if last_step < LONG:
        return judgement.verdict(_opened(run), step), judgement
    if judgement.has_begun and _width(last_step) == 1:
        opened = _opened(run)
        if judgement.num_new(opened) < LONG:
            return judgement.verdict(opened), judgement
    aside = judge_aside(run.path, step)
    if aside:
        return aside
    judgement = Judgement()  # says why where the process could not
    return judgement.verdict(_opened(run), step), judgement


def _width(last_step: int) -> int:
    """Over how many steps the metrics of a long run are averaged."""
    width = 1
    while (last_step + 1) // width > MAX_ROWS:
        width *= 2
    return width


def _opened(run: RunReader) -> Opened:
    width = _width(run.info().last_step)
    return open_source(run) if width == 1 else opened_run(run, _averaged(run, width))


_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()
_ended = threading.Event()


def judge_aside(run: Path, step: int | None) -> tuple[Verdict, Judgement] | None:
    """The verdict after a step, and what judged; None where the process could not say.

    Raises:
        StoreError: `end_all` was called.
    """
    process, connection = connected_child(__name__, {**os.environ, **environment()})
    with _lock:
        _running.add(process)
    try:
        with connection, suppress(EOFError, ConnectionError):
            connection.send((str(run), step))
            verdict, judgement = connection.recv()
            return verdict, judgement
    finally:
        process.kill()
        process.wait()
        with _lock:
            _running.discard(process)
    if _ended.is_set():
        raise StoreError("the dashboard ends")
    return None


def end_all() -> None:
    """End every process: the dashboard ends."""
    _ended.set()
    with _lock:
        for process in _running:
            process.kill()


def work(descriptor: int) -> None:
    """Judge one run: `python -c "from ... import work; work(7)"`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: whoever asked decides
    os.nice(NICENESS)
    with Connection(descriptor) as connection, suppress(EOFError, ConnectionError):
        path, step = connection.recv()
        threading.Thread(target=_end_with, args=[connection], daemon=True).start()
        judgement = Judgement()
        connection.send((judgement.verdict(_opened(open_run(path)), step), judgement))


def _end_with(connection: Connection) -> None:
    """Nobody waits for the verdict any more once the other end is closed."""
    with suppress(EOFError, OSError):
        connection.recv_bytes()
    os._exit(1)


_READ = {*(prefix for prefixes in INPUTS.values() for prefix in prefixes), "rollout/", "policy/"}
_READ |= {"loss/", "optim/", "selection/"}
_AVERAGED = f"""
SELECT step // $1 * $1 + $1 - 1 AS step, key, avg(value) AS value FROM metrics
WHERE step < $2 AND ({" OR ".join(f"starts_with(key, '{prefix}')" for prefix in sorted(_READ))})
GROUP BY step // $1, key ORDER BY step
"""


def _averaged(run: RunReader, width: int) -> MetricTable:
    """The metrics that rules read, averaged over ranges of `width` steps that are complete."""
    end = (run.info().last_step + 1) // width * width
    builder = TableBuilder()
    rows = run.sql(_AVERAGED, [width, end]).to_pylist()
    for step, of_step in groupby(rows, key=itemgetter("step")):
        values = {row["key"]: row["value"] for row in of_step}
        builder.add_row(step, {k: math.nan if v is None else v for k, v in values.items()})
    return builder.build()


def _nothing_yet() -> Verdict:
    """In place of a verdict that is being worked out for the first time."""
    sentence = "The run is being judged; this takes a moment."
    return replace(Diagnosis().verdict(), text=sentence, rests_on="nothing yet", could_not_see=())
