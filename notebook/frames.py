"""Rows of a run as a table, in pandas or in Arrow: never more of them than memory holds.

Rows are asked for a few steps at a time, so that a run of a million episodes costs no more memory
than the rows that are given back.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby
from typing import Any, Literal

import pandas as pd
import pyarrow as pa

from echoscope.store.errors import QueryError
from echoscope.store.query.bounded import OWN
from echoscope.store.query.condition import (
    FLAG,
    checked_condition,
    flags_without_prefix,
    unknown_column,
)
from echoscope.store.reader import RunReader
from echoscope.store.schema import TABLES
from echoscope.text.amounts import memory_size

As = Literal["pandas", "arrow"]
MAX_ROWS = 100_000
"""Rows that are given back where nobody says how many."""
MAX_BYTES = 512 << 20
"""Of the rows of one answer, in Arrow's form."""
LIMITS = replace(OWN, advice="limits=SqlLimits(seconds=3600, memory='16GB') of query() allows more")
"""Of SQL that a person writes."""
PAGE_ROWS = 5_000
"""That one query asks for, or all rows of one step where a step has more."""


class LimitWarning(UserWarning):
    """An answer holds only the first of the rows that match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that a notebook can ask for."""

    name: str
    """How conditions and errors call them."""
    sql: str
    """A SELECT of all columns; `{steps}` is a condition on the column `step` of its tables."""
    columns: tuple[str, ...]
    usual: tuple[str, ...]
    """The columns of an answer where nobody names any."""
    order: str


def _without(table: str, *left_out: str) -> tuple[str, ...]:
    return tuple(name for name in TABLES[table].column_names if name not in left_out)


def _flags(alias: str, columns: Sequence[str]) -> str:
    return ", ".join(f"{alias}.{FLAG}{name} AS {name}" for name in flags_without_prefix(columns))


_OF_EPISODE = ("split", "env_id", "tag", "group_index", "sibling_index", "is_success")
"""Columns of the episode that its turns have, too."""
_TRAJECTORY_COLUMNS = TABLES["trajectories"].column_names
_TURN_COLUMNS = (*TABLES["turns"].column_names, *_OF_EPISODE, "episode_return")
_SPANS = ("reasoning_start", "reasoning_end", "answer_start", "answer_end")
TRAJECTORIES = Rows(
    name="trajectories",
    sql=f"SELECT t.*, {_flags('t', _TRAJECTORY_COLUMNS)} FROM trajectories t WHERE {{steps}}",
    columns=(*_TRAJECTORY_COLUMNS, *flags_without_prefix(_TRAJECTORY_COLUMNS)),
    usual=_without(
        "trajectories",
        *("run_id", "attempt", "noise_seed", "prompt_key", "final_observation", "final_frame"),
        *("extra", "final_image"),
    ),
    order="step, id",
)
TURNS = Rows(
    name="turns",
    sql=(
        "SELECT u.*, "
        + ", ".join(f"t.{name}" for name in (*_OF_EPISODE, "episode_return"))
        + f", {_flags('u', TABLES['turns'].column_names)}, t.is_success AS success, "
        + ", ".join(
            f"substring(u.response, u.{part}_start + 1, u.{part}_end - u.{part}_start) AS {part}"
            for part in ("reasoning", "answer")
        )
        + " FROM (FROM turns WHERE {steps}) u LEFT JOIN (FROM trajectories WHERE {steps}) t"
        " ON t.run_id = u.run_id AND t.attempt = u.attempt AND t.id = u.trajectory_id"
    ),
    columns=(*_TURN_COLUMNS, *flags_without_prefix(_TURN_COLUMNS), "reasoning", "answer"),
    usual=(
        *_without("turns", "run_id", "attempt", "frame", "image", "info", "shaping", *_SPANS),
        *("split", "is_success", "episode_return"),
    ),
    order="step, trajectory_id, turn",
)
ALL = "all"
"""In place of names of columns."""


def rows_of(
    run: RunReader,
    rows: Rows,
    where: str | None,
    columns: Sequence[str] | str | None,
    limit: int | None,
    *,
    named: str,
) -> pa.Table:
    """The rows that match a condition, by step.

    Args:
        where: An SQL condition over the columns; None for all rows.
        columns: Names of columns, also in one text with commas; None for the usual ones.
        limit: Rows at most; None for `MAX_ROWS`, with a warning where there are more.
        named: How a warning calls the run.

    Raises:
        QueryError: the condition is not one, or a column does not exist; one line.
        ValueError: a limit below 0.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"limit is {limit}, but must be 0 or more")
    chosen = _chosen(rows, columns)
    if where is not None and not isinstance(where, str):
        raise TypeError(f'where is a text such as "step > 10", not {type(where).__name__}')
    condition = "true" if where is None else checked_condition(where, rows.columns, rows.name)
    ask = run.sql if where is None else partial(run.sql, limits=LIMITS)

    def select(columns: str, inner: str, order: str) -> pa.Table:
        return ask(f"SELECT {columns} FROM ({inner}) {rows.name} WHERE {condition} {order}")

    inner = f"FROM {rows.name}" if where is None else rows.sql.format(steps="true")
    counts = select("step, count(*) AS num", inner, "GROUP BY step ORDER BY step").to_pydict()
    total = sum(counts["num"])
    most = min(total, MAX_ROWS if limit is None else limit)
    pages: list[pa.Table] = []
    num_rows = num_bytes = 0
    for first, last in _spans(counts["step"], counts["num"]):
        page = select(
            ", ".join(f'"{name}"' for name in chosen),
            rows.sql.format(steps=f"step BETWEEN {first} AND {last}"),
            f"ORDER BY {rows.order} LIMIT {most - num_rows}",
        )
        pages.append(page)
        num_rows += page.num_rows
        num_bytes += page.nbytes
        if num_rows >= most or num_bytes > MAX_BYTES:
            break
    advice = ""
    if num_rows < most and num_bytes > MAX_BYTES:
        advice = (
            f"the first {num_rows:,} of {total:,} {rows.name} take {memory_size(num_bytes)}, so "
            "the others are left out. Name fewer columns=, or narrow where="
        )
    elif limit is None and total > most:
        advice = (
            f"{total:,} {rows.name} match, and the first {most:,} are given. Narrow where=, or "
            f"ask for more: limit={total}"
        )
    if advice:
        warnings.warn(f"{named}: {advice}", LimitWarning, stacklevel=3)
    return pa.concat_tables(pages)


def _spans(steps: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int]]:
    """First and last step of each page; one that holds no step where no row matches.

    >>> _spans([0, 1, 2, 3], [3000, 1000, 1000, 9000])
    [(0, 1), (2, 2), (3, 3)]
    """
    placed = zip((total // PAGE_ROWS for total in accumulate(counts)), steps, strict=True)
    pages = [[step for _, step in page] for _, page in groupby(placed, key=lambda pair: pair[0])]
    return [(page[0], page[-1]) for page in pages] or [(0, -1)]


def _chosen(rows: Rows, columns: Sequence[str] | str | None) -> tuple[str, ...]:
    """Names of columns, as they are written in the table."""
    if columns is None:
        return rows.usual
    if columns == ALL:
        return rows.columns
    names = columns.split(",") if isinstance(columns, str) else list(columns)
    chosen = tuple(dict.fromkeys(str(name).strip() for name in names))
    for name in chosen:
        if name not in rows.columns:
            raise QueryError(unknown_column(name, rows.columns, rows.name))
    if not chosen:
        raise QueryError(f"columns names no column of {rows.name}")
    return chosen


def as_table(table: pa.Table, as_: As) -> Any:
    """An answer in the form that is asked for: a DataFrame, or the Arrow table itself.

    In pandas a flag that can be unknown is `boolean`, and a whole number that can be is `Int64`:
    so an unknown one stays unknown, and no seed of 64 bits loses its last digits.
    """
    if as_ == "arrow":
        return table
    if as_ != "pandas":
        raise ValueError(f"as_ is {as_!r}, but must be 'pandas' or 'arrow'")
    frame = table.to_pandas(maps_as_pydicts="lossy")
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_boolean(column.type):
            frame[name] = column.to_pandas(types_mapper=lambda _: pd.BooleanDtype())
        elif pa.types.is_integer(column.type) and column.null_count:
            frame[name] = column.to_pandas(types_mapper=lambda _: pd.Int64Dtype())
    return frame
