"""Falls that end by themselves: a run that swings comes back from each, and the next is one more.

>>> high, low = Stretch(0, 10, 0.7), Stretch(20, 24, 0.3)
>>> later, lower = Stretch(40, 50, 0.7), Stretch(60, 64, 0.31)
>>> turns = [("down", high), ("up", low), ("down", later), ("up", lower), ("down", later)]
>>> rows_of_like_dips(turns, 0.7, 0.3)
[14, 14]
>>> is_swing([14, 14], 20), is_swing([14, 14], 30), is_swing([14], 5)
(True, False, False)
"""

from __future__ import annotations

from collections.abc import Sequence

from .series import Stretch
from .turns import Mode

LEAST = 2
"""Falls from which it came back, before another one as deep is taken for the next swing ..."""
LONGER = 1.5
"""... until it takes so many times as long as the longest."""
ROOM = 0.25
"""Part of a fall by which others like it may begin and end elsewhere."""


def rows_of_like_dips(
    turns: Sequence[tuple[Mode, Stretch]], held: float, present: float
) -> list[int]:
    """How many rows each earlier fall took that was as deep, and ended near where it began.

    Args:
        turns: the mode that began with each, and the extreme that it began from; the last is the
            present fall.
        held: the level before the present fall.
        present: the level now.
    """
    room = ROOM * (held - present)
    first = 0 if turns[0][0] == "down" else 1
    falls, rises = turns[first::2], turns[first + 1 :: 2]
    return [
        low.stop - high.stop
        for (_, high), (_, low), (_, back) in zip(falls, rises, falls[1:], strict=False)
        if low.mean <= present + room and back.mean >= held - room
    ]


def is_swing(rows_of_dips: Sequence[int], rows_now: int) -> bool:
    """Is a fall of so many rows the next of several, and not much longer than they were?"""
    return len(rows_of_dips) >= LEAST and rows_now <= LONGER * max(rows_of_dips)
