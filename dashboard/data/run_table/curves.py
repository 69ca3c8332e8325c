"""Curves of many runs: read beside the pages and kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from echoscope.store.query.listing import RunRow
from echoscope.store.reader import open_run

from ...page.problems import Problem
from .. import queries
from ..comparing.series import bucket_means
from ..curves import tasks_key
from .columns import EVALUATED
from .facts import Facts, Urgency, mark_of
from .table import evaluation_key

MAX_READ = 1_000
"""Runs of all groups of a chart together; more would be read for a minute."""


def latest_means(facts: Facts, row: RunRow, key: str, width: int) -> pd.DataFrame | None:
    """What `bucket_means` gave of a run last; None where it is still to be read."""
    request, mark = ("curve", row.path, key, width), mark_of(row)
    kept = queries.answers.latest(request)
    if kept is None or kept.position != mark:
        read = partial(queries.answers.get, request, mark, partial(_read, facts, row, key, width))
        facts.submit(Urgency.CURVE, request, read)
    means: pd.DataFrame | None = kept.value if kept else None
    return means


def _read(facts: Facts, row: RunRow, key: str, width: int) -> pd.DataFrame:
    of_run = facts.of(row)
    stored = key
    if key == EVALUATED and of_run is not None and of_run.metrics is not None:
        stored = evaluation_key(of_run.metrics.keys)
    means = read_means(row, stored, width)
    names = {stored: key, tasks_key(stored): tasks_key(key)}
    return means.assign(key=means["key"].replace(names))


def read_means(row: RunRow, key: str, width: int) -> pd.DataFrame:
    """Means of a metric over ranges; nothing of a run that cannot be read: the table says so."""
    try:
        with queries.reading(row.run_id):
            return bucket_means(open_run(row.path), [key], width)
    except Problem:
        return pd.DataFrame(columns=["key", "bucket", "value", "num_points"])


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
