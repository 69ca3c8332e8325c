"""Curves of many runs: read beside the pages and kept, and a group of them as its mean and band."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import SHARE
from echoscope.store.query.listing import RunRow
from echoscope.store.reader import open_run
from echoscope.store.records import FloatArray64

from ...page.problems import Problem
from .. import queries
from ..comparing.levels import Trials, mean_bands, share_bands
from ..curves import tasks_key
from .columns import EVALUATED
from .facts import Facts, Mark, Urgency, mark_of
from .table import evaluation_key

MAX_POINTS = 400
"""Of one curve: more steps are means of equal ranges."""
MAX_KEPT = 4_000
"""Curves."""
MAX_READ = 1_000
"""Runs of all groups of a chart together; more would be read for a minute."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """A metric of one run over its steps."""

    steps: NDArray[np.int64]
    """(N,), increasing."""
    values: FloatArray64
    """(N,), finite."""
    num_tasks: FloatArray64 | None = None
    """(N,), fixed tasks behind each value, NaN where not known; None for any other metric."""


NO_SERIES = Series(steps=np.empty(0, np.int64), values=np.empty(0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Band:
    """The mean of runs at each step, with its 95 % interval; NaN ends where one run is left."""

    steps: NDArray[np.int64]
    values: FloatArray64
    low: FloatArray64
    high: FloatArray64


@dataclass(slots=True)
class CurveStore:
    """The curves that pages asked for. May be used from several threads."""

    _kept: OrderedDict[tuple[str, str, int], tuple[Mark, Series]] = field(
        default_factory=OrderedDict
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def series(self, known: Facts, row: RunRow, key: str, width: int) -> Series | None:
        """A metric of a run as it was read last; None where it is still to be read.

        Args:
            width: Steps whose mean is one point.
        """
        with self._lock:
            cached = self._kept.get((row.run_id, key, width))
        if cached is None or cached[0] != mark_of(row):
            known.submit(
                Urgency.CURVE,
                ("curve", row.run_id, key, width),
                self._reading(known, row, key, width),
            )
        return cached[1] if cached else None

    def _reading(self, known: Facts, row: RunRow, key: str, width: int) -> Callable[[], None]:
        def read() -> None:
            series = _read(row, self._key_of(known, row, key), width)
            with self._lock:
                self._kept[row.run_id, key, width] = mark_of(row), series
                self._kept.move_to_end((row.run_id, key, width))
                while len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)

        return read

    def _key_of(self, known: Facts, row: RunRow, key: str) -> str:
        facts = known.of(row)
        if key != EVALUATED or facts is None or facts.metrics is None:
            return key
        return evaluation_key(facts.metrics.keys)


def _read(row: RunRow, key: str, width: int) -> Series:
    """Nothing of a run that cannot be read: the table says so."""
    of_tasks = tasks_key(key)
    try:
        with queries.reading(row.run_id):
            points = open_run(row.path).points([key, of_tasks] if of_tasks else [key])
    except Problem:
        return NO_SERIES
    points = points.filter(pc.is_finite(points.column("value")))
    is_value = pc.equal(points.column("key"), key)
    steps, values = _means(points.filter(is_value), width)
    if not of_tasks:
        return Series(steps=steps, values=values)
    ranges, tasks = _columns(points.filter(pc.invert(is_value)), width)
    has_value, num_tasks = np.isin(ranges, steps), np.full(len(steps), np.nan)
    np.fmax.at(num_tasks, np.searchsorted(steps, ranges[has_value]), tasks[has_value])
    return Series(steps=steps, values=values, num_tasks=num_tasks)


def _columns(points: pa.Table, width: int) -> tuple[NDArray[np.int64], FloatArray64]:
    """Steps, each the first of its range, and values."""
    steps, values = (points.column(name).to_numpy() for name in ("step", "value"))
    return steps.astype(np.int64) // width * width, values


def _means(points: pa.Table, width: int) -> tuple[NDArray[np.int64], FloatArray64]:
    """The steps that have a value, in order, and the mean of each."""
    ranges, values = _columns(points, width)
    steps, places = np.unique(ranges, return_inverse=True)
    return steps, np.bincount(places, weights=values) / np.bincount(places)


def members_each(sizes: Sequence[int], most: int = MAX_READ) -> int:
    """Runs of each group that are read, so that all groups together have at most `most`.

    >>> members_each([5, 120]), members_each([5, 3_000, 7_000], 105)
    (120, 50)
    """
    left = most
    for n, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - n)
        if size > share:
            return max(1, share)
        left -= size
    return max(sizes, default=0)


def evenly(members: Sequence[int], most: int) -> list[int]:
    """At most so many members, evenly chosen.

    >>> evenly([1, 2, 3], 5), evenly(range(100), 4)
    ([1, 2, 3], [12, 37, 62, 87])
    """
    if len(members) <= most:
        return [*members]
    return [members[(2 * n + 1) * len(members) // (2 * most)] for n in range(most)]


def width_of(rows: Sequence[RunRow]) -> int:
    """Steps whose mean is one point, so that the longest of some runs has at most MAX_POINTS."""
    longest = max((row.last_step for row in rows), default=0) + 1
    return max(1, -(-longest // MAX_POINTS))


def band_of(members: Sequence[Series], key: str) -> Band:
    """The mean of runs at each step that any of them has, with the interval over runs."""
    steps = np.unique(np.concatenate([of.steps for of in members]))
    values_RS, tasks_RS = np.full((2, len(members), len(steps)), np.nan)
    for values_S, tasks_S, of in zip(values_RS, tasks_RS, members, strict=True):
        columns = np.searchsorted(steps, of.steps)
        values_S[columns] = of.values
        tasks_S[columns] = math.nan if of.num_tasks is None else of.num_tasks
    if not _is_share(key, values_RS):
        mean, low, high, _ = mean_bands(values_RS)
    elif (np.isfinite(tasks_RS) == np.isfinite(values_RS)).all():
        trials = Trials(num=np.nansum(tasks_RS, axis=0), is_known=True)
        mean, low, high, _ = share_bands(values_RS, trials)
    else:
        # Episodes are not counted here: only the spread between runs says how sure a mean is.
        mean, low, high, _ = share_bands(values_RS, Trials(num=len(members), is_known=False))
    return Band(steps=steps, values=mean, low=low, high=high)


def _is_share(key: str, values: FloatArray64) -> bool:
    finite = values[np.isfinite(values)]
    is_listed = key == EVALUATED or metric(key).unit == SHARE
    return is_listed and bool(((finite >= 0) & (finite <= 1)).all())
