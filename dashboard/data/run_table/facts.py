"""What the table of runs needs of every run: read once each, beside the pages, and kept.

A root may hold ten thousand runs, of which a page shows 25. What it filters, sorts and groups by is
of all of them. A thread reads the runs one by one, those first that a page shows, and again where
one has moved; a page draws with what is there, and says how much that is.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from echoscope.store.errors import StoreError
from echoscope.store.log.index import RunIndex
from echoscope.store.query.listing import RunDetails, RunRow, details_of
from echoscope.store.query.summary import NOTHING_PACKED, RunSummary, summary_of
from echoscope.store.status import Origin
from echoscope.store.steer.settings import flat

from ...page.problems import Problem
from .. import queries

REST = 0.3
"""The thread rests for this part of what it took: pages are drawn by the same interpreter."""
MOST_WAITED_FOR = 100
"""Runs that can be read within a second: nobody waits for more."""
MAX_SETTINGS = 2_000
"""Of one run; further ones are left out."""
WAIT_S = 120.0
"""For one verdict: a long run takes seconds."""
Mark = tuple[float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunFacts:
    """Of one run. Texts come from files: hostile."""

    mark: Mark
    details: RunDetails = field(default_factory=RunDetails)
    setting_names: tuple[str, ...] = ()
    setting_values: tuple[Any, ...] = ()
    """Numbers, texts, flags, None, lists: as the configuration has them."""
    metrics: RunSummary | None = None
    """None of a run that cannot be read."""
    environments: tuple[str, ...]

    def setting(self, name: str) -> Any:
        """None where the run does not have it."""
        try:
            return self.setting_values[self.setting_names.index(name)]
        except ValueError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict:
    """What the verdict says of a run, in the table's words."""

    mark: Mark
    state: str = ""
    """As `Verdict.state_words`; empty of a run that nobody can judge."""
    regime: str = ""
    since: int | None = None
    """The step at which it began."""
    kind: str = ""
    """The rule of the most serious problem; empty for none."""


class Urgency(IntEnum):
    """What the thread does first."""

    CURVE = 0
    FACTS = 1
    SHOWN_VERDICT = 2
    """Of a run that a page shows. A verdict takes a hundred times what reading a run does."""
    VERDICT = 3


def mark_of(row: RunRow) -> Mark:
    """Changes when something of the run is acknowledged."""
    return row.created_at, row.updated_at, row.last_step


@dataclass(slots=True)
class Facts:
    """Of the runs of one root. May be used from several threads."""

    version: int = 0
    """Grows with every run that was read."""
    num_judged: int = 0
    """Grows with every run that was judged."""
    _facts: dict[str, RunFacts] = field(default_factory=dict)
    _standings: dict[str, TableVerdict] = field(default_factory=dict)
    _jobs: dict[Urgency, OrderedDict[tuple[Any, ...], Callable[[], None]]] = field(
        default_factory=lambda: {urgency: OrderedDict() for urgency in Urgency}
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def of(self, row: RunRow) -> RunFacts | None:
        """What was read of a run last; None where nothing was."""
        return self._facts.get(row.run_id)

    def standing(self, row: RunRow) -> TableVerdict | None:
        """What was judged last; None where nothing was."""
        return self._standings.get(row.run_id)

    def want(self, rows: Sequence[RunRow]) -> int:
        """Have runs read that were not, or have moved; how many of them were never read."""
        missing, has_unread = 0, False
        for row in rows:
            facts = self._facts.get(row.run_id)
            missing += facts is None
            if not row.is_read:
                has_unread = True
            elif facts is None or facts.mark != mark_of(row):
                self.submit(Urgency.FACTS, ("facts", row.run_id), partial(self._read, row))
        if has_unread:
            self.submit(Urgency.FACTS, ("rows",), _read_rows)
        return missing

    def wait(self, rows: Sequence[RunRow], patience_s: float) -> int:
        """Have runs read, and wait for those that never were, where they are few.

        Returns:
            How many are still missing then.
        """
        deadline = time.monotonic() + patience_s
        missing = self.want(rows)
        while 0 < missing <= MOST_WAITED_FOR and time.monotonic() < deadline:
            time.sleep(0.01)
            missing = sum(row.run_id not in self._facts for row in rows)
        return missing

    def want_standings(self, rows: Sequence[RunRow], urgency: Urgency = Urgency.VERDICT) -> int:
        """Have runs judged that were not, or have moved; how many of them were never judged."""
        missing = 0
        for row in rows:
            if row.origin is Origin.EVALUATED:
                continue  # nobody trains
            standing = self._standings.get(row.run_id)
            missing += standing is None
            if not row.is_read:
                continue  # later, when it is
            if standing is None or standing.mark != mark_of(row) or _is_judged_now(row, standing):
                self.submit(urgency, ("standing", row.run_id), partial(self._judge, row))
        return missing

    def submit(self, urgency: Urgency, key: tuple[Any, ...], job: Callable[[], None]) -> None:
        """Have something done beside the pages; what waits already moves up if it is urgent."""
        with self._lock:
            for level, jobs in self._jobs.items():
                if key in jobs:
                    if level <= urgency:
                        return
                    del jobs[key]
            self._jobs[urgency][key] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="runs", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                jobs = next((jobs for jobs in self._jobs.values() if jobs), None)
                if jobs is None:
                    self._thread = None
                    return
                key, job = next(iter(jobs.items()))
            began = time.perf_counter()
            try:
                job()
            finally:
                with self._lock:
                    for waiting in self._jobs.values():
                        waiting.pop(key, None)
            time.sleep(REST * (time.perf_counter() - began))

    def _read(self, row: RunRow) -> None:
        before = self._facts.get(row.run_id)
        self._facts[row.run_id] = read_facts(row, before)
        self.version += 1

    def _judge(self, row: RunRow) -> None:
        facts = self._facts.get(row.run_id)
        is_quick = facts is not None and facts.details.has_text
        self._standings[row.run_id] = judged(row, is_quick or row.origin is Origin.IMPORTED)
        self.num_judged += 1


def _read_rows() -> None:
    """The rows of all runs; pages of many runs begin with the newest."""
    with suppress(Problem):  # a page says what is wrong with the root
        queries.runs()


def read_facts(row: RunRow, before: RunFacts | None = None) -> RunFacts:
    """Of one run; of one that cannot be read, nothing but that it was tried.

    Args:
        before: What was read of it earlier.
    """
    packed = NOTHING_PACKED if before is None or before.metrics is None else before.metrics.packed
    if before is not None and before.mark[0] != row.created_at:  # another run of the same name
        packed = NOTHING_PACKED
    try:
        index = RunIndex(row.path)
        settings = flat(dict(json.loads(index.run["config"])))
        names = tuple(sys.intern(name) for name in list(settings)[:MAX_SETTINGS])
        metrics = summary_of(index, packed)
        return RunFacts(
            mark=mark_of(row),
            details=details_of(row, index),
            setting_names=_shared(names),
            setting_values=tuple(
                _shared(value) if isinstance(value := settings[name], str | float | int) else value
                for name in names
            ),
            metrics=replace(metrics, keys=_shared(metrics.keys)),
            environments=row.environments or _environments(row, index),
        )
    except (StoreError, OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return RunFacts(mark=mark_of(row), environments=row.environments)


@lru_cache(maxsize=None, typed=True)
def _shared(value: Any) -> Any:
    """The same object for equal values: runs have few names, and few values of most of them."""
    return value


def _environments(row: RunRow, index: RunIndex) -> tuple[str, ...]:
    """Of a run of another trainer: its first episodes say it, and no settings do."""
    files = index.files("trajectories")[:1] if row.origin is not Origin.TRAINED else []
    for file in files:
        table = index.whole_rows(file, ["env_id"])
        return tuple(dict.fromkeys(str(env) for env in table.column(0).to_pylist() if env))
    return ()


def _is_judged_now(row: RunRow, standing: TableVerdict) -> bool:
    """A page about the run had it judged, which takes too long for a list."""
    try:
        return not standing.state and queries.known_verdict(row.run_id) is not None
    except Problem:  # the run is gone
        return False


def judged(row: RunRow, is_quick: bool) -> TableVerdict:
    """What the verdict says; waits for it.

    Args:
        is_quick: It takes a moment: the run has measured its texts, or there are none. Of another
            run it is said only if a page had it judged.
    """
    mark = mark_of(row)
    verdict = None
    with suppress(Problem):  # the page of the run says what it is
        if is_quick:
            verdict = queries.verdict(row.run_id, wait_s=WAIT_S)
        else:
            verdict = queries.known_verdict(row.run_id)
    if verdict is None:
        return TableVerdict(mark=mark)
    return TableVerdict(
        mark=mark,
        state=verdict.state_words,
        regime=verdict.regime.value.replace("_", " "),
        since=verdict.onset_step,
        kind=verdict.kinds[0] if verdict.kinds else "",
    )
