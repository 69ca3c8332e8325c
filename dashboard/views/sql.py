"""SQL: questions of one's own to a run, read-only and bounded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pyarrow as pa
import streamlit as st
from echoscope.dashboard import queries, sql_box, ui
from echoscope.dashboard.charts import export_config, figure_text
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.settings import settings
from echoscope.dashboard.sql_box import EXAMPLES, MAX_SQL, Answer
from echoscope.dashboard.theme import SERIES
from echoscope.store.schema import TABLES

CELL_CHARS = 2_000
MAX_CURVES = 8
MAX_CHART_POINTS = 5_000
_TEXT, _RESULT = "_sql_text", "_sql_result"
KINDS = ("line", "points", "bars")
MARKS: dict[str, Callable[..., Any]] = {
    "line": lambda **kw: go.Scatter(mode="lines+markers", **kw),
    "points": lambda **kw: go.Scatter(mode="markers", **kw),
    "bars": lambda **kw: go.Bar(**kw),
}


def draw(run_id: str) -> None:
    if _TEXT not in st.session_state:
        # What a link says is only typed in: it runs when a person says so.
        first = next(iter(EXAMPLES.values()))
        st.session_state[_TEXT] = ui.text_param("sql", most=MAX_SQL) or first
    left, right = st.columns([3, 2])
    with left:
        _question(run_id)
    with right:
        _reference()
    _result(run_id)


def _question(run_id: str) -> None:
    st.selectbox(
        "Example",
        list(EXAMPLES),
        index=None,
        key="_sql_example",
        placeholder="Start from an example",
        on_change=_take_example,
        label_visibility="collapsed",
    )
    with st.form("sql", border=False):
        sql = st.text_area(
            "Query",
            key=_TEXT,
            height=220,
            max_chars=MAX_SQL,
            help="One SELECT of DuckDB's SQL over the tables beside. It can read this run and "
            "nothing else, and changes nothing.",
        )
        limits = settings()
        line = st.container(horizontal=True, vertical_alignment="center")
        is_sent = line.form_submit_button("Run", type="primary")
        line.caption(
            f"Ctrl+Enter runs it. At most {limits.sql_seconds:g} s, {limits.sql_rows:,} rows and "
            f"{limits.sql_memory}."
        )
    if is_sent:
        st.query_params["sql"] = sql
        with st.spinner("Asking"):
            st.session_state[_RESULT] = (run_id, _asked(run_id, sql))


def _take_example() -> None:
    name = st.session_state["_sql_example"]
    if name in EXAMPLES:
        st.session_state[_TEXT] = EXAMPLES[name]


def _asked(run_id: str, sql: str) -> Answer | queries.Problem:
    try:
        return sql_box.ask(run_id, sql)
    except queries.Problem as found:
        return found


def _reference() -> None:
    """Tables and columns, as the store declares them."""
    name = st.selectbox(
        "Table",
        list(TABLES),
        index=list(TABLES).index("steps"),
        key="_sql_table",
        format_func=lambda n: f"{n}: {TABLES[n].doc}",
        label_visibility="collapsed",
    )
    rows = [{"column": c.name, "type": c.type, "meaning": c.doc} for c in TABLES[name].columns]
    st.dataframe(
        pd.DataFrame(rows), hide_index=True, height=300, alt=f"Columns of the table {name}"
    )


def _result(run_id: str) -> None:
    asked_of, found = st.session_state.get(_RESULT, (None, None))
    if found is None or asked_of != run_id:
        return
    if isinstance(found, queries.Problem):
        ui.problem(found)
        return
    table = found.table
    _summary(found)
    if not table.num_rows:
        ui.empty("The query has no rows.")
        return
    as_table, as_chart = st.tabs(["Table", "Chart"])
    with as_table:
        _show(table)
    with as_chart:
        _chart(table)


def _summary(found: Answer) -> None:
    table = found.table
    rows = f"first {table.num_rows:,} rows" if found.is_cut else f"{table.num_rows:,} rows"
    line = st.container(horizontal=True, vertical_alignment="center")
    line.caption(f"{rows}, {table.num_columns} columns, {found.seconds:.2f} s")
    if found.is_cut:
        line.badge("There are more rows: add LIMIT or a condition", color="orange")
    for name, mime, make in (
        ("CSV", "text/csv", sql_box.csv_bytes),
        ("Parquet", "application/vnd.apache.parquet", sql_box.parquet_bytes),
    ):
        line.download_button(
            name,
            data=lambda make=make: make(table),  # type: ignore[misc]
            file_name=f"query.{name.lower()}",
            mime=mime,
            on_click="ignore",
            key=f"_sql_{name}",
        )


def _show(table: pa.Table) -> None:
    event = st.dataframe(
        shown_frame(table),
        hide_index=True,
        key="_sql_table_shown",
        on_select="rerun",
        selection_mode="single-row",
        placeholder="",
        alt="Answer of the query",
    )
    rows = event.selection.rows
    key = next((name for name in ("trajectory_id", "id") if name in table.column_names), None)
    if rows and key and rows[0] < table.num_rows:
        turn = table.column("turn")[rows[0]].as_py() if "turn" in table.column_names else None
        found = str(table.column(key)[rows[0]].as_py())
        ui.link(f"Replay {found}", "replay", trajectory=found, turn=turn, step=None)


def shown_frame(table: pa.Table) -> pd.DataFrame:
    """The answer as it is shown: text cut and made visible, lists and maps as JSON text."""
    columns: dict[str, Any] = {}
    for index, name in enumerate(table.column_names):
        column = table.column(index)
        shown = _unique(visible(name, 80), columns)
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            columns[shown] = [_cell(_plain(value)) for value in column.to_pylist()]
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            columns[shown] = [_cell(value) for value in column.to_pylist()]
        else:
            columns[shown] = column.to_pandas()
    return pd.DataFrame(columns)


def _unique(name: str, taken: dict[str, Any]) -> str:
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name} ({number})", number + 1
    return candidate


def _plain(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str, ensure_ascii=False)


def _cell(value: str | None) -> str | None:
    return None if value is None else visible(value, CELL_CHARS)


def _chart(table: pa.Table) -> None:
    frame = table.select(_numeric(table)).to_pandas() if _numeric(table) else pd.DataFrame()
    if frame.empty:
        ui.empty("A chart needs a column of numbers.")
        return
    names = [str(name) for name in frame.columns]
    one, two, three = st.columns([1, 2, 1], vertical_alignment="bottom")
    x = one.selectbox("Across", names, index=names.index("step") if "step" in names else 0)
    others = [name for name in names if name != x] or names
    ys = two.multiselect("Up", others, default=others[:1], max_selections=MAX_CURVES)
    kind = three.segmented_control("As", KINDS, default="line") or "line"
    if not ys:
        ui.empty("Choose what is drawn up.")
        return
    if len(frame) > MAX_CHART_POINTS:
        st.caption(f"The first {MAX_CHART_POINTS:,} of {len(frame):,} rows are drawn.")
    figure = chart(frame[:MAX_CHART_POINTS], x, ys, kind)
    st.plotly_chart(
        figure, key="_sql_chart", config=export_config("query"), alt="Chart of the answer"
    )


def _numeric(table: pa.Table) -> list[str]:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    names = table.column_names
    return [
        field.name
        for field in table.schema
        if any(is_kind(field.type) for is_kind in kinds) and names.count(field.name) == 1
    ]


def chart(frame: pd.DataFrame, x: str, ys: list[str], kind: str) -> go.Figure:
    """Columns of an answer against one of them. Column names are foreign text."""
    figure = go.Figure()
    for number, name in enumerate(ys):
        figure.add_trace(
            MARKS[kind](
                x=frame[x].astype(float),
                y=frame[name].astype(float),
                name=figure_text(name, limit=80),
                marker_color=SERIES[number % len(SERIES)],
            )
        )
    figure.update_layout(
        height=420,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        showlegend=len(ys) > 1,
        xaxis_title=figure_text(x, limit=80),
        yaxis_title=figure_text(ys[0], limit=80) if len(ys) == 1 else None,
    )
    return figure


def main() -> None:
    ui.run_frame("SQL", draw)


main()
