"""SQL: questions of one's own to a run, read-only and bounded."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import streamlit as st

from echoscope.dashboard.data import sql as sql_box
from echoscope.dashboard.data.sql import EXAMPLES, MAX_SQL
from echoscope.dashboard.live.refreshing import problem
from echoscope.dashboard.page import links, ui, url_state
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.web.settings import settings
from echoscope.store.query.sql_process import BoundedAnswer
from echoscope.store.schema import TABLES
from echoscope.store.steer import panels
from echoscope.store.steer.panels import FIRST_PAGE

NULL = "NULL"
"""What a cell says that SQL has no value for; NaN is a number that says NaN."""
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
            height=232,
            max_chars=MAX_SQL,
            label_visibility="collapsed",
        )
        limits = settings()
        line = st.container(horizontal=True, vertical_alignment="center")
        is_sent = line.form_submit_button("Run", type="primary")
        line.caption(
            "One SELECT of DuckDB's SQL, which reads this run and changes nothing. Ctrl+Enter runs "
            f"it. Limits: {limits.sql_seconds:g} s, {limits.sql_rows:,} rows and "
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
    except Problem as trouble:
        return trouble


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
    rows = [
        {"column": c.name, "type": c.type, "meaning": c.doc.replace("`", "")}
        for c in TABLES[name].columns
    ]
    st.dataframe(
        pd.DataFrame(rows), hide_index=True, height=300, alt=f"Columns of the table {name}"
    )


def _result(run_id: str) -> None:
    asked_of, answer = st.session_state.get(_RESULT, (None, None))
    if answer is None or asked_of != run_id:
        return
    if isinstance(answer, Problem):
        problem(answer)
        return
    table = answer.table
    rows = f"first {table.num_rows:,} rows" if answer.is_cut else f"{table.num_rows:,} rows"
    line = st.container(horizontal=True, vertical_alignment="center")
    line.caption(f"{rows}, {table.num_columns} columns, {answer.seconds:.2f} s")
    if answer.is_cut:
        line.badge("There are more rows: add LIMIT or a condition", color="orange")
    if not table.num_rows:
        ui.empty("The query has no rows.")
        return
    line.download_button(
        "CSV",
        data=lambda: sql_box.csv_bytes(table),
        file_name="query.csv",
        mime="text/csv",
        on_click="ignore",
        key="_sql_CSV",
    )
    if not settings().is_read_only:
        with line.popover("Pin", key="_sql_pin"):
            _pin()
    _show(table)


def _pin() -> None:
    """Keep the query as an own panel."""
    title = st.text_input("Title", key="_sql_pin_title", max_chars=120)
    page = st.text_input("Page", value=FIRST_PAGE, key="_sql_pin_page", max_chars=40).strip()
    sql = st.query_params.get("sql", "")
    if st.button("Pin to own panels", key="_sql_pin_button") and ui.noting(
        lambda: panels.add(settings().root, page, panels.made(sql=sql, title=title))
    ):
        links.link("Pinned: open the page", "panels", board=page)


def _show(table: pa.Table) -> None:
    """The answer; a row that names a trajectory leads to it."""
    key = next((name for name in ("trajectory_id", "id") if name in table.column_names), None)
    event: Any = st.dataframe(
        sql_box.shown_frame(table),
        hide_index=True,
        key="_sql_answer",
        on_select="ignore" if key is None else "rerun",
        selection_mode="single-row",
        placeholder=NULL,
        alt="Answer of the query",
    )
    rows = [] if key is None else event.selection.rows
    if rows and rows[0] < table.num_rows:
        turn = table.column("turn")[rows[0]].as_py() if "turn" in table.column_names else None
        name = str(table.column(key)[rows[0]].as_py())
        links.link(f"Replay {name}", "replay", trajectory=name, turn=turn)


ui.run_frame("SQL", draw)
