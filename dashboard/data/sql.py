"""SQL that a person typed: one SELECT, bounded in time, rows and memory, and nothing but the run.

It is answered by a process of its own, apart from the DuckDB that pages read with.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from echoscope.store.errors import QueryError
from echoscope.store.query import sql_process
from echoscope.store.query.sql_process import BoundedAnswer, SqlLimits

from ..escaping import visible
from ..page.problems import Problem
from ..web.settings import settings
from . import queries

MAX_SQL = 20_000
MAX_ANSWER_BYTES = 64_000_000
"""Of the rows that are shown."""
CELL_CHARS = 2_000

EXAMPLES: dict[str, str] = {
    "Success and return by step": (
        "SELECT step, success_rate, return_mean, entropy\nFROM steps\nORDER BY step"
    ),
    "Why episodes end": (
        "SELECT stop_reason, count(*) AS episodes, avg(episode_return) AS mean_return,\n"
        "       avg(num_turns) AS mean_turns\nFROM trajectories\nWHERE split = 'train'\n"
        "GROUP BY stop_reason\nORDER BY episodes DESC"
    ),
    "Longest responses": (
        "SELECT trajectory_id, turn, length(response) AS characters, reward, response\n"
        "FROM turns\nORDER BY characters DESC\nLIMIT 20"
    ),
    "The same answer to many prompts": (
        "SELECT response, count(*) AS times, count(DISTINCT trajectory_id) AS episodes\n"
        "FROM turns\nWHERE step = (SELECT max(step) FROM trajectories WHERE split = 'train')\n"
        "GROUP BY response\nORDER BY times DESC\nLIMIT 20"
    ),
    "Evaluations": (
        "SELECT step, key, value\nFROM metrics\n"
        "WHERE phase = 'eval' AND key LIKE '%success_rate%'\nORDER BY key, step"
    ),
}
"""Name -> query."""


def ask(run_id: str, sql: str) -> BoundedAnswer:
    """Answer one SELECT over the tables of a run.

    Raises:
        Problem: not one SELECT, DuckDB refuses it, or it took too long or too much.
    """
    query = sql.strip().rstrip(";").strip()
    if not query:
        raise Problem("There is no query.", "Type a SELECT, or choose an example.")
    if len(query) > MAX_SQL:
        raise Problem(f"The query has {len(query)} characters, at most {MAX_SQL} may be asked.")
    path = queries.path_of(run_id)
    with queries.reading(run_id):
        try:
            return sql_process.ask(path, query, limits=_limits())
        except QueryError as error:
            raise Problem(str(error)) from error


def warm_up() -> None:
    """Start what answers queries, while a person types the first one."""
    sql_process.warm_up(_limits())


def _limits() -> SqlLimits:
    given = settings()
    return SqlLimits(
        seconds=given.sql_seconds,
        memory=given.sql_memory,
        rows=given.sql_rows,
        answer_bytes=MAX_ANSWER_BYTES,
    )


def csv_bytes(table: pa.Table) -> bytes:
    """The table as CSV: lists and maps as JSON, bytes as base64.

    Text that a spreadsheet would run is made harmless.
    """
    import pyarrow.csv as pacsv

    columns = [_flat(table.column(name)) for name in range(table.num_columns)]
    names = [_harmless(name) for name in table.column_names]
    sink = pa.BufferOutputStream()
    pacsv.write_csv(pa.Table.from_arrays(columns, names=names), sink)
    return bytes(sink.getvalue())


def _flat(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array([None if v is None else _harmless(v) for v in column.to_pylist()])
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):  # a picture
        return pa.array([None if v is None else base64.b64encode(v) for v in column.to_pylist()])
    if pa.types.is_nested(kind):
        values: list[Any] = column.to_pylist()
        return pa.array([None if v is None else json.dumps(v, default=str) for v in values])
    return column


def _harmless(text: str) -> str:
    """A cell that begins like a formula is a formula for a spreadsheet."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def shown_frame(table: pa.Table) -> pd.DataFrame:
    """The answer as it is shown: text cut and made visible, lists and maps as JSON text.

    A column with NaN becomes text: pandas and the table of the browser take NaN for NULL.
    """
    columns: dict[str, Any] = {}
    for index, name in enumerate(table.column_names):
        column, heading, number = table.column(index), visible(name, 80), 2
        while heading in columns:
            heading, number = f"{visible(name, 80)} ({number})", number + 1
        has_nan = pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py()
        is_plain = pa.types.is_primitive(column.type) or pa.types.is_decimal(column.type)
        if is_plain and not has_nan:
            columns[heading] = column.to_pandas()
        else:
            columns[heading] = pd.Series(map(_cell, column.to_pylist()), dtype=object)
    return pd.DataFrame(columns)


def _cell(value: Any) -> str | None:
    if isinstance(value, float):
        return f"{value:.12g}"
    if value is not None and not isinstance(value, str):
        value = json.dumps(value, default=str, ensure_ascii=False)
    return None if value is None else visible(value, CELL_CHARS)
