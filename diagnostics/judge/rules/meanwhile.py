"""What else moved while success fell: it may be no alarm, but a reader looks for it first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...metric_entry import SHARE
from ..claims import Change
from ..courses.changes import Channel
from .base import View, amount, channel_label

LOOKED_AT = (
    "length",
    "truncated",
    "entropy_up",
    "format",
    "action",
    "zero_spread",
    "ref_kl",
    "mismatch",
    "gradient",
)
"""One channel a metric; what a person plots beside success."""
LEAST_ROWS = 3
SIGMAS = 6.0
"""Standard errors of independent rows between the two means: rows resemble those before."""
LEAST_SHARE, LEAST_FACTOR = 0.1, 1.5
"""Least difference of a share, and least factor of any other metric."""
MOST = 3


def moved_meanwhile(view: View, fall: Change) -> list[str]:
    """`response length: 420 -> 45` of each metric that moved over the steps of a fall; the most
    first."""
    moves = []
    for name in LOOKED_AT:
        channel = view.channels[name]
        early, late = (_rows(channel, level.steps) for level in (fall.before, fall.after))
        size = _size(channel, early, late)
        if size >= 1:
            before, after = (_shown(channel, rows) for rows in (early, late))
            text = f"{channel_label(channel)}: {before} -> {after}"
            moves.append((size, text))
    return [text for _, text in sorted(moves, reverse=True)[:MOST]]


def _rows(channel: Channel, steps: tuple[int, int]) -> list[float]:
    return [value for step, value in channel.history if steps[0] <= step <= steps[1]]


def _size(channel: Channel, early: Sequence[float], late: Sequence[float]) -> float:
    """The difference in units of the least that counts; 0 where it may be chance."""
    if min(len(early), len(late)) < LEAST_ROWS:
        return 0.0
    means = statistics.fmean(early), statistics.fmean(late)
    error = math.hypot(*(statistics.stdev(rows) / math.sqrt(len(rows)) for rows in (early, late)))
    difference = abs(means[1] - means[0])
    if difference < SIGMAS * error:
        return 0.0
    if channel.spec.unit == SHARE:
        return difference / LEAST_SHARE
    if channel.spec.transform == "log":
        return difference / math.log(LEAST_FACTOR)
    return abs(math.log(means[1] / means[0])) / math.log(LEAST_FACTOR) if min(means) > 0 else 0.0


def _shown(channel: Channel, rows: Sequence[float]) -> str:
    mean = statistics.fmean(rows)
    value = math.exp(mean) if channel.spec.transform == "log" else mean
    return amount(value, channel.spec.unit)
