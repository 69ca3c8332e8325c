"""What else moved while success fell: it may be no alarm, but a reader looks for it first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from echoscope.store.query import metric_keys

from ...catalogue import metric
from ...metric_entry import SHARE
from ..claims import Change
from .base import amount

LOOKED_AT = (
    (metric_keys.RESPONSE_LENGTH, metric_keys.SAMPLED_TOKENS, "text/num_chars_p50"),
    ("rollout/num_turns_mean",),
    ("rollout/length_limited_frac", "text/truncated_frac"),
    ("rollout/format_valid_frac",),
    (metric_keys.ACTION_VALID, "text/valid_frac"),
    (metric_keys.ENTROPY,),
    (metric_keys.ZERO_STD,),
    (metric_keys.GRAD_NORM,),
    (metric_keys.REF_KL,),
    ("policy/approx_kl",),
    ("policy/mismatch_kl",),
    ("policy/clip_high_frac",),
    ("loss/value",),
)
"""What a person plots beside success; of each the first metric that is logged."""
LAST_ROWS = 300
LEAST_ROWS = 3
SIGMAS = 6.0
"""Standard errors of independent rows between the two means: rows resemble those before."""
LEAST_SHARE, LEAST_FACTOR = 0.1, 1.5
"""Least difference of a share, and least factor of any other metric."""
MOST = 3


@dataclass(slots=True)
class Surroundings:
    """The last rows of what may have moved beside success."""

    rows: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """(step, value) by metric."""

    def observe(self, step: int, values: Mapping[str, float]) -> None:
        """Take in a row of the log."""
        for keys in LOOKED_AT:
            key = next((key for key in keys if math.isfinite(values.get(key, math.nan))), None)
            if key is not None:
                rows = self.rows.setdefault(key, [])
                rows.append((step, values[key]))
                del rows[:-LAST_ROWS]

    def moved(self, fall: Change) -> list[str]:
        """`response length: 420 -> 45` of each metric that moved over the steps of a fall; the
        most first."""
        moves = []
        for key, rows in self.rows.items():
            early, late = (_within(rows, level.steps) for level in (fall.before, fall.after))
            entry = metric(key)
            if min(len(early), len(late)) < LEAST_ROWS:
                continue
            if entry.unit == SHARE:
                means, size = _moved(early, late, LEAST_SHARE)
            elif min(*early, *late) > 0:
                # Of a quantity without an upper end the factor counts, and no single spike.
                logs_early, logs_late = (list(map(math.log, values)) for values in (early, late))
                means, size = _moved(logs_early, logs_late, math.log(LEAST_FACTOR))
                means = [math.exp(mean) for mean in means]
            else:
                continue
            if size >= 1:
                before, after = (amount(mean, entry.unit) for mean in means)
                moves.append((size, f"{entry.in_sentence}: {before} -> {after}"))
        return [text for _, text in sorted(moves, reverse=True)[:MOST]]


def _within(rows: Sequence[tuple[int, float]], steps: tuple[int, int]) -> list[float]:
    return [value for step, value in rows if steps[0] <= step <= steps[1]]


def _moved(
    early: Sequence[float], late: Sequence[float], least: float
) -> tuple[list[float], float]:
    """The means, and their difference in units of the least that counts; 0 if it may be chance."""
    means = [statistics.fmean(early), statistics.fmean(late)]
    error = math.hypot(*(statistics.stdev(rows) / math.sqrt(len(rows)) for rows in (early, late)))
    difference = abs(means[1] - means[0])
    return means, difference / least if difference >= SIGMAS * error else 0.0
