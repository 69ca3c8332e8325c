"""A condition that a person writes for rows: what may stand after WHERE, and nothing else.

The condition becomes a part of a SELECT, and that SELECT is checked as every query is (`check.py`).
Here the question is whether it is one condition, so that it cannot end the SELECT and begin
another, and whether its columns exist, so that a mistyped one is named with the one that was meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from echoscope.text.did_you_mean import did_you_mean

from ..errors import QueryError
from .check import select_nodes

_SCOPES = ("SUBQUERY", "LAMBDA")
"""Expressions with names of their own: DuckDB looks those up."""


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
        raise QueryError(f"{_not_one(text, table)}: {error}") from error
    if len(nodes) != 1 or not _is_bare(nodes[0]):
        raise QueryError(f"{_not_one(text, table)}; it holds more than a condition")
    known = {name.lower() for name in columns}
    for names in _columns(nodes[0]["select_list"]):
        first, *rest = names
        if rest and first.lower() == table:
            first = rest[0]
        if first.lower() not in known:
            if f'"{first}"' in text:
                raise QueryError(
                    f"{table} have no column {first[:80]!r}; in SQL a text stands in single "
                    f"quotes: '{first[:80]}'"
                )
            raise QueryError(unknown_column(first, columns, table))
    return condition


def unknown_column(name: str, columns: Collection[str], table: str) -> str:
    """That a column does not exist, and which one was meant."""
    return f"{table} have no column {name[:80]!r}{did_you_mean(name, columns)}"


def _not_one(text: str, table: str) -> str:
    return (
        f"{' '.join(text.split())[:200]!r} is not one condition over the columns of {table}, such "
        'as "step > 10"'
    )


def _is_bare(node: dict[str, Any]) -> bool:
    """Whether a SELECT has one expression and no further clause."""
    plain = select_nodes("SELECT (\n1\n)")[0]
    rest = {key: value for key, value in node.items() if key != "select_list"}
    is_plain = rest == {key: value for key, value in plain.items() if key != "select_list"}
    return is_plain and len(node["select_list"]) == 1


def _columns(value: Any) -> Iterator[list[str]]:
    """The parts of the name of every column that is named outside of inner scopes."""
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, list):
            waiting += reversed(entry)
        elif isinstance(entry, dict) and entry.get("class") == "COLUMN_REF":
            yield [str(name) for name in entry["column_names"]]
        elif isinstance(entry, dict) and entry.get("class") not in _SCOPES:
            waiting += reversed(entry.values())
