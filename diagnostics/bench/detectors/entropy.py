"""A threshold on the policy's entropy, up and down, as dashboards of other trainers alert on it."""

from __future__ import annotations

import math

import numpy as np

from echoscope.store.query.metric_keys import ENTROPY

from ..harness import LabelledRun
from .entry import Alert, Entry, begins, spaced

PERSIST = 3
"""Steps in a row."""


def entropy_threshold(factor: float) -> Alert:
    """Entropy more than `factor` times, or less than 1/`factor` of, its first ten steps' median."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        steps, values = run.table.measured(ENTROPY)
        if len(values) <= 10:
            return ()
        start = max(float(np.median(values[:10])), 1e-9)
        ratio = np.abs(np.log(np.maximum(values, 1e-9) / start))
        return begins(steps[10:], ratio[10:] > math.log(factor), PERSIST)

    return alert


ENTRIES = (Entry(name="entropy", alert=entropy_threshold, usual=2.0, grid=spaced(1.2, 400)),)
