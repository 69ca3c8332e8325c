"""Titles inside a sentence, words at its beginning, and the parts of a list in a sentence."""

from __future__ import annotations

import re

_BETWEEN_PARTS = re.compile(r"; (?![^()]*\))")


def in_sentence(title: str) -> str:
    """A title as it stands inside a sentence: without its capital letter, unless that is a name's.

    >>> in_sentence("Template collapse"), in_sentence("KL to the reference"), in_sentence("I(X;Z)")
    ('template collapse', 'KL to the reference', 'I(X;Z)')
    """
    is_name = len(title) > 1 and not (title[1].islower() or title[1] == " ")
    return title if is_name else title[:1].lower() + title[1:]


def capitalised(words: str) -> str:
    """Words as a sentence begins: the first letter a capital, the others as they are.

    >>> capitalised("KL to the reference"), capitalised("valid actions")
    ('KL to the reference', 'Valid actions')
    """
    return words[:1].upper() + words[1:]


def parts_of_list(words: str) -> list[str]:
    """The parts that semicolons separate; those inside brackets separate none.

    >>> parts_of_list("success: 2 % (1 to 3 %; steps 37 to 60); valid actions: 10 %")
    ['success: 2 % (1 to 3 %; steps 37 to 60)', 'valid actions: 10 %']
    """
    return _BETWEEN_PARTS.split(words)
