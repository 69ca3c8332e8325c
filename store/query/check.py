"""Which SQL may be asked: one SELECT, built of nothing but parts that read.

DuckDB calls a statement a SELECT whose `WITH` deletes rows or writes a file. So its kind says
little: here DuckDB's own parse of the query is walked, every node of it must be on a list, and what
is not known is refused. The second line of defence is the connection, which has nothing to write
to (`run_files.py`, and the read-only transaction in `database.py`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb

from ..errors import QueryError
from ..schema import TABLES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TYPES = _words(
    """
    SELECT_NODE SET_OPERATION_NODE RECURSIVE_CTE_NODE CTE_NODE
    BASE_TABLE EMPTY EXPRESSION_LIST JOIN PIVOT SHOW_REF SUBQUERY TABLE_FUNCTION
    DISTINCT_MODIFIER LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER ORDER_MODIFIER ASCENDING
    DESCENDING ORDER_DEFAULT
    """
)
"""Nodes of a query: selects, what may stand after FROM, clauses."""
_EXPRESSIONS = _words(
    """
    BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT DEFAULT
    FUNCTION LAMBDA LAMBDA_REF OPERATOR PARAMETER POSITIONAL_REFERENCE STAR SUBQUERY
    TYPE WINDOW
    """
)
TABLE_FUNCTIONS = _words(
    """
    duckdb_columns duckdb_functions duckdb_keywords duckdb_tables duckdb_types
    duckdb_views generate_series generate_subscripts histogram histogram_values
    json_each json_tree pragma_table_info pragma_version range regexp_split_to_table
    repeat repeat_row unnest
    """
)
"""Functions that may stand after FROM: they compute rows, or describe the tables."""
REFUSED_FUNCTIONS = _words(
    """
    currval json_serialize_plan nextval pg_sleep setseed setval sleep_ms stats write_log
    """
)
"""Functions of values that change something, wait, or plan SQL that nobody has checked."""
_FILE_NAME = re.compile(r"[/\\:*?]|\.[A-Za-z0-9]+$")

_parser: duckdb.DuckDBPyConnection | None = None
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """SQL that only reads."""

    sql: str
    """As it is to be run."""
    tables: tuple[str, ...]
    """The tables of the schema that it names."""


@lru_cache(maxsize=512)
def checked_query(query: str) -> CheckedQuery:
    """The query, found to be one SELECT that only reads.

    Raises:
        QueryError: not SQL, or not one SELECT that only reads; one line, with the way out.
    """
    kinds, row = _parsed(query)
    if len(kinds) != 1:
        raise QueryError(f"expected one statement, got {len(kinds)}")
    if kinds[0] == "MULTI":
        raise QueryError(
            "a PIVOT needs its values, because finding them would write: "
            "PIVOT steps ON split IN ('train', 'eval') USING avg(return_mean)"
        )
    if kinds[0] != "SELECT":
        raise QueryError(f"a query may only read: {kinds[0]} is not allowed, SELECT is")
    names = {name.removeprefix("live_") for name in _check(_statements(row))}
    return CheckedQuery(sql=query, tables=tuple(name for name in TABLES if name in names))


def select_nodes(select: str) -> list[dict[str, Any]]:
    """DuckDB's parse of some SELECT statements: one object each. Nothing is checked or run.

    Raises:
        QueryError: not SQL, or not SELECT statements; one line.
    """
    return [statement["node"] for statement in _statements(_parsed(select)[1])]


def _parsed(select: str) -> tuple[list[str], str]:
    """The kinds of the statements, and DuckDB's parse of them as JSON text."""
    if not select.isascii() and any("\ud800" <= character <= "\udfff" for character in select):
        raise QueryError("the query holds half of a character, which no text in UTF-8 has")
    try:
        with empty_database() as connection:
            statements = connection.extract_statements(select)
            kinds = [_kind(statement) for statement in statements]
            row = connection.execute("SELECT json_serialize_sql(?)", [select]).fetchone()
    except duckdb.Error as error:
        raise QueryError(one_line(error)) from error
    return kinds, str(row[0]) if row else "null"


def _statements(text: str) -> list[dict[str, Any]]:
    try:
        parse = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise QueryError(_TOO_DEEP) from error
    if parse["error"]:
        raise QueryError(f"the query cannot be checked: {' '.join(parse['error_message'].split())}")
    statements: list[dict[str, Any]] = parse["statements"]
    return statements


_TOO_DEEP = "the query is nested too deeply; write it in fewer levels, or IN (...) for many ORs"


def one_line(error: BaseException) -> str:
    """DuckDB's message without the picture of where it went wrong, or advice nobody can follow."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return (
            "the query needs more memory than it may use. Ask for fewer steps or columns, for "
            "example: WHERE step BETWEEN 100 AND 200"
        )
    text = str(error).split("\n\nLINE", 1)[0]
    if "expression depth limit" in text:
        return _TOO_DEEP
    return " ".join(text.split())


def _kind(statement: duckdb.Statement) -> str:
    try:
        return str(statement.type.name)
    except ValueError:
        return "this statement"  # newer than the names that DuckDB's Python package has for it


@contextmanager
def empty_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database without tables that can reach nothing: it parses, and computes with values."""
    global _parser
    with _lock:
        if _parser is None:
            options = {
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
            _parser = duckdb.connect(config=options)
            _parser.execute("SET threads = 1")
            _parser.execute("SET enable_external_access = false")
            _parser.execute("SET lock_configuration = true")
        cursor = _parser.cursor()
    # Outside of the lock: a slow pattern of one viewer keeps nobody else from asking.
    with cursor:
        yield cursor


def _check(statements: list[dict[str, Any]]) -> set[str]:
    """Refuse what is not known to read; the names of tables after FROM, in small letters."""
    names = set()
    for node in dicts(statements):
        expression = node.get("class")
        if expression is not None:
            if expression not in _EXPRESSIONS:
                raise QueryError(f"a query may only read: {_readable(expression)} is not allowed")
            if expression == "FUNCTION" and node["function_name"].lower() in REFUSED_FUNCTIONS:
                raise QueryError(f"{node['function_name']}() is not allowed: a query only reads")
            continue
        kind = node.get("type")
        # Other nodes that have a type describe the type of a value: an object, not a word.
        if isinstance(kind, str) and kind not in _TYPES:
            raise QueryError(f"a query may only read: {_readable(kind)} is not allowed, SELECT is")
        if kind in ("BASE_TABLE", "SHOW_REF"):
            name = str(node["table_name"]).strip('"')
            if _FILE_NAME.search(name):
                raise QueryError(
                    f"{name!r} is not a table: a query reads the tables of the run, not files. "
                    "SHOW TABLES lists the tables"
                )
            names.add(name.lower())
        elif kind == "TABLE_FUNCTION":
            name = str(node["function"]["function_name"])
            if name.lower() not in TABLE_FUNCTIONS:
                raise QueryError(
                    f"{name}() is not allowed after FROM: a query reads the tables of the run and "
                    "nothing else. SHOW TABLES lists them"
                )
            if name.lower().startswith("histogram"):  # of a table that its arguments name
                names |= set(TABLES)
    return names


def _readable(kind: str) -> str:
    return kind.removesuffix("_QUERY_NODE").removesuffix("_NODE").replace("_", " ")


def dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object inside a JSON value."""
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, dict):
            yield entry
            waiting += entry.values()
        elif isinstance(entry, list):
            waiting += entry
