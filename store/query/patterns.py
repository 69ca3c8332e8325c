"""A filter that a person types: a regular expression that takes linear time on any text.

Python's own `re` can be made to run for ever by a few characters, and nothing else runs meanwhile.
DuckDB's RE2 knows no such pattern, so neither does a filter of a page.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from ..errors import QueryError
from .check import empty_database, one_line

MAX_PATTERN = 500
_MATCHES = "SELECT regexp_matches(unnest($1), $2, 'i')"


def matches(pattern: str, texts: Sequence[str]) -> list[bool]:
    """For each text, whether a regular expression is found in it, whatever the case.

    Raises:
        QueryError: no regular expression, or too long; one line.

    >>> matches("^eval|KL$", ["eval/success", "policy/kl", "a/eval"])
    [True, True, False]
    """
    if len(pattern) > MAX_PATTERN:
        raise QueryError(f"the filter has {len(pattern)} characters, at most {MAX_PATTERN}")
    if not pattern:
        return [True] * len(texts)
    given = [_utf8(text) for text in texts]
    try:
        # Once more for no text at all: what is wrong with a pattern does not depend on the texts.
        with empty_database() as connection:
            rows = connection.execute(_MATCHES, [["", *given], _utf8(pattern)]).fetchall()
    except duckdb.Error as error:
        why = one_line(error).removeprefix("Invalid Input Error: ")
        raise QueryError(
            f"{_shown(pattern)} is not a regular expression: {_shown(why)}. Plain words work; "
            "write \\. \\( \\[ for the signs themselves."
        ) from error
    return [bool(is_match) for (is_match,) in rows[1:]]


def _utf8(text: str) -> str:
    """Half a character, which no UTF-8 can hold, as `?`."""
    return text.encode(errors="replace").decode()


def _shown(text: str) -> str:
    return ascii(text) if len(text) <= 80 else f"{text[:80]!a}..."
