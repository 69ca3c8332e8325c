"""A hint for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_LISTED = 40
"""Names; where more are known, only a close one is worth naming."""


def did_you_mean(name: str, candidates: Iterable[str], *, most: int = 1) -> str:
    """The end of a sentence about an unknown name: close names, or all of them if none is close.

    Empty where nothing is close and the known names are none or too many to list.

    Args:
        most: How many close names to offer.

    >>> did_you_mean("lrr", ["lr", "beta"]), did_you_mean("x", ["lr", "beta"])
    ("; did you mean 'lr'?", '; known: beta, lr')
    """
    names = sorted(set(candidates))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close and most > 1:
        close = difflib.get_close_matches(name, names, n=most, cutoff=0.5)
    if not close:  # `value` for `selection.value`
        close = [longer for longer in names if name and longer.endswith(f".{name}")][:1]
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= MOST_LISTED else ""
