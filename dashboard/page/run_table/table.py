"""The table of the page Runs: a row a run, or a row a group that opens to its runs.

Streamlit's table knows a ticked row by its place and a sorted column by what it was given. So what
is ticked, sorted and opened is kept beside it: a click on a heading selects that column, which
sorts all runs here; a row that is ticked ticks its runs; and other rows are another table, which
begins with the ticks that hold.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from echoscope.dashboard.data.comparing.groups import short_name
from echoscope.dashboard.data.run_table.columns import NOT_SORTED, RunsColumn
from echoscope.dashboard.data.run_table.facts import TableVerdict
from echoscope.dashboard.data.run_table.groups import (
    TableLine,
    common_words,
    estimate_words,
    value_words,
)
from echoscope.dashboard.data.run_table.table import RunsTable
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.regimes import Regime
from echoscope.store.query.listing import RunDetails, RunRow, row_status

from ...charts import theme
from ...data import queries
from ...escaping import digest_of, visible
from ...words import NONE, STATUS_COLOURS, Colour, plain
from .. import ui
from ..url_state import go
from . import state

SWATCH, EYE, SOLO, NAME = "colour", "curve", "solo", "run"
_OPEN, _CLOSED = "▾", "▸"
_MEMBER = "\u2003"
"""Before the name of a run in an open group."""
_QUIET = (RunState.HEALTHY.value, RunState.CONVERGED.value)
_SHOWN_REGIMES = (Regime.DIVERSE.value, Regime.COMPRESSED.value)
_OPENED, _RERUN = "_runs_opened", "_runs_rerun"
ROW_HEIGHT = 35
_CHAR_WIDTH = 6.5
_WIDTHS = {"verdict": 165}
_GROUP_WIDTHS = {"verdict": 240}
"""Pixels of columns whose words may still come: others are as wide as what they hold."""
_BUTTON = 50
"""Pixels of a column of buttons."""
_PHONE_NAME = 130
"""Pixels of a name on a telephone: beside it there is room for a verdict and a number."""


def draw(table: RunsTable, lines: Sequence[TableLine], asked: state.TableRequest) -> str:
    """Draw the rows; the name of the run that was clicked just now, empty for none."""
    is_phone = ui.is_phone()
    names = [name for name in asked.columns if name != NAME]
    if is_phone:
        names.sort(key=lambda name: name == "status")  # the verdict says more
    columns = [table.column(name) for name in names]
    buttons = [] if not asked.curves else [SWATCH] if is_phone else [SWATCH, EYE, SOLO]
    cells = pd.DataFrame([_cells(table, line, columns, buttons, asked) for line in lines])
    ids = [tuple(table.rows[n].run_id for n in line.rows) for line in lines]
    now = set(state.ticked())
    selected = [n for n, of_line in enumerate(ids) if of_line and now.issuperset(of_line)]
    mark = digest_of(*(line.digest for line in lines), list(cells), state.generation())
    key = f"run_table:{mark}"
    state.show_table(key)
    st.dataframe(
        _coloured(cells, lines, asked),
        hide_index=True,
        column_config=_config(table, columns, lines, asked, key),
        placeholder=NONE,
        key=key,
        height=min(len(lines), 25) * ROW_HEIGHT + ROW_HEIGHT + 3,
        on_select=lambda: _selected(key, ids, selected, columns),
        selection_mode=["multi-row", "single-column"],
        selection_default={"selection": {"rows": selected}},
        alt="Runs",
    )
    if st.session_state.pop(_RERUN, False):
        st.rerun()
    return str(st.session_state.pop(_OPENED, ""))


def _config(
    table: RunsTable,
    columns: Sequence[RunsColumn],
    lines: Sequence[TableLine],
    asked: state.TableRequest,
    key: str,
) -> dict[str, Any]:
    def button(label: str, of: str, clicked: Any, **looks: Any) -> Any:
        return ui.button_column(label, f"{key}:{of}", lines, clicked, pinned=True, **looks)

    def opened(line: TableLine) -> None:
        if line.kind == "group":
            state.toggle("open", line.digest)
        else:
            st.session_state[_OPENED] = table.rows[line.rows[0]].run_id

    def hidden(line: TableLine) -> None:
        go(solo=None)
        state.toggle("hide", line.digest)

    def alone(line: TableLine) -> None:
        go(solo=None if asked.solo == line.digest else line.digest, hide=None)

    heading = "Group" if asked.groups else "Run"
    longest = max((len(_name(line)) for line in lines), default=0)
    width = min(max(round(longest * _CHAR_WIDTH) + 32, 140), 380)
    is_phone = ui.is_phone()
    width = min(width, _PHONE_NAME) if is_phone else width
    config: dict[str, Any] = {
        SWATCH: st.column_config.TextColumn("", pinned=True, width=20),
        EYE: button("", EYE, hidden, width=_BUTTON, help="Hide or show the curve."),
        SOLO: button("", SOLO, alone, width=_BUTTON, help="Show this curve alone, or all again."),
        NAME: button(
            _heading(heading, NAME, asked.order), NAME, opened, alignment="left", width=width
        ),
    }
    settings = [column.name for column in columns if column.source == "setting"]
    widths = {} if is_phone else _GROUP_WIDTHS if asked.groups else _WIDTHS
    for column in columns:
        is_setting = column.source == "setting"
        label = short_name(column.name, settings) if is_setting else column.label
        title = _heading(visible(label, 60), column.name, asked.order)
        help_text = plain(column.help, 400) if column.help else None
        if column.name == "history":
            config["history"] = st.column_config.LineChartColumn(
                title, help=help_text, y_min=0, y_max=1, width="small"
            )
        else:
            side: Any = "right" if column.kind == "number" else "left"
            if asked.groups and column.kind == "number":
                help_text = f"{help_text or ''} Mean of the group's runs (95 % interval).".strip()
            config[column.name] = st.column_config.TextColumn(
                title, help=help_text, alignment=side, width=widths.get(column.name)
            )
    return config


def _heading(label: str, name: str, order: str) -> str:
    """With an arrow where the table is sorted by it."""
    arrow = {name: " ↑", f"-{name}": " ↓"}.get(order, "")
    return f"{label}{arrow}"


def _selected(
    key: str, ids: Sequence[Sequence[str]], before: Sequence[int], columns: Sequence[RunsColumn]
) -> None:
    """Somebody ticked a row or clicked a heading."""
    if not state.is_table_shown(key):
        return
    selection = st.session_state[key]["selection"]
    kinds = {column.name: column.kind for column in columns} | {NAME: "text"}
    headings = [name for name in selection["columns"] if name in kinds and name not in NOT_SORTED]
    if selection["columns"]:
        state.new_generation()
    if headings:
        is_number = kinds[headings[0]] in ("number", "moment")
        state.sort_by_heading(headings[0], is_number=is_number)
        st.session_state[_RERUN] = True
        return
    rows = {n for n in selection["rows"] if n < len(ids)}
    for n in set(before) - rows:
        state.tick(ids[n], is_on=False)
    for n in rows - set(before):
        state.tick(ids[n], is_on=True)
    holding = set(state.ticked())
    if {n for n, of_line in enumerate(ids) if holding.issuperset(of_line)} != rows:
        state.new_generation()  # a group and its runs are ticked together


def _cells(
    table: RunsTable,
    line: TableLine,
    columns: Sequence[RunsColumn],
    buttons: Sequence[str],
    asked: state.TableRequest,
) -> dict[str, Any]:
    of_curve = {SWATCH: ""}
    if line.colour:
        of_curve[EYE] = "Hide" if asked.draws(line.digest) else "Show"
        of_curve[SOLO] = "All" if asked.solo == line.digest else "Solo"
    cells: dict[str, Any] = {name: of_curve.get(name) for name in buttons}
    cells[NAME] = _name(line)
    for column in columns:
        values = [table.values(column.name)[n] for n in line.rows]
        if line.kind == "group":
            tasks = table.num_tasks(column)
            cells[column.name] = _group_cell(column, values, [tasks[n] for n in line.rows if tasks])
        else:
            cells[column.name] = _run_cell(table, column, line.rows[0], values[0])
    return cells


def _name(line: TableLine) -> str:
    name = visible(line.name, 120)
    if line.kind == "group":
        return f"{_OPEN if line.is_open else _CLOSED} {name}  ({len(line.rows)})"
    return f"{_MEMBER}{name}" if line.kind == "member" else name


def _group_cell(column: RunsColumn, values: Sequence[Any], num_tasks: Sequence[float]) -> Any:
    if column.name == "history":
        return _mean_history(values)
    if column.kind == "number":
        return estimate_words(column, values, num_tasks)
    if column.kind == "moment":
        return common_words(column, [_moment_words(value) for value in values])
    return visible(common_words(column, values), 200)


def _mean_history(histories: Sequence[Sequence[float]]) -> list[float]:
    """The mean of sparklines of one length; else none, rather than one that never was."""
    measured = [history for history in histories if history]
    is_of_one_length = len({len(history) for history in measured}) == 1
    means: list[float] = np.mean(measured, axis=0).tolist() if is_of_one_length else []
    return means


def _run_cell(table: RunsTable, column: RunsColumn, n: int, value: Any) -> Any:
    row = table.rows[n]
    if column.name == "history":
        return list(value)
    if column.name == "status":
        return visible(_status_words(table, row, n), 160)
    if column.name == "verdict":
        return visible(verdict_words(table.standings[n]) or str(value or ""), 80)
    if column.kind == "moment":
        return _moment_words(value)
    if column.kind == "flag" and column.source == "run":
        return column.name if value else ""
    return visible(value_words(column, value), 200)


def _moment_words(value: datetime | None) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if value else ""


def _status_words(table: RunsTable, row: RunRow, n: int) -> str:
    """The status with who, why and for how long; of a live run as of now."""
    now = time.time()
    facts = table.facts[n]
    if not row.is_read:
        return ""
    details = facts.details if facts else RunDetails()
    return row_status(row, queries.run_details(row) if row.is_live else details, now).words(now)


def verdict_words(standing: TableVerdict | None) -> str:
    """`collapsed since step 20`, `healthy, diverse`; empty for none."""
    if standing is None or not standing.state:
        return ""
    if standing.state in _QUIET:
        has_regime = standing.regime in _SHOWN_REGIMES
        return f"{standing.state}, {standing.regime}" if has_regime else standing.state
    since = "" if standing.since is None else f" since step {standing.since}"
    return f"{standing.state}{since}"


def _coloured(cells: pd.DataFrame, lines: Sequence[TableLine], asked: state.TableRequest) -> Any:
    """The swatches in the colours of the curves, verdict and status in their own."""
    is_dark = st.context.theme.type == "dark"
    tones: Mapping[str, Colour] = {**theme.STATE_TONES, **STATUS_COLOURS}

    def tone(text: object) -> str:
        """CSS for `collapsed since step 20`, `finished`; empty for any other words."""
        label = str(text)
        name = next(
            (name for name in tones if label == name or label.startswith((f"{name},", f"{name} "))),
            "",
        )
        if not name:
            return ""
        return f"color: {theme.as_text(theme.TONES[tones[name]])[is_dark]}; font-weight: 600"

    style = cells.style
    for name in ("verdict", "status"):
        if name in cells:
            style = style.map(tone, subset=[name])
    if SWATCH in cells:
        colours = [
            f"background-color: {line.colour}" if line.colour and asked.draws(line.digest) else ""
            for line in lines
        ]
        style = style.apply(lambda _: colours, subset=[SWATCH], axis=0)
    return style
