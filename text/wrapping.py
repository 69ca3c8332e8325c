"""Text in lines that fit, and in one line."""

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


def in_one_line(error: BaseException, most: int = 300) -> str:
    """An error with its kind, for a person who reads a log.

    >>> in_one_line(ValueError("no\\n room"))
    'ValueError: no room'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"
