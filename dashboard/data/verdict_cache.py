"""Verdicts, worked out beside the pages: step by step while a run is live, and never twice.

A run that measured its text is judged from its metrics alone. One that did not (an import, or
diagnostics turned off) is read by `diagnose`, which takes longer, and therefore less often.
"""

from __future__ import annotations

import math
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from echoscope.diagnostics.judge.advice.situation import situation_of
from echoscope.diagnostics.judge.alarm_settings import alarm_settings
from echoscope.diagnostics.judge.lineage import history_of
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import Diagnosis, diagnose
from echoscope.diagnostics.read.sources import Opened
from echoscope.diagnostics.read.table import MetricTable, TableBuilder
from echoscope.store.log.layout import shown_path
from echoscope.store.reader import RunReader

MAX_ROWS = 4_000
"""Steps that are fed to the rules; a longer run is averaged over equal ranges of steps."""
MAX_WATCHED = 64
REST = 10.0
"""A verdict that had to read trajectories is not renewed before so many times what it took."""
JUDGED = (
    "rollout/",
    "reward/",
    "eval/",
    "probe/",
    "policy/",
    "loss/",
    "optim/",
    "selection/",
    "info/",
    "text/",
    "gradient/",
)
"""Prefixes of the metrics that rules read, or that say what a verdict had."""

Open = Callable[[], RunReader]


@dataclass(slots=True)
class _Watched:
    """What is known about one run."""

    position: Hashable = None
    verdict: Verdict | None = None
    future: Future[Verdict] | None = None
    attempt: int = 0
    width: int = 1
    num_metrics: int = 0
    diagnosis: Diagnosis | None = None
    took_s: float = 0.0
    is_costly: bool = False
    done_at: float = 0.0


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
            if watched.verdict is not None and watched.position == position:
                return watched.verdict
            if watched.future is None:
                if _must_rest(watched) and watched.verdict is not None:
                    return watched.verdict
                watched.future = self._pool.submit(self._work, watched, position, open_run)
            future = watched.future
        wait([future], timeout=wait_s)
        if future.done():
            return future.result()
        return watched.verdict or _nothing_yet()

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
        started = time.monotonic()
        try:
            verdict = _judge(watched, open_run())
            with self._lock:
                watched.position, watched.verdict = position, verdict
            return verdict
        finally:
            with self._lock:
                watched.future = None
                watched.done_at = time.monotonic()
                watched.took_s = watched.done_at - started


def _must_rest(watched: _Watched) -> bool:
    return watched.is_costly and time.monotonic() < watched.done_at + REST * watched.took_s


_HAS_TEXT = """
SELECT count(*) > 0 AS found FROM metrics
WHERE step <= $1 AND (starts_with(key, 'text/') OR starts_with(key, 'info/'))
"""
_TEXT_WITHIN = 100
"""Steps in which a run that measures its text has done so."""
_ROWS = f"""
SELECT step // $3 * $3 + $3 - 1 AS step, key, avg(value) AS value FROM metrics
WHERE step > $1 AND step < $2
  AND ({" OR ".join(f"starts_with(key, '{prefix}')" for prefix in JUDGED)})
GROUP BY step // $3, key ORDER BY step
"""
_COUNT = "SELECT count(*) AS found FROM metrics WHERE step <= $1"


def _judge(watched: _Watched, run: RunReader) -> Verdict:
    info = run.info()
    first = run.sql("SELECT min(step) AS step FROM metrics").column("step")[0].as_py()
    # An import stands still, and its notes say what of it was measured.
    is_import = isinstance(info.config.get("imported"), Mapping)
    if is_import or not _one(run, _HAS_TEXT, (first or 0) + _TEXT_WITHIN):
        watched.is_costly, watched.diagnosis = True, None
        return diagnose(run)
    watched.is_costly = False
    width = _width(info.last_step)
    known, after = watched.diagnosis, -1
    if known is not None and (watched.attempt, watched.width) == (info.attempt, width):
        after = -1 if known.engine.last_step is None else known.engine.last_step
    # An evaluation may be written behind its step: then what was said of the step is judged again.
    if known is None or after < 0 or _num_metrics(run, after, width) != watched.num_metrics:
        known, after = _begun(run), -1
    last = (info.last_step + 1) // width * width
    _feed(run, known, after, last, width)
    watched.diagnosis, watched.attempt, watched.width = known, info.attempt, width
    watched.num_metrics = _num_metrics(run, last - 1, width)
    known.engine.situation = situation_of(run, shlex.quote(shown_path(info.path)))
    return _with_exemplars(run, known)


def judge_at(run: RunReader, step: int) -> Verdict:
    """What a live monitor would have said after a step: nothing later is read.

    Raises:
        StoreError: the run cannot be read.
    """
    diagnosis = _begun(run)
    situation = situation_of(run, shlex.quote(diagnosis.run))
    known = tuple(change for change in situation.changes if change.step <= step)
    diagnosis.engine.situation = replace(situation, fate=None, changes=known)
    _feed(run, diagnosis, -1, step + 1, _width(step))
    return _with_exemplars(run, diagnosis, step)


def _width(last_step: int) -> int:
    """Steps that are averaged to one row."""
    width = 1
    while (last_step + 1) // width > MAX_ROWS:
        width *= 2
    return width


def _begun(run: RunReader) -> Diagnosis:
    """A diagnosis that knows what came before the first step of the run, and nothing of it."""
    info = run.info()
    diagnosis = Diagnosis(run_id=info.run_id, run=shown_path(info.path))
    diagnosis.recall(history_of(run)[0])
    return diagnosis


def _feed(run: RunReader, diagnosis: Diagnosis, after: int, before: int, width: int) -> None:
    """Show the rules the metrics of the steps between two, each with the settings of its step."""
    own = alarm_settings(run)
    for step, values in _rows(run, after, before, width).rows():
        diagnosis.engine.configure(own.at(step))
        diagnosis.observe(min(step, before - 1), values)


def _with_exemplars(run: RunReader, diagnosis: Diagnosis, upto: int | None = None) -> Verdict:
    info = run.info()
    opened = Opened(
        table=TableBuilder().build(kind="run"),
        run_id=info.run_id,
        name=shown_path(info.path),
        reader=run,
    )
    shown = opened.exemplars([alarm.rule for alarm in diagnosis.engine.open_alarms], upto=upto)
    return diagnosis.verdict(exemplars=shown.places, template=shown.template)


def _one(run: RunReader, sql: str, *params: int) -> int:
    return int(run.sql(sql, params).column(0)[0].as_py())


def _num_metrics(run: RunReader, step: int, width: int) -> int:
    """Metrics up to a step; not counted where that takes long, and a late one changes little."""
    return _one(run, _COUNT, step) if width == 1 else 0


def _rows(run: RunReader, after: int, before: int, width: int) -> MetricTable:
    """Metrics of the steps between two, averaged over ranges of `width` steps."""
    found = run.sql(_ROWS, [after, before, width])
    builder = TableBuilder()
    columns = (found.column(name).to_pylist() for name in ("step", "key", "value"))
    at: int | None = None
    values: dict[str, float] = {}
    for step, key, value in zip(*columns, strict=True):
        if step != at and at is not None:
            builder.add_row(at, values)
            values = {}
        at = step
        values[key] = math.nan if value is None else float(value)
    if at is not None:
        builder.add_row(at, values)
    return builder.build(kind="run", path=str(run.path))


def _nothing_yet() -> Verdict:
    """In place of a verdict that is being worked out for the first time."""
    words = "The run is being judged; this takes a moment."
    return replace(Diagnosis().verdict(), text=words, rests_on="nothing yet", could_not_see=())
