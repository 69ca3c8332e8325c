"""Panels: pages of charts that people put together, for one run or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.dashboard.charts import compare as drawn
from echoscope.dashboard.charts import live as live_charts
from echoscope.dashboard.charts import theme
from echoscope.dashboard.charts.charts import line_spec
from echoscope.dashboard.charts.curated import BY_NAME, chart_curves, chart_keys, plain_chart
from echoscope.dashboard.charts.parts import Spec
from echoscope.dashboard.charts.run_figures import Controls
from echoscope.dashboard.data import queries
from echoscope.dashboard.data import sql as sql_box
from echoscope.dashboard.data.comparing.series import drawn_axis
from echoscope.dashboard.data.curves import AXES, Curve, step_axis
from echoscope.dashboard.escaping import escape, visible
from echoscope.dashboard.live import figures
from echoscope.dashboard.live.refreshing import beat, guarded
from echoscope.dashboard.page import ui, url_state
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.web.settings import settings
from echoscope.dashboard.words import plain
from echoscope.diagnostics.catalogue import metric
from echoscope.store.errors import StoreError
from echoscope.store.query.sql_process import BoundedAnswer
from echoscope.store.steer import panels
from echoscope.store.steer.panels import FIRST_PAGE, HEIGHTS, Panel

MAX_RUNS = len(theme.SERIES)
MAX_SQL_RUNS = 4
"""Runs of which a page asks each query."""
EVERY_S = 5.0
COLUMNS, _MIN_WIDTH = 6, 170
"""Of the grid, and the pixels of the narrowest one: a telephone shows a panel a row."""
_SPANS: Mapping[str, int] = {"third": 2, "half": 3, "full": 6}
"""Width -> columns of the grid."""
_PAGE_WIDTH = 260
"""Pixels of the picker of a page."""
_KINDS = ("Metric", "Chart", "SQL")


def draw(line: DeltaGenerator) -> None:
    if not queries.runs(most=ui.MAX_PICKED):
        ui.empty_root()
        return
    runs = url_state.pick_runs(line, most=MAX_RUNS, key="panel_runs")
    if not runs:
        ui.empty("Choose a run above.")
        return
    pages = _read()
    with line.container(width=_PAGE_WIDTH):
        page = _pick_page(pages)
    is_editing = False
    if not settings().is_read_only:
        with line.popover("Add panel", key="panel_add"):
            _add(page, runs)
        is_editing = line.toggle("Edit", key="edit", bind="query-params")
    listed = pages.get(page, ())
    if not listed:
        ui.empty(
            f"The page {page} has no panels yet. Click Add panel."
            if not settings().is_read_only
            else "There are no panels, and this dashboard is read-only."
        )
        return

    def all_panels() -> None:
        _all(page, runs, listed, is_editing=is_editing)

    is_live = any(queries.info(run).status == "running" for run in runs)
    if is_live and not is_editing:
        beat("panels", EVERY_S, all_panels, has_news=lambda: _read() != pages)
    else:
        guarded(all_panels)


def _read() -> panels.Pages:
    try:
        return panels.read_pages(settings().root)
    except StoreError as error:
        raise Problem(f"{error}.") from error


def _pick_page(pages: panels.Pages) -> str:
    """The page that the address names; one that is not there begins with its first panel."""
    asked = url_state.text_param("board", most=40)
    names = list(dict.fromkeys([*pages, *([asked] if asked else [])])) or [FIRST_PAGE]
    if len(names) > 1 or asked:
        return url_state.choose("board", "Page", names, default=names[0], hides_label=True)
    return names[0]


def _all(page: str, runs: Sequence[str], listed: Sequence[Panel], *, is_editing: bool) -> None:
    """All panels; those that ask a query come last, each in its own place."""
    if len(runs) > 1:
        _legend(runs)
    grid = st.grid(COLUMNS, min_column_width=_MIN_WIDTH)
    cells = [grid.cell(column_span=_SPANS[panel.width]) for panel in listed]
    for panel, cell, number in sorted(
        zip(listed, cells, range(len(listed)), strict=True), key=lambda each: bool(each[0].sql)
    ):
        with cell:
            guarded(partial(_panel, panel, runs, number))
            if is_editing:
                _edit(page, panel, number, len(listed))


def _legend(runs: Sequence[str]) -> None:
    """One for all panels: a colour is a run."""
    entries = [
        '<span><span style="display:inline-block;width:30px;height:3px;vertical-align:middle;'
        f'background:{color}"></span> {escape(run, 80)}</span>'
        for run, color in zip(runs, theme.SERIES, strict=False)
    ]
    style = "display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.85rem"
    st.html(f'<div style="{style}">{"".join(entries)}</div>')


# --- one panel


def _panel(panel: Panel, runs: Sequence[str], number: int) -> None:
    widget_key = f"panel {number}"
    if panel.sql is not None:
        _query(panel, runs, widget_key)
        return
    look = Controls(axis=panel.x, smooth=panel.smooth, log_y=panel.log, height=panel.height)
    spec, curves = (_of_one if len(runs) == 1 else _of_several)(panel, runs, look)
    if not curves:
        where = "this run" if len(runs) == 1 else "these runs"
        st.caption(f"{plain(_title(panel))}: not measured in {where}.")
        return
    if panel.clip:
        spec = drawn.clipped(spec, curves, log_y=panel.log)
    figures.show(spec, _title(panel), key=widget_key, revision=f"{panel} {runs}")


def _title(panel: Panel) -> str:
    if panel.title or panel.sql:
        return panel.title or "Query"
    chart = BY_NAME.get(panel.chart or "")
    return chart.title if chart else metric(panel.metric or panel.chart or "").name


def _of_one(panel: Panel, runs: Sequence[str], look: Controls) -> tuple[Spec, list[Curve]]:
    """With alarms and commands on it, as on the page Live; no curves where nothing was measured."""
    page = live_charts.snapshot(runs[0], look)
    chart = page.chart(panel.metric or panel.chart or "")
    curves = [] if chart is None else page.curves(chart)
    if chart is None or not any(curve.has_values for curve in curves):
        return {}, []
    return page.spec(replace(chart, title=_title(panel)), curves), curves


def _of_several(panel: Panel, runs: Sequence[str], look: Controls) -> tuple[Spec, list[Curve]]:
    """A colour a run, on one axis, on which the steps of curves are positions already."""
    key = panel.metric or panel.chart or ""
    chart = BY_NAME.get(key) or plain_chart(key)
    curves: list[Curve] = []
    axes = {run: step_axis(queries.step_table(run), look.axis) for run in runs}
    for run, color in zip(runs, theme.SERIES, strict=False):
        run_keys = queries.metric_keys(run)
        keys = chart_keys([chart], run_keys)
        steps = queries.step_table(run)
        of_run = chart_curves(chart, queries.series(run, keys), steps, run_keys) if keys else []
        for curve in of_run:
            name = run if len(of_run) == 1 else f"{run}: {curve.name}"
            positions: Any = axes[run].at(curve.steps)
            curves.append(replace(curve, steps=positions, color=color, name=name))
    curves = [curve for curve in curves if curve.has_values]
    options, axis = replace(look, has_legend=False), drawn_axis(axes, look.axis)
    first = curves[: drawn.MAX_CURVES]
    return line_spec(first, axis, options=options, title=_title(panel), help=chart.help), curves


def _query(panel: Panel, runs: Sequence[str], key: str) -> None:
    """The answer to a query: lines where all columns are numbers, else a table."""
    answers = {}
    with st.spinner("Running query"):
        for run in runs[:MAX_SQL_RUNS]:
            answers[run] = _answer(run, panel.sql or "")
    frames = {run: answer.table.to_pandas() for run, answer in answers.items()}
    title = _title(panel)
    spec = drawn.answer_spec(frames, height=panel.height, log_y=panel.log, title=title)
    if spec is not None:
        figures.show(spec, title, key=key, revision=f"{panel} {runs}")
    else:
        st.markdown(f"**{plain(title)}**")
        tables = {run: sql_box.shown_frame(answer.table) for run, answer in answers.items()}
        if len(tables) > 1:
            for run, frame in tables.items():
                frame.insert(0, "(run)", visible(run, 80), allow_duplicates=True)
        table = pd.concat(tables.values(), ignore_index=True)
        st.dataframe(table, hide_index=True, height=max(panel.height - 40, 100), alt=title)
    notes = []
    if any(answer.is_cut for answer in answers.values()):
        notes.append("There are more rows: add LIMIT or a condition.")
    if len(runs) > MAX_SQL_RUNS:
        notes.append(f"Of the first {MAX_SQL_RUNS} of {len(runs)} runs.")
    if notes:
        st.caption(" ".join(notes))


def _answer(run: str, sql: str) -> BoundedAnswer:
    position = queries.position(run)
    answer: BoundedAnswer = queries.answers.get(
        ("panel", position[0], sql), position, lambda: sql_box.ask(run, sql)
    )
    return answer


# --- changes


def _add(page: str, runs: Sequence[str]) -> None:
    """What a new panel shows; how it looks is chosen once it stands there."""
    kind = st.segmented_control("Shows", _KINDS, default=_KINDS[0], required=True, key="panel_kind")
    fields: dict[str, Any] = {}
    if kind == "Metric":
        keys = sorted(set().union(*(queries.metric_keys(run) for run in runs)))
        fields["metric"] = st.selectbox(
            "Metric",
            keys,
            key="panel_metric",
            format_func=lambda key: visible(f"{metric(key).name}  ({key})", 200),
        )
    elif kind == "Chart":
        fields["chart"] = st.selectbox(
            "Chart", list(BY_NAME), key="panel_chart", format_func=lambda name: BY_NAME[name].title
        )
    else:
        fields["sql"] = st.text_area(
            "SQL",
            key="panel_sql",
            height=140,
            max_chars=sql_box.MAX_SQL,
            help="One SELECT over the tables of a run, as on the page SQL. If all columns are "
            "numbers, they are drawn over the first one. Everybody who opens the page runs it.",
        )
        fields["title"] = st.text_input("Title", key="panel_sql_title", max_chars=120)
    target = st.text_input("Page", value=page, key="panel_page", max_chars=40)
    if st.button("Add", type="primary", key="panel_add_button"):
        page = target.strip()
        _act(lambda: panels.add(settings().root, page, panels.made(**fields)), page)


def _edit(page: str, panel: Panel, number: int, count: int) -> None:
    """How a panel looks, and where it stands."""
    line = st.container(horizontal=True, key=f"panel_edit_{number}")
    with line.popover("Look", key=f"panel_look_{number}"), st.form(f"look {number}", border=False):
        spans = list(_SPANS)
        look = {
            "title": st.text_input("Title", value=panel.title, max_chars=120),
            "width": st.segmented_control("Width", spans, default=panel.width, required=True),
            "height": st.slider("Height (pixels)", *HEIGHTS, value=panel.height, step=20),
            "x": st.segmented_control("Axis", AXES, default=panel.x, required=True),
            "smooth": float(st.slider("Smoothing", 0.0, 0.99, value=panel.smooth, step=0.01)),
            "log": st.checkbox("Logarithmic scale", value=panel.log),
            "clip": st.checkbox("Clip outliers", value=panel.clip),
        }
        if st.form_submit_button("Save", type="primary"):
            shows = panel.model_dump(include={"metric", "chart", "sql"}, exclude_none=True)
            _act(lambda: panels.replace(settings().root, page, panel, panels.made(**shows, **look)))
    if line.button("\u2190", key=f"panel_left_{number}", disabled=not number, help="Move back"):
        _act(lambda: panels.move(settings().root, page, panel, -1))
    is_last = number == count - 1
    if line.button("\u2192", key=f"panel_right_{number}", disabled=is_last, help="Move on"):
        _act(lambda: panels.move(settings().root, page, panel, 1))
    if line.button("Remove", key=f"panel_remove_{number}"):
        _act(lambda: panels.remove(settings().root, page, panel))


def _act(change: Callable[[], None], page: str = "") -> None:
    """Change the file, or say why not; then show what it says, of another page if so told."""
    if settings().is_read_only:
        st.error("This dashboard is read-only: panels cannot be changed.")
    elif ui.noting(change):
        if page:
            url_state.go(board=page)
        st.rerun()


ui.frame("Panels", draw)
