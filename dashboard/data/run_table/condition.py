"""The condition that a person types to filter runs: `lr > 1e-6 and success < 50 %`.

It is an expression over the columns of the table of runs, and DuckDB evaluates it. Its names are
resolved first, as the table's are: short names, dotted ones, those with a slash. Then DuckDB's own
parse of it is walked, and every part must be on a list: comparisons, arithmetic, AND, OR, NOT, and
a few functions of texts and numbers. None of them reads a file, makes a list or repeats a text, so
that time and memory are bounded by the number of runs; a timer is behind that.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from echoscope.store.errors import QueryError
from echoscope.store.query.check import dicts, empty_database, one_line, select_nodes
from echoscope.store.query.condition import is_bare

from ...page.problems import Problem
from .columns import STATS, RunsColumn


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MAX_CHARS = 500
SECONDS = 2.0
_TABLE = "shown_runs"
_CLASSES = _words("COLUMN_REF COMPARISON CONJUNCTION CONSTANT BETWEEN CASE")
_OPERATORS = _words(
    """
    OPERATOR_NOT OPERATOR_IS_NULL OPERATOR_IS_NOT_NULL COMPARE_IN COMPARE_NOT_IN OPERATOR_COALESCE
    """
)
FUNCTIONS = _words(
    """
    + - * / // % ** ^ ~~ !~~ ~~* !~~* abs round floor ceil sqrt ln log log2 log10 exp greatest
    least lower upper length contains starts_with ends_with prefix suffix regexp_matches isnan
    coalesce
    """
)
"""What a condition may call."""
_TOKEN = re.compile(
    rf"""
    (?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*")
    | (?P<share>\d+(?:\.\d+)?\s*%(?=\s*(?:$|\)|and\b|or\b)))
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    | (?P<stat>{"|".join(STATS)})\s*\(\s*(?:"(?P<quoted_of>[^"]+)"|(?P<of>[\w./:@-]+))\s*\)
    | (?P<function>[^\W\d][\w./:@-]*)(?=\s*\()
    | (?P<word>[^\W\d][\w./:@-]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_KEYWORDS = _words(
    "and or not is null in like ilike between true false case when then else end similar to"
)
_SIGNS = re.compile(
    r"[<>=]|\bi?like\s+''|\bbetween\s+[-.\d'\"]|\bin\s*\(|\bis\s+(?:not\s+)?null\b", re.IGNORECASE
)
_LITERAL = re.compile(r"'(?:[^']|'')*'")
Resolve = Callable[[str], RunsColumn]


def is_condition(text: str) -> bool:
    """Whether a filter is meant as a condition: it compares something.

    >>> is_condition("lr > 1e-6"), is_condition("ppo|grpo"), is_condition("note is not null")
    (True, False, True)
    """
    return _SIGNS.search(_LITERAL.sub("''", text)) is not None


def parsed_condition(text: str, resolve: Resolve) -> tuple[str, tuple[RunsColumn, ...]]:
    """A condition as SQL, checked: every name is a column and every part is allowed.

    Returns:
        The SQL, and the columns that it reads, as `c0`, `c1`, ... in it.

    Raises:
        Problem: a name that does not exist, a part that is not allowed, or no condition at all; one
            sentence.
    """
    if len(text) > MAX_CHARS:
        raise Problem(f"the filter has {len(text)} characters, at most {MAX_CHARS}")
    columns: dict[str, tuple[str, RunsColumn]] = {}
    sql = "".join(_tokens(text, columns, resolve))
    try:
        nodes = select_nodes(f"SELECT (\n{sql}\n)")
    except QueryError as error:
        raise Problem(_not_one(text, _why(str(error)))) from error
    if len(nodes) != 1 or len(nodes[0]["select_list"]) != 1:
        raise Problem(_not_one(text, "it holds more than one"))
    _check(nodes[0], {alias for alias, _ in columns.values()})
    return sql, tuple(column for _, column in columns.values())


def _tokens(
    text: str, columns: dict[str, tuple[str, RunsColumn]], resolve: Resolve
) -> Iterator[str]:
    """The condition anew, with names as `c0`, `c1`, ..."""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if match["share"]:
            yield str(float(token.rstrip("% \t\n")) / 100)
        elif match["quoted"]:
            yield _alias(token[1:-1].replace('""', '"'), columns, resolve)
        elif match["stat"]:
            of = match["quoted_of"] or match["of"]
            yield _alias(f"{match['stat'].lower()}({of})", columns, resolve)
        elif match["word"] and token.lower() not in _KEYWORDS:
            yield _alias(token, columns, resolve)
        else:
            yield token


def _alias(name: str, columns: dict[str, tuple[str, RunsColumn]], resolve: Resolve) -> str:
    try:
        column = resolve(name)
    except Problem as problem:
        is_far = "did you mean" not in problem.text and problem.text.startswith(
            "there is no column"
        )
        advice = f"; a text stands in single quotes: '{name[:60]}'" if is_far else ""
        raise Problem(f"{problem.text}{advice}") from problem
    if column.name not in columns:
        columns[column.name] = (f"c{len(columns)}", column)
    return columns[column.name][0]


def _check(node: Mapping[str, Any], aliases: set[str]) -> None:
    """Refuse whatever is not on the lists."""
    if not is_bare(node):
        raise Problem("a filter is one condition, without further clauses, such as: lr > 1e-6")
    for entry in dicts(node["select_list"]):
        kind = entry.get("class")
        if kind == "FUNCTION":
            _require(
                str(entry["function_name"]).lower() in FUNCTIONS, f"{entry['function_name']}()"
            )
        elif kind == "OPERATOR":
            _require(entry["type"] in _OPERATORS, str(entry["type"]))
        elif kind is not None:
            _require(kind in _CLASSES, str(kind))
        if kind == "COLUMN_REF" and set(entry["column_names"]) - aliases:
            raise Problem("a filter reads the columns of the table of runs and nothing else")


def _require(is_allowed: bool, what: str) -> None:
    if not is_allowed:
        is_call = what.endswith("()")
        name = (what if is_call else what.removeprefix("OPERATOR_").replace("_", " ").lower())[:60]
        raise Problem(
            f"{name} is not allowed in a filter: it compares columns with values, with AND, OR, "
            "NOT, IN, LIKE, BETWEEN, IS NULL, arithmetic, and functions such as contains()"
        )


def holds(condition: str, columns: Sequence[RunsColumn], table: pa.Table) -> list[bool]:
    """For which rows a condition holds; unknown counts as no.

    Args:
        condition, columns: What `parsed_condition` gives.
        table: A column `c0`, `c1`, ... for each of `columns`, in their order.

    Raises:
        Problem: the values do not fit the condition, or it takes too long; one sentence.
    """
    sql = f"SELECT coalesce((\n{condition}\n)::BOOLEAN, false) FROM {_TABLE}"
    with empty_database() as connection:
        connection.register(_TABLE, table)
        timer = threading.Timer(SECONDS, connection.interrupt)
        timer.start()
        try:
            rows = connection.execute(sql).fetchall()
        except duckdb.InterruptException as error:
            raise Problem(f"the filter takes longer than {SECONDS:g} seconds") from error
        except duckdb.Error as error:
            raise Problem(_unfit(one_line(error), columns)) from error
        finally:
            timer.cancel()
            connection.unregister(_TABLE)
    return [bool(is_held) for (is_held,) in rows]


def _unfit(why: str, columns: Sequence[RunsColumn]) -> str:
    """What DuckDB says of values that do not fit, with the names that people know."""
    names = {f"c{n}": column.name for n, column in enumerate(columns)}
    sentence = re.sub(r"\bc(\d+)\b", lambda m: names.get(m[0], m[0]), why)
    if "Cannot compare" in sentence or "Could not convert" in sentence:
        texts = [column.name for column in columns if column.kind == "text"]
        return (
            f"{' and '.join(texts) or 'the filter'} holds texts, which compare with a text in "
            "single quotes, such as status = 'finished', and not with a number"
        )
    return f"the filter cannot be evaluated: {sentence.partition(': ')[2][:200] or sentence[:200]}"


def _why(error: str) -> str:
    return "it breaks off" if 'at or near ")"' in error else error[:160]


def _not_one(text: str, why: str) -> str:
    return (
        f"{' '.join(text.split())[:120]!r} is no condition: {why}. A condition looks like: "
        "lr > 1e-6 and success < 50 % and algo = 'ppo'"
    )
