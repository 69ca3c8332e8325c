"""Rows of the page Runs: what the table shows of a run, in which order, and what people note."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.store.annotations import AddTag, Change, Pin, RemoveTag, SetNote
from echoscope.store.status import after_step

from ..data import queries
from ..data.run_details import RunDetails, row_status
from ..data.run_list import RunRow
from ..escaping import visible
from ..web.api import author
from .problems import Problem
from .table import Cell, Column, Row

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


_COLUMNS = (
    Column(name="run", label="Run", kind="link"),
    Column(name="status", label="Status"),
    Column(name="state", label="Verdict", hint="Of the rules over what was measured so far."),
    Column(name="step", label="Step", kind="number"),
    Column(
        name="success", label="Success", kind="number", hint="Of the last step's training rollouts."
    ),
    Column(name="history", label="Success so far", kind="spark"),
    Column(name="alarm", label="Worst open alarm"),
    Column(name="environment", label="Environment"),
    Column(name="algorithm", label="Algorithm"),
    Column(name="branched", label="Branched from"),
    Column(name="started", label="Started"),
    Column(name="tags", label="Tags"),
    Column(name="note", label="Note"),
    Column(name="pinned", label="Pinned"),
)
_QUIET = (RunState.HEALTHY, RunState.CONVERGED)
_MAY_BE_EMPTY = {"alarm", "branched", "note", "tags", "pinned"}
"""Columns that are left out where no run has anything in them."""


def run_lines(rows: Sequence[RunRow], href: Callable[[str], str]) -> list[Row]:
    """What the table shows of some runs; `href` is where the link of a run leads."""
    now = time.time()
    return [
        Row(id=row.run_id, cells=_cells(row, _details(row), now), href=href(row.run_id))
        for row in rows
    ]


def run_columns(lines: Sequence[Row]) -> list[Column]:
    """The columns that these runs need."""
    return [
        column
        for column in _COLUMNS
        if column.name not in _MAY_BE_EMPTY or any(line.cells[column.name] for line in lines)
    ]


def _details(row: RunRow) -> RunDetails:
    try:
        return queries.run_details(row)
    except Problem:
        return RunDetails()


def _cells(row: RunRow, details: RunDetails, now: float) -> dict[str, Cell]:
    of = f" / {row.num_steps}" if row.num_steps else ""
    rule = details.alarm_rule.replace("_", " ").lower()
    started = datetime.fromtimestamp(row.created_at) if row.created_at else None
    return {
        "run": visible(row.run_id, 120),
        "status": visible(row_status(row, details, now).words(now), 160),
        "state": _state(row, details),
        "step": f"{max(row.last_step, 0)}{of}",
        "success": None if row.success_rate is None else f"{row.success_rate:.0%}",
        "history": details.success,
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
