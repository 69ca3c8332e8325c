"""Durations, sizes and counts as people say them."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """How long something lasts, in the largest unit of which it has one: an age, a time to go.

    Times that run down are said in smaller and smaller numbers of one unit, then of the next.

    >>> duration(45), duration(89), duration(90), duration(12_240), duration(181_440)
    ('45 s', '1 min', '2 min', '3.4 h', '2.1 days')
    """
    if not math.isfinite(seconds):
        return "unknown"
    whole = math.floor(seconds + 0.5)
    minutes = math.floor(seconds / 60 + 0.5)
    if whole < 60:
        return f"{whole} s"
    if minutes < 60:
        return f"{minutes} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 24 else f"{hours / 24:.1f} days"


def duration_in_two_units(seconds: float) -> str:
    """How long something takes, for a sum that a reader checks.

    >>> duration_in_two_units(75.2), duration_in_two_units(7300.0), duration_in_two_units(0.4)
    ('1 min 15 s', '2 h 2 min', '0.4 s')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def clock(seconds: float) -> str:
    """`75.2` as `1:15`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 row`, `2 rows`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def fixed(value: float, digits: int = 3) -> str:
    """A number with so many digits after the point, `-` for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def memory_size(size: int) -> str:
    """A size of memory in bytes, for people; rounded up below one GiB.

    >>> memory_size(int(44.04 * 2**30)), memory_size(3 << 29), memory_size(5 << 20)
    ('44 GiB', '1.5 GiB', '5 MiB')
    """
    gib = size / (1 << 30)
    if gib < 1:
        return f"{math.ceil(size / (1 << 20))} MiB"
    return f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB"
