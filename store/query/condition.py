"""A condition that a person writes for rows: what may stand after WHERE, and nothing else.

The condition becomes a part of a SELECT, and that SELECT is checked as every query is (`check.py`).
Here the question is whether it is one condition, so that it cannot end the SELECT and begin
another, and whether its columns exist, so that the error about a mistyped one names those that may
be meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from echoscope.text.did_you_mean import did_you_mean

from ..errors import QueryError
from .check import select_nodes

FLAG = "is_"
"""How the names of flags begin in the store; a condition may leave it out."""
_SCOPES = ("SUBQUERY", "LAMBDA")
"""Expressions with names of their own: DuckDB looks those up."""
_ALSO_CALLED: Mapping[str, Sequence[str]] = {
    "reward": ("episode_return", "env_return"),
    "score": ("episode_return", "env_return"),
    "env": ("env_id", "tag"),
    "environment": ("env_id", "tag"),
    "seed": ("env_seed",),
    "turns": ("num_turns",),
    "length": ("num_sampled_tokens", "num_turns"),
    "tokens": ("num_sampled_tokens",),
}
"""What other tools call a value -> the columns that have it here."""
_CUT_SHORT = 'syntax error at or near ")"'
"""What DuckDB says of a condition that breaks off: the bracket is the one that is put around it."""


def flags_without_prefix(columns: Collection[str]) -> list[str]:
    """The short names of the flags among some columns.

    >>> flags_without_prefix(["step", "is_success"])
    ['success']
    """
    return [name.removeprefix(FLAG) for name in columns if name.startswith(FLAG)]


def checked_condition(text: str, columns: Collection[str], table: str) -> str:
    """A condition as it can stand after WHERE, in brackets.

    Args:
        columns: What the rows have.
        table: What the rows are called, in an error as well.

    Raises:
        QueryError: not one condition, or a column that the rows do not have; one line.

    >>> checked_condition("step > 10", ["step"], "turns").split()
    ['(', 'step', '>', '10', ')']
    >>> checked_condition("stp > 10", ["step"], "turns")
    Traceback (most recent call last):
    echoscope.store.errors.QueryError: turns have no column 'stp'; did you mean 'step'?
    """
    if not text.strip():
        raise QueryError(f"{_not_one(text, table)}; it is empty")
    # On lines of its own: a comment at its end hides nothing of what follows.
    condition = f"(\n{text}\n)"
    try:
        nodes = select_nodes(f"SELECT {condition}")
    except QueryError as error:
        reason = str(error)
        if _CUT_SHORT in reason and ")" not in text:
            reason = "it breaks off"
        raise QueryError(f"{_not_one(text, table)}: {reason}") from error
    if len(nodes) != 1 or not is_bare(nodes[0]):
        raise QueryError(f"{_not_one(text, table)}; it holds more than a condition")
    lower = {name.lower() for name in columns}
    for name in _columns(nodes[0]["select_list"], table):
        if name.lower() not in lower:
            why = unknown_column(name, columns, table)
            quoted = "'" + name[:80].replace("'", "''") + "'"
            how = "" if why.endswith("?") else f"; a text stands in single quotes: {quoted}"
            raise QueryError(f"{why}{how}")
    return condition


def unknown_column(name: str, columns: Collection[str], table: str) -> str:
    """That a column does not exist, and which ones may be meant."""
    also = [column for column in _ALSO_CALLED.get(name.lower(), ()) if column in columns]
    close = difflib.get_close_matches(name, columns, n=3, cutoff=0.7)
    hint = (
        f"; did you mean {' or '.join(map(repr, also))}?"
        if also
        else did_you_mean(name, close or columns, most=3)
    )
    return f"{table} have no column {name[:80]!r}{hint}"


def _not_one(text: str, table: str) -> str:
    return (
        f"{' '.join(text.split())[:200]!r} is not one condition over the columns of {table}, such "
        'as "step > 10"'
    )


def is_bare(node: Mapping[str, Any]) -> bool:
    """Whether a SELECT has one expression and no further clause."""
    plain = select_nodes("SELECT (\n1\n)")[0]
    rest = {key: value for key, value in node.items() if key != "select_list"}
    is_plain = rest == {key: value for key, value in plain.items() if key != "select_list"}
    return is_plain and len(node["select_list"]) == 1


def _columns(value: Any, table: str) -> Iterator[str]:
    """Every column that is named outside of inner scopes."""
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, list):
            waiting += reversed(entry)
        elif isinstance(entry, dict) and entry.get("class") == "COLUMN_REF":
            yield _name(entry, table)
        elif isinstance(entry, dict) and entry.get("class") not in _SCOPES:
            waiting += reversed(entry.values())


def _name(column: Mapping[str, Any], table: str) -> str:
    """The name of a column, without that of its table."""
    first, *rest = map(str, column["column_names"])
    return str(rest[0]) if rest and first.lower() == table else first
