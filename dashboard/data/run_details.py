"""What the list of runs shows besides a row: read from journal and packs, without a database."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from echoscope.store.listing import RunRow
from echoscope.store.log.index import RunIndex, VisibleFile
from echoscope.store.reader import CommandState, command_states, is_starting
from echoscope.store.records import AlarmSeverity, AlarmState
from echoscope.store.status import RunStatus, pace_of, status_of
from echoscope.store.steer.commands import PendingCommands

MAX_POINTS = 60
"""Of a spark line."""
MAX_PACKS = 40
"""That a spark line opens; of more, some are left out evenly."""
_RANK = {severity.value: rank for rank, severity in enumerate(AlarmSeverity)}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """Of one run. Texts come from files: hostile."""

    success: tuple[float, ...] = ()
    """Success rate over the run, at most MAX_POINTS values; empty where it is not defined."""
    alarm_rule: str = ""
    """The worst alarm that is open; empty for none."""
    alarm_severity: str = ""
    alarm_step: int | None = None
    commands: tuple[CommandState, ...] = ()
    is_starting: bool = False
    """The current attempt has no step yet."""
    attempt: int = 1
    step_s: float = math.nan
    """Usual seconds a step, where it is not packed away yet."""
    has_text: bool = False
    """It measures its text, so that a verdict takes a moment only."""


def details_of(row: RunRow) -> RunDetails:
    """Raises StoreError where the run cannot be read."""
    index = RunIndex(row.path)
    success = _success(index)
    alarms = _rows(index, "alarms")
    worst = _worst_open(alarms)
    commands = _rows(index, "commands") + PendingCommands(row.path, index.run_id).rows()
    answers = sorted(_rows(index, "command_events"), key=_in_journal)
    keys = index.events.table("metrics").column("key").unique().to_pylist()
    return RunDetails(
        success=_thinned(success),
        alarm_rule=str(worst["rule"]) if worst else "",
        alarm_severity=str(worst["severity"]) if worst else "",
        alarm_step=worst["step"] if worst else None,
        commands=tuple(command_states(commands, answers)),
        is_starting=is_starting(index),
        attempt=index.state.attempt,
        step_s=_step_s(index),
        has_text=any(key.startswith(("text/", "info/")) for key in keys),
    )


def _rows(index: RunIndex, table: str) -> list[Row]:
    fresh: list[Row] = index.events.table(table).to_pylist()
    return index.packed_rows(table) + fresh


def _success(index: RunIndex) -> list[float]:
    """Success by step; the latest attempt of each."""
    columns = ["step", "attempt", "success_rate"]
    tables = [_read(index, file, columns) for file in _some(index.files("steps"))]
    tables.append(index.events.table("steps").select(columns))
    found = pa.concat_tables([t for t in tables if t is not None]).drop_null()
    ordered = found.sort_by([("step", "ascending"), ("attempt", "ascending")])
    by_step = dict(
        zip(
            ordered.column("step").to_pylist(),
            ordered.column("success_rate").to_pylist(),
            strict=True,
        )
    )
    return list(by_step.values())


def _some(files: Sequence[VisibleFile]) -> Sequence[VisibleFile]:
    return files[:: -(-len(files) // MAX_PACKS)] if len(files) > MAX_PACKS else files


def _read(index: RunIndex, file: VisibleFile, columns: list[str]) -> pa.Table | None:
    try:
        table = pq.read_table(index.layout.root / file.entry.path, columns=columns)
    except (OSError, pa.ArrowException):
        return None  # the page of the run says which file is damaged
    return table if file.limit is None else table.filter(pc.field("step") <= file.limit)


def _thinned(values: Sequence[float]) -> tuple[float, ...]:
    """Means of equal ranges, where there are more values than a spark line shows."""
    if len(values) <= MAX_POINTS:
        return tuple(values)
    bounds = [round(i * len(values) / MAX_POINTS) for i in range(MAX_POINTS + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(bounds)]
    return tuple(sum(part) / len(part) for part in parts)


def _worst_open(rows: Sequence[Row]) -> Row | None:
    last: dict[str, Row] = {}
    for row in sorted(rows, key=lambda r: r["step"]):
        last[row["alarm_id"]] = row
    raised = [row for row in last.values() if row["state"] == AlarmState.RAISED.value]
    return max(raised, key=lambda r: (_RANK.get(r["severity"], -1), r["step"]), default=None)


def row_status(row: RunRow, details: RunDetails, now: float) -> RunStatus:
    """How the run of a row stands now."""
    return status_of(
        row.status,
        details.attempt,
        details.commands,
        is_starting=details.is_starting,
        heard_at=row.updated_at,
        step_s=details.step_s,
        now=now,
    )


def _in_journal(row: Row) -> tuple[float, ...]:
    """As the reader orders answers; a run of store version 1.0 has no sequence."""
    number = row.get("sequence")
    return row["attempt"], -1 if number is None else number, row["wall_time"]


def _step_s(index: RunIndex) -> float:
    rows = index.events.table("steps").select(["step", "attempt", "wall_time"]).to_pylist()
    times = [row["wall_time"] for row in rows if row["attempt"] == index.state.attempt]
    return pace_of(sorted(times))
