"""A z-score of common metrics against the first twenty steps, as process control has it."""

from __future__ import annotations

import numpy as np

from echoscope.store.query import metric_keys

from ..harness import LabelledRun
from .entry import Alert, Entry, begins, spaced

OPENING = 20
PERSIST = 3
"""Steps in a row."""
METRICS = (
    metric_keys.SUCCESS_RATE,
    metric_keys.RETURN_MEAN,
    metric_keys.GROUP_STD,
    metric_keys.ENTROPY,
    metric_keys.GRAD_NORM,
    metric_keys.SAMPLED_TOKENS,
    metric_keys.RESPONSE_LENGTH,
)


def z_score(threshold: float) -> Alert:
    """Any watched metric further than `threshold` standard deviations from its first 20 steps."""

    def alert(run: LabelledRun) -> tuple[int, ...]:
        alerts: set[int] = set()
        for key in METRICS:
            steps, values = run.table.measured(key)
            if len(values) <= OPENING:
                continue
            opening = values[:OPENING]
            spread = float(opening.std(ddof=1))
            if spread > 0:
                z = np.abs(values - float(opening.mean())) / spread
                far = z[OPENING:] > threshold
                alerts |= set(begins(steps[OPENING:], far, PERSIST))
        return tuple(sorted(alerts))

    return alert


ENTRIES = (Entry(name="z-score", alert=z_score, usual=3.0, grid=spaced(1.5, 1000)),)
