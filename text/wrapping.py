"""Lines of text that fit a width."""

from __future__ import annotations

import textwrap


def wrapped(line: str, width: int) -> list[str]:
    """One line as lines of at most `width` characters, broken between words where that is possible.

    A line that fits stays as it is, blanks and all; an empty line is one empty line.

    >>> wrapped("the longest text", 11)
    ['the longest', 'text']
    """
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, break_on_hyphens=False) or [""]
