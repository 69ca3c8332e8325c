"""SQL: questions of one's own to a run, read-only and bounded."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import streamlit as st

from echoscope.dashboard.charts.sql_result import (
    KINDS,
    chart,
    colour_columns,
    colour_values,
    numeric_columns,
    repeats,
    shown_frame,
)
from echoscope.dashboard.data import sql as sql_box
from echoscope.dashboard.data.sql import EXAMPLES, MAX_SQL
from echoscope.dashboard.live import figures
from echoscope.dashboard.live.refreshing import problem
from echoscope.dashboard.page import links, ui, url_state
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.web.settings import settings
from echoscope.store.query.bounded import BoundedAnswer
from echoscope.store.schema import TABLES

MAX_CURVES = 8
NULL = "NULL"
"""What a cell says that SQL has no value for; NaN is a number that says NaN."""
MAX_CHART_POINTS = 5_000
_TEXT, _RESULT = "_sql_text", "_sql_result"


def draw(run_id: str) -> None:
    if _TEXT not in st.session_state:
        # What a link says is only typed in: it runs when a person says so.
        sql_box.warm_up()
        first = next(iter(EXAMPLES.values()))
        st.session_state[_TEXT] = url_state.text_param("sql", most=MAX_SQL) or first
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
        with st.spinner("Running query"):
            st.session_state[_RESULT] = (run_id, _asked(run_id, sql))


def _take_example() -> None:
    name = st.session_state["_sql_example"]
    if name in EXAMPLES:
        st.session_state[_TEXT] = EXAMPLES[name]


def _asked(run_id: str, sql: str) -> BoundedAnswer | Problem:
    try:
        return sql_box.ask(run_id, sql)
    except Problem as found:
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
    if isinstance(found, Problem):
        problem(found)
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


def _summary(found: BoundedAnswer) -> None:
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
    frame, words = shown_frame(table), "Answer of the query"
    key = next((name for name in ("trajectory_id", "id") if name in table.column_names), None)
    if key is None:
        st.dataframe(frame, hide_index=True, placeholder=NULL, alt=words)
        return
    event = st.dataframe(
        frame,
        hide_index=True,
        key="_sql_answer",
        on_select="rerun",
        selection_mode="single-row",
        placeholder=NULL,
        alt=words,
    )
    rows = event.selection.rows
    if rows and rows[0] < table.num_rows:
        turn = table.column("turn")[rows[0]].as_py() if "turn" in table.column_names else None
        found = str(table.column(key)[rows[0]].as_py())
        links.link(f"Replay {found}", "replay", trajectory=found, turn=turn)


def _chart(table: pa.Table) -> None:
    frame = (
        table.select(numeric_columns(table)).to_pandas()
        if numeric_columns(table)
        else pd.DataFrame()
    )
    if frame.empty:
        ui.empty("A chart needs a column of numbers.")
        return
    names = [str(name) for name in frame.columns]
    one, two, three, four = st.columns([2, 3, 2, 2], vertical_alignment="bottom")
    x = one.selectbox("X", names, index=names.index("step") if "step" in names else 0)
    by = colour_columns(table, x)
    first = 0 if by and repeats(table, x) else None
    others = [name for name in names if name != x] or names
    best = [name for name in others if name not in by] or others
    ys = two.multiselect("Y", others, default=best[:1], max_selections=MAX_CURVES)
    colour = three.selectbox(
        "Colour by",
        by,
        index=first,
        key=f"_sql_colour {x} {by}",
        placeholder="One colour" if by else "No column has few values",
        disabled=not by,
    )
    kind = four.segmented_control("Chart type", KINDS, default="line") or "line"
    if not ys:
        ui.empty("Choose a column for Y.")
        return
    if len(frame) > MAX_CHART_POINTS:
        st.caption(f"The first {MAX_CHART_POINTS:,} of {len(frame):,} rows are drawn.")
    shown = table.slice(0, MAX_CHART_POINTS)
    colours = colour_values(shown, colour) if colour else ()
    figure = chart(frame[:MAX_CHART_POINTS], x, ys, kind, colours)
    figures.show(figure, "Chart of the answer", key="query", revision=f"{x} {ys} {kind} {colour}")


def main() -> None:
    ui.run_frame("SQL", draw)


main()
