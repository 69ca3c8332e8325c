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
from echoscope.store.query.listing import RunDetails, RunRow, row_status
from echoscope.store.status import Origin, after_step
from echoscope.store.steer.annotations import AddTag, Change, Pin, RemoveTag, SetNote
from echoscope.store.steer.steering import MAX_AUTHOR, os_user

from ..charts import theme
from ..data import queries
from ..escaping import visible
from ..words import NONE, Colour
from .problems import Problem

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
    "step": st.column_config.NumberColumn("Step", format="%d"),
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


_QUIET = (RunState.HEALTHY, RunState.CONVERGED)
_MAY_BE_EMPTY = {"planned", "alarm", "environment", "algorithm", "trainer", "branched"}
_MAY_BE_EMPTY |= {"note", "tags", "pinned"}
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
        _coloured(run_cells(rows)),
        hide_index=True,
        column_config={**_COLUMNS, "run": name},
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


def run_cells(rows: Sequence[RunRow]) -> pd.DataFrame:
    """What the table shows, one row a run, without the columns that no run has anything in."""
    now = time.time()
    cells = pd.DataFrame(
        [_cells(row, queries.run_details(row), now) for row in rows], columns=list(_COLUMNS)
    )
    empty = [name for name in _MAY_BE_EMPTY if not cells[name].any()]
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
        "step": None if row.origin is Origin.EVALUATED else max(row.last_step, 0),
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
    """State of the last verdict, the regime where nothing is wrong; asks for a quick verdict."""
    if row.origin is Origin.EVALUATED:
        return RunState.EVALUATION.value
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
