"""The table of the page Runs: what it shows of a run, in which order, and what people note."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd
import streamlit as st

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.store.annotations import AddTag, Change, Pin, RemoveTag, SetNote
from echoscope.store.status import after_step

from ..data import queries
from ..data.run_details import RunDetails, row_status
from ..data.run_list import RunRow
from ..escaping import visible
from ..web.api import author
from ..words import NONE
from .problems import Problem

SORTS: dict[str, Callable[[RunRow], Any]] = {
    "newest": lambda row: -row.created_at,
    "last active": lambda row: -row.updated_at,
    "name": lambda row: row.run_id.lower(),
    "status": lambda row: (not row.is_live, row.status, -row.created_at),
    "success": lambda row: -_or(row.success_rate, -1.0),
    "steps": lambda row: -row.last_step,
    "environment": lambda row: (row.environments, -row.created_at),
}
"""What the address and the menu say -> order; pinned runs come first in all of them."""


_COLUMNS: Mapping[str, Any] = {
    "run": "Run",
    "status": "Status",
    "state": st.column_config.TextColumn(
        "Verdict", help="Of the rules over what was measured so far."
    ),
    "step": st.column_config.TextColumn("Step", alignment="right"),
    "success": st.column_config.TextColumn(
        "Success", alignment="right", help="Of the last step's training rollouts."
    ),
    "history": st.column_config.LineChartColumn("Success so far", y_min=0, y_max=1, width="small"),
    "alarm": "Worst open alarm",
    "environment": "Environment",
    "algorithm": "Algorithm",
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


_QUIET = (RunState.HEALTHY, RunState.CONVERGED)
_MAY_BE_EMPTY = {"alarm", "branched", "note", "tags", "pinned"}
"""Columns that are left out where no run has anything in them."""


def tick_table(rows: Sequence[RunRow], *, key: str) -> Picked:
    """Draw the runs as a table whose rows are ticked, and whose names open a run.

    Streamlit knows a ticked row by its place. So another order of runs is another table, which
    begins with the ticks of the runs that the table before had.
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
    answer = st.dataframe(
        run_cells(rows),
        hide_index=True,
        column_config={**_COLUMNS, "run": name},
        placeholder=NONE,
        key=table_key,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={
            "selection": {"rows": [n for n, one in enumerate(ids) if one in before]}
        },
        alt="Runs",
    )
    ticked = tuple(ids[place] for place in answer["selection"]["rows"] if place < len(ids))
    st.session_state[ticked_key] = ticked
    return Picked(ticked=ticked, opened=st.session_state.pop(opened_key, ""))


def _note_opened(click_key: str, opened_key: str, ids: tuple[str, ...]) -> None:
    """Somebody clicked a name: the run that stood there when it was clicked."""
    place = st.session_state[click_key]["row"]
    if place < len(ids):
        st.session_state[opened_key] = ids[place]


def run_cells(rows: Sequence[RunRow]) -> pd.DataFrame:
    """What the table shows, one row a run, without the columns that no run has anything in."""
    now = time.time()
    cells = pd.DataFrame([_cells(row, _details(row), now) for row in rows], columns=list(_COLUMNS))
    empty = [name for name in _MAY_BE_EMPTY if not cells[name].any()]
    return cells.drop(columns=empty)


def _details(row: RunRow) -> RunDetails:
    try:
        return queries.run_details(row)
    except Problem:
        return RunDetails()


def _cells(row: RunRow, details: RunDetails, now: float) -> dict[str, str | list[float] | None]:
    of = f" / {row.num_steps}" if row.num_steps else ""
    rule = details.alarm_rule.replace("_", " ").lower()
    started = datetime.fromtimestamp(row.created_at) if row.created_at else None
    return {
        "run": visible(row.run_id, 120),
        "status": visible(row_status(row, details, now).words(now), 160),
        "state": _state(row, details),
        "step": f"{max(row.last_step, 0)}{of}",
        "success": None if row.success_rate is None else f"{row.success_rate:.0%}",
        "history": list(details.success),
        "alarm": visible(f"{rule}, {details.alarm_severity}") if rule else "",
        "environment": visible(", ".join(row.environments), 80),
        "algorithm": visible(row.algorithm, 40),
        "branched": branched_from(row),
        "started": f"{started:%Y-%m-%d %H:%M}" if started else None,
        "tags": visible(", ".join(row.tags), 200),
        "note": visible(row.note, 200),
        "pinned": "pinned" if row.is_pinned else "",
    }


def branched_from(row: RunRow) -> str:
    """`my-run after step 40`; empty for a run that began by itself."""
    at = "" if row.branched_at is None else f" {after_step(row.branched_at)}"
    return visible(f"{row.parent_run_id}{at}", 120) if row.parent_run_id else ""


def _state(row: RunRow, details: RunDetails) -> str:
    """State of the last verdict, and the regime where nothing is wrong: one story for each run.

    A verdict that is quick to get is asked for.
    """
    try:
        if details.has_text:
            queries.verdict(row.run_id, wait_s=0.0)
        found = queries.known_verdict(row.run_id)
    except Problem:
        return ""
    if found is None:
        return ""
    regime = found.regime.value.replace("_", " ")
    is_told = found.state in _QUIET and regime != "undetermined"
    return f"{found.state.value}, {regime}" if is_told else found.state.value


def note_changes(
    row: RunRow, before: Sequence[str], tags: Sequence[str], note: str | None, is_pinned: bool
) -> list[Change]:
    """What must be noted so that a run has these tags, this note (None: its own) and this pin.

    Raises:
        AnnotationError: a tag or the note is not fit to be kept.
    """
    who: dict[str, Any] = {"author": author(), "at": time.time()}
    wanted = [tag.strip() for tag in tags]
    changes: list[Change] = [AddTag(tag=tag, **who) for tag in wanted if tag not in row.tags]
    changes += [RemoveTag(tag=tag, **who) for tag in before if tag not in wanted]
    if note is not None and note != row.note:
        changes.append(SetNote(note=note, **who))
    if is_pinned != row.is_pinned:
        changes.append(Pin(is_pinned=is_pinned, **who))
    return changes


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
