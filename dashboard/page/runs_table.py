"""The table of the page Runs: what it shows of a run, in which order, and what people note.

Further columns are settings (`optim.lr`) and, by a name with a slash, metrics (`policy/entropy`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.metric_entry import SHARE
from echoscope.store.errors import StoreError
from echoscope.store.log.index import read_run_json
from echoscope.store.log.layout import Layout
from echoscope.store.query.listing import RunDetails, RunRow, row_status
from echoscope.store.status import Origin, after_step
from echoscope.store.steer.annotations import AddTag, Change, Pin, RemoveTag, SetNote
from echoscope.store.steer.steering import MAX_AUTHOR, os_user

from ..charts import theme
from ..data import queries
from ..escaping import visible
from ..words import NONE, Colour, flat, plain, setting_words
from .problems import Problem
from .url_state import list_param

SORTS: dict[str, Callable[[RunRow], Any]] = {
    "newest": lambda row: -row.created_at,
    "last active": lambda row: -row.updated_at,
    "name": lambda row: row.run_id.lower(),
    "status": lambda row: (not row.is_live, row.status, -row.created_at),
    "success": lambda row: 1.0 if row.success_rate is None else -row.success_rate,
    "steps": lambda row: -row.last_step,
    "environment": lambda row: (row.environments, -row.created_at),
}
"""What the address and the menu say -> order; pinned runs come first in all of them."""


_COLUMNS: Mapping[str, Any] = {
    "run": "Run",
    "status": "Status",
    "state": st.column_config.TextColumn("Verdict", help="Verdict on the metrics so far."),
    "step": st.column_config.NumberColumn("Step"),
    "planned": st.column_config.NumberColumn("of", format="%d", help="Planned number of steps."),
    "success": st.column_config.NumberColumn(
        "Success", format="%.0f %%", help="Success rate of training rollouts at the last step."
    ),
    "history": st.column_config.LineChartColumn(
        "History", help="Training success over all steps.", y_min=0, y_max=1, width="small"
    ),
    "alarm": "Worst open alarm",
    "environment": "Environment",
    "algorithm": "Algorithm",
    "trainer": st.column_config.TextColumn("Trainer", help="Another trainer that made the run."),
    "branched": "Branched from",
    "started": "Started",
    "tags": "Tags",
    "note": "Note",
    "pinned": "Pinned",
}
"""Column -> its heading, or more about how it looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """What a person did with the table."""

    ticked: tuple[str, ...]
    """Runs, of those that are shown."""
    opened: str
    """The run whose name was clicked just now; empty for none."""


MAX_COLUMNS = 12
_QUIET = (RunState.HEALTHY, RunState.CONVERGED)
_MAY_BE_EMPTY = {"planned", "alarm", "environment", "algorithm", "trainer", "branched"}
_MAY_BE_EMPTY |= {"note", "tags", "pinned"}
"""Columns that are left out where no run has anything in them."""


def tick_table(rows: Sequence[RunRow], *, key: str, extra: Sequence[str] = ()) -> Picked:
    """Draw the runs as a table whose rows are ticked, and whose names open a run.

    Streamlit knows a ticked row by its place. So another order of runs is another table, which
    begins with the ticks of the runs that the table before had.

    Args:
        extra: Names of settings and metrics that have a column, too.
    """
    ids = tuple(row.run_id for row in rows)
    table_key = f"{key}:{hashlib.blake2b(repr(ids).encode(), digest_size=8).hexdigest()}"
    ticked_key, opened_key = f"_{key}_ticked", f"_{key}_opened"
    before = st.session_state.get(ticked_key, ())
    name = st.column_config.ButtonColumn(
        "Run",
        type="tertiary",
        alignment="left",
        pinned=True,
        key=f"{table_key}:open",
        on_click=_note_opened,
        args=(f"{table_key}:open", opened_key, ids),
    )
    cells = run_cells(rows, extra)
    answer = st.dataframe(
        _coloured(cells),
        hide_index=True,
        column_config={**_COLUMNS, **_extra_config(cells, extra), "run": name},
        placeholder=NONE,
        key=table_key,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={
            "selection": {"rows": [n for n, listed_id in enumerate(ids) if listed_id in before]}
        },
        alt="Runs",
    )
    ticked = tuple(
        ids[row_index] for row_index in answer["selection"]["rows"] if row_index < len(ids)
    )
    st.session_state[ticked_key] = ticked
    return Picked(ticked=ticked, opened=st.session_state.pop(opened_key, ""))


def _note_opened(click_key: str, opened_key: str, ids: tuple[str, ...]) -> None:
    """Somebody clicked a name: the run that stood there when it was clicked."""
    row = st.session_state[click_key]["row"]
    if row < len(ids):
        st.session_state[opened_key] = ids[row]


def _coloured(cells: pd.DataFrame) -> Any:
    """The table with the verdict and the status in their colours."""
    tones: Mapping[str, Colour] = {**theme.STATUS_TONES, **theme.STATE_TONES, "live": "blue"}

    def colour(verdict: object) -> str:
        """CSS for `collapsed`, `healthy, diverse`, `finished`; empty for any other words."""
        name = str(verdict).partition(",")[0]
        return f"color: {theme.TONES[tones[name]]}; font-weight: 600" if name in tones else ""

    return cells.style.map(colour, subset=["state", "status"])


def pick_columns(rows: Sequence[RunRow]) -> list[str]:
    """The columns that the address names, and a picker of settings and metrics behind a button."""
    asked = list_param("columns", most=MAX_COLUMNS)

    def changed() -> None:
        st.query_params["columns"] = ",".join(st.session_state["picked_columns"])

    with st.popover("Columns", on_change="rerun", key="columns_box", width="stretch") as box:
        if box.open:
            names = {name for row in rows for name in (*_settings_of(row), *_metrics_of(row))}
            st.multiselect(
                "Settings and metrics",
                sorted(names.union(asked)),
                default=asked,
                key="picked_columns",
                on_change=changed,
                max_selections=MAX_COLUMNS,
                format_func=lambda name: visible(name, 120),
                help="Settings have dots (optim.lr), metrics a slash (policy/entropy).",
            )
    return asked


def _metrics_of(row: RunRow) -> Sequence[str]:
    try:
        return queries.metric_keys(row.run_id)
    except Problem:
        return ()


def _settings_of(row: RunRow) -> Mapping[str, Any]:
    """All settings of a run, as flat dotted keys; none where they cannot be read."""
    return _settings(row.path, row.created_at)


@functools.lru_cache(maxsize=1024)
def _settings(path: Path, created_at: float) -> Mapping[str, Any]:
    try:
        config = read_run_json(Layout(path)).get("config")
        config = json.loads(config) if isinstance(config, str) else config
    except (StoreError, ValueError, RecursionError):
        return {}
    return flat(config) if isinstance(config, dict) else {}


def _value(row: RunRow, name: str) -> float | str | None:
    """The setting of a run, or the newest value of its metric, rates in per cent; else None."""
    settings = _settings_of(row)
    if name in settings:
        value = settings[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else visible(setting_words(value), 120)
    try:
        values = queries.series(row.run_id, [name])["value"].dropna()
    except Problem:
        return None
    if not len(values):
        return None
    return float(values.iloc[-1]) * (100 if metric(name).unit == SHARE else 1)


def _extra_config(cells: pd.DataFrame, extra: Sequence[str]) -> dict[str, Any]:
    """How the columns of settings and metrics look."""
    out: dict[str, Any] = {}
    for name in extra:
        heading, form, hint = visible(name, 80), "%.4g", None
        if "/" in name:
            description = metric(name)
            heading, hint = visible(description.name, 60), plain(f"{name}: {description.help}", 300)
            form = "%.1f %%" if description.unit == SHARE else form
        is_number = name in cells and pd.api.types.is_numeric_dtype(cells[name])
        out[name] = (
            st.column_config.NumberColumn(heading, format=form, help=hint)
            if is_number
            else st.column_config.Column(heading, help=hint)
        )
    return out


def run_cells(rows: Sequence[RunRow], extra: Sequence[str] = ()) -> pd.DataFrame:
    """What the table shows, one row a run, without the columns that no run has anything in."""
    now = time.time()
    cells = pd.DataFrame(
        [_cells(row, queries.run_details(row), now) for row in rows], columns=list(_COLUMNS)
    )
    empty = [name for name in _MAY_BE_EMPTY if not cells[name].any()]
    column_index = list(_COLUMNS).index("environment")
    extra_columns = [name for name in dict.fromkeys(extra) if name not in cells]
    for number, name in enumerate(extra_columns):
        cells.insert(column_index + number, name, [_value(row, name) for row in rows])
    return cells.drop(columns=empty)


def _cells(row: RunRow, details: RunDetails, now: float) -> dict[str, Any]:
    share = row.success_rate
    if share is None and details.success:  # the last step may have measured no success
        share = details.success[-1]
    rule = details.alarm_rule.replace("_", " ").lower()
    started = datetime.fromtimestamp(row.created_at) if row.created_at else None
    return {
        "run": visible(row.run_id, 120),
        "status": visible(row_status(row, details, now).words(now), 160),
        "state": _state(row, details),
        "step": max(row.last_step, 0),
        "planned": row.num_steps,
        "success": None if share is None else 100 * share,
        "history": list(details.success),
        "alarm": visible(f"{rule}, {details.alarm_severity}") if rule else "",
        "environment": visible(", ".join(row.environments or _environments(row)), 80),
        "algorithm": visible(row.algorithm, 40),
        "trainer": visible(row.trainer, 40),
        "branched": branched_from(row),
        "started": f"{started:%Y-%m-%d %H:%M}" if started else None,
        "tags": visible(", ".join(row.tags), 200),
        "note": visible(row.note, 200),
        "pinned": "pinned" if row.is_pinned else "",
    }


def _environments(row: RunRow) -> tuple[str, ...]:
    """Of a run of another trainer: its episodes say it, and no settings do."""
    try:
        return () if row.origin is Origin.TRAINED else queries.environments(row.run_id)
    except Problem:
        return ()


def branched_from(row: RunRow) -> str:
    """`my-run after step 40`; empty for a run that began by itself."""
    when = "" if row.branched_at is None else f" {after_step(row.branched_at)}"
    return visible(f"{row.parent_run_id}{when}", 120) if row.parent_run_id else ""


def _state(row: RunRow, details: RunDetails) -> str:
    """State of the last verdict, and the regime where nothing is wrong: one story for each run.

    A verdict that is quick to get is asked for.
    """
    try:
        if details.has_text or row.origin is Origin.IMPORTED:
            queries.verdict(row.run_id, wait_s=0.0)
        verdict = queries.known_verdict(row.run_id)
    except Problem:
        return ""
    if verdict is None:
        return ""
    regime = verdict.regime.value.replace("_", " ")
    is_told = verdict.state in _QUIET and regime != "undetermined"
    return f"{verdict.state.value}, {regime}" if is_told else verdict.state.value


def note_changes(
    row: RunRow, before: Sequence[str], tags: Sequence[str], note: str | None, is_pinned: bool
) -> list[Change]:
    """What must be noted so that a run has these tags, this note (None: its own) and this pin.

    Raises:
        AnnotationError: a tag or the note is not fit to be kept.
    """
    author = f"{os_user()} (dashboard)"[:MAX_AUTHOR]
    who: dict[str, Any] = {"author": author, "at": time.time()}
    new_tags = [tag.strip() for tag in tags]
    changes: list[Change] = [AddTag(tag=tag, **who) for tag in new_tags if tag not in row.tags]
    changes += [RemoveTag(tag=tag, **who) for tag in before if tag not in new_tags]
    if note is not None and note != row.note:
        changes.append(SetNote(note=note, **who))
    if is_pinned != row.is_pinned:
        changes.append(Pin(is_pinned=is_pinned, **who))
    return changes
