"""Durations, sizes and counts as people say them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal


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


def step_words(steps: tuple[int, int]) -> str:
    """The first and the last step: `step 4`, or `steps 4 to 9`."""
    first, last = steps
    return f"step {first}" if first == last else f"steps {first} to {last}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first of some names, and how many more there are.

    >>> listed(["a", "b"]), listed(["a", "b", "c"], 2)
    ('a, b', 'a, b and 1 more')
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
"""Rules of a JSON schema for numbers, in words."""


def bounds(lowest: float, highest: float | None = None) -> str:
    """Which numbers are allowed, both ends among them; None or infinity: any larger one.

    >>> bounds(1, 8), bounds(0)
    ('at least 1 and at most 8', 'at least 0')
    """
    most = "" if highest in (None, math.inf) else f" and {BOUNDS['maximum']} {highest}"
    return f"{BOUNDS['minimum']} {lowest}{most}"


def fixed(value: float, digits: int = 3) -> str:
    """A number with so many digits after the point, `-` for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def data_size(size: int) -> str:
    """A size of files in bytes, for people.

    >>> data_size(812), data_size(3_140_000), data_size(2_500_000_000)
    ('812 bytes', '3.1 MB', '2.5 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            digits = ".3g" if size >= 10 * factor else ".1f"
            return f"{size / factor:{digits}} {unit}"
    return counted(size, "byte")


def memory_size(size: int) -> str:
    """A size of memory in bytes, for people; rounded up below one GiB.

    >>> memory_size(int(44.04 * 2**30)), memory_size(3 << 29), memory_size(5 << 20)
    ('44 GiB', '1.5 GiB', '5 MiB')
    """
    gib = size / (1 << 30)
    if gib < 1:
        return f"{math.ceil(size / (1 << 20))} MiB"
    return f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB"


def rounded(value: float, digits: int = 0) -> str:
    """A number with so many digits after the point; halves go away from zero.

    The decimal number counts that is meant, not the binary one that is nearest to it.

    >>> rounded(48.75, 1), rounded(12.5), rounded(-0.5), rounded(100 * 0.575), f"{12.5:.0f}"
    ('48.8', '13', '-1', '58', '12')
    """
    return _rounded(_decimal(value), digits) if math.isfinite(value) else str(float(value))


def percent(share: float, digits: int | None = None) -> str:
    """A share in percent: every share that people read is written here or by `percent_in_digits`.

    Args:
        digits: after the point; None for none, below 1 % as many as show something.

    >>> percent(0.4249), percent(0.125), percent(0.004), percent(0.0004), percent(0.9996)
    ('42 %', '13 %', '0.4 %', '0.04 %', '100 %')
    >>> percent(0.4875, 1), percent(1.0, 1), percent(0.0), percent(1e-17), percent(math.nan)
    ('48.8 %', '100.0 %', '0 %', '0 %', '-')
    """
    if not math.isfinite(share):
        return "-"
    value = _decimal(share).scaleb(2)
    if digits is None:
        size = abs(value)
        digits = 0 if size >= 1 or size < _NOTHING else max(1, -size.adjusted())
    return f"{_rounded(value, digits)} %"


def percent_in_digits(share: float) -> str:
    """A share in percent with three significant digits, for cells that are compared.

    >>> percent_in_digits(0.015625), percent_in_digits(0.3125), percent_in_digits(1.0)
    ('1.56 %', '31.3 %', '100 %')
    """
    short = _THREE_DIGITS.plus(_decimal(share).scaleb(2)).normalize()
    return f"{short or abs(short):f} %"


def percent_ends(low: float, high: float, digits: int | None = None) -> str:
    """Both ends of an interval as `percent` writes them, without the sign.

    >>> percent_ends(0.253, 0.482), percent_ends(0.75, 0.866, 1)
    ('25 to 48', '75.0 to 86.6')
    """
    return " to ".join(percent(end, digits).removesuffix(" %") for end in (low, high))


def share_of_all(share: float) -> str:
    """As `percent`, but what is nearly all is not called all.

    >>> share_of_all(0.996), share_of_all(1.0), share_of_all(0.42)
    ('99.6 %', '100 %', '42 %')
    """
    return percent(share, 1) if 0.99 <= share < 1 else percent(share)


def points(share: float, digits: int = 0) -> str:
    """A difference of shares in percentage points, with its sign.

    >>> points(0.125), points(-0.0625, 1), points(0.0), points(0.01)
    ('+13 points', '-6.3 points', '0 points', '+1 point')
    """
    text = signed(100 * share, digits)
    return f"{text} point{'' if text in ('+1', '-1') else 's'}"


def signed(value: float, digits: int = 0) -> str:
    """As `rounded`, with a plus before what is above zero."""
    text = rounded(value, digits)
    return text if float(text) <= 0 else f"+{text}"


_NOTHING = Decimal("1e-4")
"""Percent below which a share is an error of rounding."""
_DECIMAL_DIGITS = 12
"""Of a binary number: more are its own."""
_THREE_DIGITS = Context(prec=3, rounding=ROUND_HALF_UP)


def _decimal(value: float) -> Decimal:
    return Decimal(f"{value:.{_DECIMAL_DIGITS}g}")


def _rounded(value: Decimal, digits: int) -> str:
    whole = value.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{whole or abs(whole):f}"


def number(value: float) -> str:
    """Three significant digits, without an exponent where that reads well.

    >>> number(0.98437), number(1057.3), number(0.00012), number(2.5)
    ('0.984', '1057', '0.00012', '2.5')
    """
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= 100:
        return f"{value:.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    return f"{value:.3g}"
