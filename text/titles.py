"""Titles inside a sentence, and words at its beginning."""

from __future__ import annotations


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
