"""Text as people read it: titles inside a sentence, its beginning and its parts, lines that fit."""

from __future__ import annotations

import re
import textwrap

_BETWEEN_PARTS = re.compile(r"; (?![^()]*\))")


def in_sentence(title: str) -> str:
    """A title as it stands inside a sentence: without its capital letter, unless that is a name's.

    >>> in_sentence("Template collapse"), in_sentence("KL to the reference"), in_sentence("I(X;Z)")
    ('template collapse', 'KL to the reference', 'I(X;Z)')
    """
    is_name = len(title) > 1 and not (title[1].islower() or title[1] == " ")
    return title if is_name else title[:1].lower() + title[1:]


def capitalised(text: str) -> str:
    """Words as a sentence begins: the first letter a capital, the others as they are.

    >>> capitalised("KL to the reference"), capitalised("valid actions")
    ('KL to the reference', 'Valid actions')
    """
    return text[:1].upper() + text[1:]


def parts_of_list(text: str) -> list[str]:
    """The parts that semicolons separate; those inside brackets separate none.

    >>> parts_of_list("success: 2 % (1 to 3 %; steps 37 to 60); valid actions: 10 %")
    ['success: 2 % (1 to 3 %; steps 37 to 60)', 'valid actions: 10 %']
    """
    return _BETWEEN_PARTS.split(text)


def wrapped(line: str, width: int) -> list[str]:
    """One line as lines of at most `width` characters, broken between words where that is possible.

    A line that fits stays as it is, blanks and all; an empty line is one empty line.

    >>> wrapped("the longest text", 11)
    ['the longest', 'text']
    """
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, break_on_hyphens=False) or [""]


def in_one_line(error: BaseException) -> str:
    """An error with its kind, for a person who reads a log.

    >>> in_one_line(ValueError("no\\n room"))
    'ValueError: no room'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
