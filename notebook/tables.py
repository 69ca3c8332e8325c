"""Tables of a run in pandas: metrics, episodes and turns, never more rows than memory holds."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import pandas as pd
import pyarrow as pa

from echoscope.diagnostics.catalogue import metric
from echoscope.store.errors import QueryError
from echoscope.store.query.condition import (
    FLAG,
    checked_condition,
    flags_without_prefix,
    unknown_column,
)
from echoscope.store.query.sql_process import OWN
from echoscope.store.reader import RunReader
from echoscope.store.schema import TABLES
from echoscope.text.did_you_mean import did_you_mean

MAX_ROWS = 100_000
"""Rows that are given back where nobody says how many."""
MAX_VALUES = 40_000_000
"""Numbers in one table of metrics: 320 MB."""
LIMITS = replace(OWN, advice="limits=SqlLimits(seconds=3600, memory='16GB') of query() allows more")
"""Of SQL that a person writes."""
ALL = "all"
"""In place of names of columns."""
_PATTERN = frozenset("*?[")


class LimitWarning(UserWarning):
    """An answer holds only the first of the rows that match."""


def keys_meant(keys: str | Sequence[str] | None, available: Sequence[str]) -> list[str]:
    """The metrics that names and patterns mean, in the order in which they are asked for.

    Raises:
        QueryError: a name that the run has no metric for, or a pattern that matches none.

    >>> keys_meant(["policy/entropy", "eval/*/success_rate"], ["eval/lake/success_rate",
    ...     "policy/entropy"])
    ['policy/entropy', 'eval/lake/success_rate']
    """
    if keys is None:
        return sorted(available)
    meant: dict[str, None] = {}
    for key in [keys] if isinstance(keys, str) else keys:
        is_pattern = bool(_PATTERN & set(key)) and key not in available
        matching = (
            fnmatch.filter(available, key) if is_pattern else [k for k in available if k == key]
        )
        if not matching:
            raise QueryError(
                f"the run has no metric {key[:80]!r}{did_you_mean(key, available)}"
                if not is_pattern
                else f"no metric of the run matches {key[:80]!r}"
            )
        meant |= dict.fromkeys(matching)
    return list(meant)


def metrics_of(run: RunReader, keys: Sequence[str]) -> pd.DataFrame:
    """A row a step and a column a metric; NaN where a step has no value.

    A metric that a step has in training and in evaluation is that of training.

    Raises:
        QueryError: more numbers than one table holds.
    """
    num_steps = int(run.sql("SELECT count(DISTINCT step) FROM metrics").column(0)[0].as_py())
    if num_steps * len(keys) > MAX_VALUES:
        raise QueryError(
            f"{len(keys)} metrics over {num_steps:,} steps are more than {MAX_VALUES:,} numbers; "
            'name some of them, such as metrics(["policy/entropy", "eval/*"])'
        )
    # One filtered aggregate a metric: the table comes out of DuckDB as wide as it is given back.
    named = {f"k{index}": key for index, key in enumerate(keys)}
    columns = "".join(f", arg_max(value, phase) FILTER (key = ${name}) AS {name}" for name in named)
    answer = run.sql(
        f"SELECT step{columns} FROM metrics WHERE key IN (SELECT unnest($keys)) "
        "GROUP BY step ORDER BY step",
        {**named, "keys": list(keys)},
    )
    frame: pd.DataFrame = (
        answer.rename_columns(["step", *keys]).to_pandas().set_index("step").astype(float)
    )
    frame.attrs["units"] = {key: metric(key).unit for key in keys}
    frame.attrs["names"] = {key: metric(key).name for key in keys}
    return frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that a notebook can ask for."""

    name: str
    """How conditions and errors call them."""
    sql: str
    """A SELECT of all columns; `{steps}` is a condition on the column `step` of its tables."""
    columns: tuple[str, ...]
    left_out: frozenset[str]
    """Columns that an answer does not have where nobody names any: long or seldom read."""
    order: str


def _flags(alias: str, columns: Sequence[str]) -> str:
    return ", ".join(f"{alias}.{FLAG}{name} AS {name}" for name in flags_without_prefix(columns))


_OF_EPISODE = ("split", "env_id", "tag", "group_index", "sibling_index", "is_success")
"""Columns of the episode that its turns have, too."""
_EPISODE_COLUMNS = TABLES["trajectories"].column_names
_TURN_COLUMNS = (*TABLES["turns"].column_names, *_OF_EPISODE, "episode_return")
_PARTS = ", ".join(
    f"substring(u.response, u.{part}_start + 1, u.{part}_end - u.{part}_start) AS {part}"
    for part in ("reasoning", "answer")
)
TRAJECTORIES = Rows(
    name="trajectories",
    sql=f"SELECT t.*, {_flags('t', _EPISODE_COLUMNS)} FROM trajectories t WHERE {{steps}}",
    columns=(*_EPISODE_COLUMNS, *flags_without_prefix(_EPISODE_COLUMNS)),
    left_out=frozenset(
        {"run_id", "attempt", "noise_seed", "prompt_key", "extra"}
        | {"final_observation", "final_frame", "final_image"}
        | {*flags_without_prefix(_EPISODE_COLUMNS)}
    ),
    order="step, id",
)
TURNS = Rows(
    name="turns",
    sql=f"SELECT u.*, {', '.join(f't.{name}' for name in (*_OF_EPISODE, 'episode_return'))}, "
    f"{_flags('u', TABLES['turns'].column_names)}, t.is_success AS success, {_PARTS} "
    "FROM (FROM turns WHERE {steps}) u LEFT JOIN (FROM trajectories WHERE {steps}) t"
    " ON t.run_id = u.run_id AND t.attempt = u.attempt AND t.id = u.trajectory_id",
    columns=(*_TURN_COLUMNS, *flags_without_prefix(_TURN_COLUMNS), "reasoning", "answer"),
    left_out=frozenset(
        {"run_id", "attempt", "frame", "image", "info", "shaping", "reasoning", "answer"}
        | {"reasoning_start", "reasoning_end", "answer_start", "answer_end"}
        | {"env_id", "tag", "group_index", "sibling_index"}
        | {*flags_without_prefix(_TURN_COLUMNS)}
    ),
    order="step, trajectory_id, turn",
)


def rows_of(
    run: RunReader,
    rows: Rows,
    where: str | None,
    columns: Sequence[str] | str | None,
    limit: int | None,
    *,
    named: str,
) -> pd.DataFrame:
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
    if where is not None and not isinstance(where, str):
        raise TypeError(f'where is a text such as "step > 10", not {type(where).__name__}')
    chosen = ", ".join(f'"{name}"' for name in _chosen(rows, columns))
    condition = "true" if where is None else checked_condition(where, rows.columns, rows.name)

    def select(what: str, steps: str, order: str) -> pa.Table:
        inner = rows.sql.format(steps=steps)
        sql = f"SELECT {what} FROM ({inner}) {rows.name} WHERE {condition} {order}"
        return run.sql(sql) if where is None else run.sql(sql, limits=LIMITS)

    counts = select("step, count(*) AS num", "true", "GROUP BY step ORDER BY step").to_pydict()
    total = sum(counts["num"])
    most = min(total, MAX_ROWS if limit is None else limit)
    # Only the steps that hold the first rows are sorted, however long the run is.
    needed = zip(counts["step"], accumulate(counts["num"]), strict=True)
    last = next((step for step, num in needed if num >= most), -1)
    table = select(chosen, f"step <= {last}", f"ORDER BY {rows.order} LIMIT {most}")
    if limit is None and total > most:
        warnings.warn(
            f"{named}: {total:,} {rows.name} match, and the first {most:,} are given. Narrow "
            f"where=, or ask for more: limit={total}",
            LimitWarning,
            stacklevel=3,
        )
    return frame_of(table)


def _chosen(rows: Rows, columns: Sequence[str] | str | None) -> list[str]:
    """Names of columns, as they are written in the table."""
    if columns is None:
        return [name for name in rows.columns if name not in rows.left_out]
    if columns == ALL:
        return list(rows.columns)
    names = columns.split(",") if isinstance(columns, str) else list(columns)
    chosen = list(dict.fromkeys(str(name).strip() for name in names))
    for name in chosen:
        if name not in rows.columns:
            raise QueryError(unknown_column(name, rows.columns, rows.name))
    if not chosen:
        raise QueryError(f"columns names no column of {rows.name}")
    return chosen


def frame_of(table: pa.Table) -> pd.DataFrame:
    """An answer as a DataFrame in which what is unknown stays unknown.

    A flag that can be unknown is `boolean`, and a whole number that can be is `Int64`: so no seed
    of 64 bits loses its last digits.
    """
    frame: pd.DataFrame = table.to_pandas(maps_as_pydicts="lossy")
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_boolean(column.type):
            frame[name] = column.to_pandas(types_mapper=lambda _: pd.BooleanDtype())
        elif pa.types.is_integer(column.type) and column.null_count:
            frame[name] = column.to_pandas(types_mapper=lambda _: pd.Int64Dtype())
    return frame
