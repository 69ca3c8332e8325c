"""Rows of a run as a table, in pandas or in Arrow: never more of them than memory holds.

Rows are asked for in pages of a few thousand, in the order of their steps, so that a run of a
million episodes costs no more memory than the rows that are given back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, overload

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

Table: TypeAlias = "pd.DataFrame | pa.Table"
As = Literal["pandas", "arrow"]
Ask: TypeAlias = "Callable[[str], pa.Table]"
MAX_ROWS = 100_000
"""Rows that are given back where nobody says how many."""
MAX_BYTES = 512 << 20
"""Of the rows of one answer, in Arrow's form."""
LIMITS = replace(OWN, advice="limits=SqlLimits(seconds=3600, memory='16GB') of query() allows more")
"""Of SQL that a person writes."""
_PAGE_BYTES = 32 << 20
_FIRST_PAGE, _LARGEST_PAGE = 256, 20_000


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
    ask: Ask = run.sql if where is None else partial(run.sql, limits=LIMITS)
    counts = _counts(ask, rows, condition)
    total = sum(counts.values())
    most = min(total, MAX_ROWS if limit is None else limit)
    tables, num_rows, num_bytes = [], 0, 0
    for page in _pages(ask, rows, condition, chosen, counts, most):
        tables.append(page)
        num_rows += page.num_rows
        num_bytes += page.nbytes
        if num_bytes > MAX_BYTES and num_rows < most:
            _warn(
                f"{named}: the first {num_rows:,} of {total:,} {rows.name} take "
                f"{memory_size(num_bytes)}, so the others are left out. Name fewer columns=, or "
                "narrow where="
            )
            break
    else:
        if limit is None and total > most:
            _warn(
                f"{named}: {total:,} {rows.name} match, and the first {most:,} are given. Narrow "
                f"where=, or ask for more: limit={total}"
            )
    return pa.concat_tables(tables)


def _chosen(rows: Rows, columns: Sequence[str] | str | None) -> tuple[str, ...]:
    """Names of columns, as they are written in the table."""
    if columns is None:
        return rows.usual
    if columns == ALL:
        return rows.columns
    names = columns.split(",") if isinstance(columns, str) else list(columns)
    wanted = list(dict.fromkeys(str(name).strip() for name in names))
    for name in wanted:
        if name not in rows.columns:
            raise QueryError(unknown_column(name, rows.columns, rows.name))
    if not wanted:
        raise QueryError(f"columns names no column of {rows.name}")
    return tuple(wanted)


def _counts(ask: Ask, rows: Rows, condition: str) -> dict[int, int]:
    """How many rows of each step match."""
    inner = rows.sql.format(steps="true")
    if condition == "true":
        inner = f"FROM {rows.name}"
    answer = ask(
        f"SELECT step, count(*) AS num FROM ({inner}) {rows.name} WHERE {condition} "
        "GROUP BY step ORDER BY step"
    )
    return dict(
        zip(answer.column("step").to_pylist(), answer.column("num").to_pylist(), strict=True)
    )


def _pages(
    ask: Ask,
    rows: Rows,
    condition: str,
    columns: Sequence[str],
    counts: dict[int, int],
    most: int,
) -> Iterator[pa.Table]:
    """The first `most` matching rows, a page at a time; at least one page, be it empty."""
    names = ", ".join(f'"{name}"' for name in columns)

    def page(first: int, last: int, size: int, offset: int) -> pa.Table:
        inner = rows.sql.format(steps=f"step BETWEEN {first} AND {last}")
        return ask(
            f"SELECT {names} FROM ({inner}) {rows.name} WHERE {condition} "
            f"ORDER BY {rows.order} LIMIT {size} OFFSET {offset}"
        )

    steps = list(counts)
    size, given, place, offset = _FIRST_PAGE, 0, 0, 0
    if not most:
        yield page(0, -1, 0, 0)
    while given < most:
        until, inside = place, counts[steps[place]] - offset
        while until + 1 < len(steps) and inside + counts[steps[until + 1]] <= size:
            until += 1
            inside += counts[steps[until]]
        answer = page(steps[place], steps[until], min(size, inside, most - given), offset)
        yield answer
        given += answer.num_rows
        if not answer.num_rows or answer.num_rows == inside:
            place, offset = until + 1, 0
        else:
            offset += answer.num_rows
        if place >= len(steps):
            return
        per_row = answer.nbytes // max(answer.num_rows, 1) + 1
        size = max(1, min(_LARGEST_PAGE, 4 * size, _PAGE_BYTES // per_row))


def _warn(text: str) -> None:
    warnings.warn(text, LimitWarning, stacklevel=4)


@overload
def as_table(table: pa.Table, as_: Literal["pandas"]) -> pd.DataFrame: ...


@overload
def as_table(table: pa.Table, as_: As) -> Table: ...


def as_table(table: pa.Table, as_: As) -> Table:
    """An answer in the form that is asked for.

    In pandas a flag that can be unknown is `boolean`, and a whole number that can be is `Int64`:
    so an unknown one stays unknown, and no seed of 64 bits loses its last digits.
    """
    if as_ == "arrow":
        return table
    if as_ != "pandas":
        raise ValueError(f"as_ is {as_!r}, but must be 'pandas' or 'arrow'")
    frame = table.to_pandas(maps_as_pydicts="lossy")
    for field in table.schema:
        has_unknown = table.column(field.name).null_count > 0
        if pa.types.is_boolean(field.type):
            frame[field.name] = _nullable(table, field.name, "boolean")
        elif pa.types.is_integer(field.type) and has_unknown:
            frame[field.name] = _nullable(table, field.name, "Int64")
    return frame


def _nullable(table: pa.Table, name: str, dtype: str) -> pd.Series:
    return pd.Series(pd.array(table.column(name).to_pylist(), dtype=dtype))
