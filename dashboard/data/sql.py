"""SQL that a person typed: one SELECT, bounded in time, rows and memory, and nothing but the run.

It is answered by a process of its own, apart from the DuckDB that pages read with.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from echoscope.store.errors import QueryError
from echoscope.store.query import bounded
from echoscope.store.query.bounded import BoundedAnswer, SqlLimits

from ..page.problems import Problem
from ..web.settings import settings
from . import queries

MAX_SQL = 20_000
MAX_ANSWER_BYTES = 64_000_000
"""Of the rows that are shown."""

EXAMPLES: dict[str, str] = {
    "Success and return by step": (
        "SELECT step, success_rate, return_mean, entropy\nFROM steps\nORDER BY step"
    ),
    "Why episodes end": (
        "SELECT stop_reason, count(*) AS episodes, avg(episode_return) AS mean_return,\n"
        "       avg(num_turns) AS mean_turns\nFROM trajectories\nWHERE split = 'train'\n"
        "GROUP BY stop_reason\nORDER BY episodes DESC"
    ),
    "Groups without spread": (
        "SELECT step, count(*) FILTER (WHERE spread = 0) / count(*) AS share_without_spread\n"
        "FROM (SELECT step, group_index, stddev_pop(episode_return) AS spread\n"
        "      FROM trajectories WHERE split = 'train' GROUP BY ALL)\n"
        "GROUP BY step\nORDER BY step"
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
    "One metric": (
        "SELECT step, value AS kept_frac\nFROM metrics\nWHERE key = 'selection/kept_frac'\n"
        "ORDER BY step"
    ),
    "Evaluations": (
        "SELECT step, key, value\nFROM metrics\n"
        "WHERE phase = 'eval' AND key LIKE '%success_rate%'\nORDER BY key, step"
    ),
    "Unlikely tokens": (
        "SELECT trajectory_id, turn, list_min(logprobs) AS lowest_logprob,\n"
        "       list_position(logprobs, list_min(logprobs)) - 1 AS token\n"
        "FROM tokens\nORDER BY lowest_logprob\nLIMIT 20"
    ),
    "Who steered": (
        "SELECT to_timestamp(issued_at) AS at, issued_by, action, settings, reason\n"
        "FROM commands\nORDER BY issued_at"
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
            return bounded.ask(path, query, limits=_limits())
        except QueryError as error:
            raise Problem(str(error)) from error


def warm_up() -> None:
    """Start what answers queries, while a person types the first one."""
    bounded.warm_up(_limits())


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


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as a Parquet file, types and all."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())
