"""A condition that a person writes for rows: what may stand after WHERE, and nothing else.

The condition becomes a part of a SELECT, and that SELECT is checked as every query is (`check.py`).
Here the question is whether it is one condition, so that it cannot end the SELECT and begin
another, and whether its columns exist, so that the error about a mistyped one names those that may
be meant, and the error about a text without quotes shows the quotes.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from echoscope.text.did_you_mean import did_you_mean

from ..errors import QueryError
from ..schema import TABLES
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
    if len(nodes) != 1 or not _is_bare(nodes[0]):
        raise QueryError(f"{_not_one(text, table)}; it holds more than a condition")
    known = {name.lower() for name in columns}
    for name, compared in _columns(nodes[0]["select_list"], table):
        if name.lower() in known:
            continue
        beside = next((other for other in compared if _holds_text(other, known)), "")
        if beside or f'"{name}"' in text:
            raise QueryError(_unquoted(name, beside, columns, table))
        raise QueryError(unknown_column(name, columns, table))
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


def _unquoted(name: str, beside: str, columns: Collection[str], table: str) -> str:
    """That a name is no column, and how it is written where it is a text.

    Args:
        beside: The column that it is compared with; empty for none.
    """
    hint = did_you_mean(name, columns)
    meant = hint if hint.endswith("?") else ""
    quoted = "'" + name[:80].replace("'", "''") + "'"
    example = f"{beside} = {quoted}" if beside else quoted
    return f"{table} have no column {name[:80]!r}{meant}; a text stands in single quotes: {example}"


def _holds_text(name: str, known: Collection[str]) -> bool:
    """Whether rows have this column, and texts in it."""
    types = {
        column.type for t in TABLES.values() for column in t.columns if column.name == name.lower()
    }
    return name.lower() in known and types <= {"VARCHAR"}


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


def _columns(value: Any, table: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Every column that is named outside of inner scopes, and those that it is compared with."""
    waiting: list[tuple[Any, Sequence[str]]] = [(value, ())]
    while waiting:
        entry, compared = waiting.pop()
        if isinstance(entry, list):
            waiting += [(inner, compared) for inner in reversed(entry)]
        elif not isinstance(entry, dict) or entry.get("class") in _SCOPES:
            continue
        elif entry.get("class") == "COLUMN_REF":
            name = _name(entry, table)
            yield name, [other for other in compared if other != name]
        else:
            if "class" in entry:
                compared = [_name(one, table) for one in _operands(entry)]
            waiting += [(inner, compared) for inner in reversed(entry.values())]


def _operands(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The columns that a comparison, an IN or a LIKE sets beside each other; empty for others."""
    kind = node.get("class")
    if kind == "COMPARISON":
        operands = [node["left"], node["right"]]
    elif kind == "OPERATOR" and str(node["type"]).startswith("COMPARE_"):
        operands = node["children"]
    elif kind == "FUNCTION" and node["is_operator"]:
        operands = [argument["expression"] for argument in node["arguments"]]
    else:
        return []
    return [one for one in operands if one.get("class") == "COLUMN_REF"]


def _name(column: Mapping[str, Any], table: str) -> str:
    """The name of a column, without that of its table."""
    first, *rest = map(str, column["column_names"])
    return str(rest[0]) if rest and first.lower() == table else first
