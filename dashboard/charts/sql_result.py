"""The answer of a query as a table and as a chart. Its text is foreign: cut, and made visible."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.compute as pc

from ..charts.charts import figure_text
from ..charts.theme import SERIES
from ..escaping import visible

CELL_CHARS = 2_000
MAX_COLOURS = 16
"""Values of a column that colours may tell apart."""
MAX_TRACES = 32
KINDS = ("line", "points", "bars")
MARKS: dict[str, Callable[..., Any]] = {
    "line": lambda **kw: go.Scatter(mode="lines+markers", **kw),
    "points": lambda **kw: go.Scatter(mode="markers", **kw),
    "bars": lambda **kw: go.Bar(**kw),
}


def shown_frame(table: pa.Table) -> pd.DataFrame:
    """The answer as it is shown: text cut and made visible, lists and maps as JSON text.

    A column with NaN becomes text: pandas and the table of the browser take NaN for NULL.
    """
    columns: dict[str, Any] = {}
    for index, name in enumerate(table.column_names):
        column = table.column(index)
        shown = _unique(visible(name, 80), columns)
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            columns[shown] = _texts(_plain(value) for value in column.to_pylist())
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            columns[shown] = _texts(column.to_pylist())
        elif pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            columns[shown] = _texts(None if v is None else f"{v:.12g}" for v in column.to_pylist())
        else:
            columns[shown] = column.to_pandas()
    return pd.DataFrame(columns)


def _unique(name: str, taken: dict[str, Any]) -> str:
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name} ({number})", number + 1
    return candidate


def _texts(values: Iterable[str | None]) -> pd.Series[str]:
    return pd.Series([_cell(value) for value in values], dtype=object)


def _plain(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str, ensure_ascii=False)


def _cell(value: str | None) -> str | None:
    return None if value is None else visible(value, CELL_CHARS)


def numeric_columns(table: pa.Table) -> list[str]:
    """Columns that a chart can show: of numbers, and the only ones of their name."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    names = table.column_names
    return [
        field.name
        for field in table.schema
        if any(is_kind(field.type) for is_kind in kinds) and names.count(field.name) == 1
    ]


def colour_columns(table: pa.Table, x: str) -> list[str]:
    """Columns whose values may each have a colour, the best first.

    Texts come first if `x` repeats: `group by step, split` has a row for each split at a step.
    """
    names = table.column_names
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_integer)
    counted = [
        (number, field.name)
        for field in table.schema
        for number, is_kind in enumerate(kinds)
        if is_kind(field.type) and field.name != x and names.count(field.name) == 1
    ]
    return [
        name
        for _, name in sorted(counted, key=lambda one: one[0])
        if 2 <= len(table.column(name).unique()) <= MAX_COLOURS
    ]


def repeats(table: pa.Table, x: str) -> bool:
    """Whether a value of a column comes more than once: a line over it would go to and fro."""
    return bool(len(table.column(x).unique()) < table.num_rows)


def colour_values(table: pa.Table, name: str) -> list[str]:
    """The value of each row as the legend names it."""
    return ["NULL" if value is None else str(value) for value in table.column(name).to_pylist()]


def chart(
    frame: pd.DataFrame, x: str, ys: list[str], kind: str, colours: Sequence[str] = ()
) -> go.Figure:
    """Columns of an answer against one of them. Column names are foreign text.

    Args:
        colours: Of each row, what it belongs to: a curve of its own for each; empty for one curve.
    """
    figure = go.Figure()
    groups = pd.Series(colours, dtype=object) if colours else pd.Series([""] * len(frame))
    parts = [(name, group) for name in ys for group in dict.fromkeys(groups)]
    for number, (name, group) in enumerate(parts[:MAX_TRACES]):
        rows = frame[groups.to_numpy() == group]
        words = group if colours and len(ys) == 1 else f"{name}, {group}" if colours else name
        figure.add_trace(
            MARKS[kind](
                x=rows[x].astype(float),
                y=rows[name].astype(float),
                name=figure_text(words, limit=80),
                marker_color=SERIES[number % len(SERIES)],
            )
        )
    figure.update_layout(
        height=420,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        showlegend=len(parts) > 1,
        xaxis_title=figure_text(x, limit=80),
        yaxis_title=figure_text(ys[0], limit=80) if len(ys) == 1 else None,
    )
    return figure
