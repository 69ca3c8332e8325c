"""Records of events <-> rows of the event tables, as the journal and the packs hold them.

Journal records hold rows without `run_id` and `attempt`, which every record has once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..query.rows import clean_text
from ..records import (
    Alarm,
    AlarmSeverity,
    AlarmState,
    CheckpointRecord,
    Command,
    CommandAck,
    CommandAction,
    CommandOutcome,
    SettingsRecord,
    Split,
    StepMetrics,
    Trajectory,
    TrajectoryOutcome,
)
from ..schema import COUNTED_METRICS, EVENT_TABLES, STEP_METRICS, TABLES, arrow_schema

Row = Mapping[str, Any]


def plain(value: Any) -> Any:
    """`value` fit for strict JSON: NaN and infinities as text, lone surrogates replaced."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def command_row(command: Command) -> dict[str, Any]:
    return {
        "command_id": command.command_id,
        "issued_at": command.issued_at,
        "issued_by": command.issued_by,
        "action": command.action.value,
        "settings": json.dumps(plain(command.settings)),
        "reason": command.reason,
        "expires_at": command.expires_at,
    }


def command_from_row(row: Row, run_id: str) -> Command:
    """Raises ValueError, TypeError or KeyError where the row is not a command."""
    settings = json.loads(row["settings"])
    if not isinstance(settings, dict):
        raise TypeError(f"settings is {settings!r}, but must be an object")
    expires_at = row["expires_at"]
    return Command(
        command_id=str(row["command_id"]),
        run_id=run_id,
        issued_at=float(row["issued_at"]),
        issued_by=str(row["issued_by"]),
        action=CommandAction(row["action"]),
        settings=settings,
        reason=str(row["reason"]),
        expires_at=None if expires_at is None else float(expires_at),
    )


def ack_row(ack: CommandAck, wall_time: float) -> dict[str, Any]:
    return {
        "step": ack.step,
        "command_id": ack.command_id,
        "outcome": ack.outcome.value,
        "detail": ack.detail,
        "wall_time": wall_time,
    }


def ack_from_row(row: Row) -> CommandAck:
    return CommandAck(
        command_id=row["command_id"],
        step=row["step"],
        outcome=CommandOutcome(row["outcome"]),
        detail=row["detail"],
    )


_ALARM_NUMBERS = ("value", "baseline", "threshold")
_ALARM_PLAIN = (
    "step",
    "alarm_id",
    "rule",
    "onset_step",
    "metric",
    "window",
    "message",
    "advice",
    "refuted_by",
    "earliest_onset_step",
)


def alarm_row(alarm: Alarm) -> dict[str, Any]:
    row = {name: getattr(alarm, name) for name in (*_ALARM_PLAIN, *_ALARM_NUMBERS)}
    suggested = None
    if alarm.suggested is not None:
        suggested = json.dumps(command_row(alarm.suggested) | {"run_id": alarm.suggested.run_id})
    return row | {
        "severity": alarm.severity.value,
        "state": alarm.state.value,
        "suggested": suggested,
        "evidence": list(alarm.evidence),
    }


def alarm_from_row(row: Row) -> Alarm:
    suggested = None
    if row["suggested"] is not None:
        value = json.loads(row["suggested"])
        suggested = command_from_row(value, value["run_id"])
    return Alarm(
        severity=AlarmSeverity(row["severity"]),
        state=AlarmState(row["state"]),
        suggested=suggested,
        evidence=tuple(row["evidence"]),
        **{name: row[name] for name in (*_ALARM_PLAIN, *_ALARM_NUMBERS)},
    )


_CHECKPOINT_NAMES = (
    "step",
    "path",
    "policy_version",
    "num_bytes",
    "wall_time",
    "reason",
    "is_deleted",
)


def checkpoint_row(checkpoint: CheckpointRecord) -> dict[str, Any]:
    return {name: getattr(checkpoint, name) for name in _CHECKPOINT_NAMES}


def checkpoint_from_row(row: Row) -> CheckpointRecord:
    return CheckpointRecord(**{name: row[name] for name in _CHECKPOINT_NAMES})


def settings_row(record: SettingsRecord) -> dict[str, Any]:
    return {"step": record.step, "settings": json.dumps(plain(record.values))}


def settings_from_row(row: Row) -> SettingsRecord:
    """Raises ValueError or TypeError where the row does not hold settings."""
    values = json.loads(row["settings"])
    if not isinstance(values, dict):
        raise TypeError(f"settings is {values!r}, but must be an object")
    return SettingsRecord(step=row["step"], values=values)


def metric_values(metrics: StepMetrics) -> dict[str, float]:
    """Values and durations under one roof; the keys of durations begin with `time/`."""
    return {key: float(value) for key, value in {**metrics.values, **metrics.durations_s}.items()}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def step_row(
    step: int,
    wall_time: float,
    metrics: Sequence[StepMetrics],
    trajectories: Sequence[Trajectory],
    outcomes: Mapping[str, TrajectoryOutcome],
) -> dict[str, Any]:
    """The wide row of `steps`: counted from the training trajectories, or copied from metrics."""
    train = [t for t in trajectories if t.split in (Split.TRAIN, Split.IMPORT)]
    known = [outcomes[t.id].kept for t in train if t.id in outcomes]
    solved = [float(t.is_success) for t in train if t.is_success is not None]
    returns = [t.episode_return for t in train if not t.stop_reason.is_failure]
    returns = [value for value in returns if not math.isnan(value)]
    row: dict[str, Any] = {
        "step": step,
        "wall_time": metrics[0].wall_time if metrics else wall_time,
        "policy_version": metrics[0].policy_version if metrics else None,
        "num_trajectories": len(train),
        "num_kept": sum(known) if known else None,
        "return_mean": _mean(returns),
        "success_rate": _mean(solved),
        "num_turns_mean": _mean([float(t.num_turns) for t in train]),
        "num_sampled_tokens": sum(t.num_sampled_tokens for t in train),
    }
    values: dict[str, float] = {}
    for entry in metrics:
        if entry.phase == "train":
            values |= metric_values(entry)
            row["policy_version"], row["wall_time"] = entry.policy_version, entry.wall_time
    if not train:  # an imported or watched step whose trainer wrote its metrics alone
        for column, keys in COUNTED_METRICS.items():
            told = (values[key] for key in keys if not math.isnan(values.get(key, math.nan)))
            row[column] = next(told, None)
    return row | {column: values.get(key) for column, key in STEP_METRICS.items()}


class EventColumns:
    """Rows of the event tables, collected from journal records column by column."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._columns: dict[str, dict[str, list[Any]]] = {}
        self._settled: dict[str, list[pa.Table]] = {}
        self.clear()

    def clear(self) -> None:
        self._settled = {name: [] for name in EVENT_TABLES}
        self._begin()

    def _begin(self) -> None:
        self._columns = {
            name: {column: [] for column in TABLES[name].column_names} for name in EVENT_TABLES
        }

    def add(self, record: Row, limit: int | None = None) -> None:
        """Take the events of one journal record, up to step `limit`.

        What people asked for (the audit tables) is never left out.
        """
        attempt = record["attempt"]
        for name in EVENT_TABLES:
            if name == "metrics":
                if limit is None or record.get("step", 0) <= limit:
                    self._add_metrics(record, attempt)
                continue
            is_cut = limit is not None and not TABLES[name].is_audit
            for row in record.get(name, ()):
                if not is_cut or row["step"] <= limit:
                    self._add_row(name, row, attempt)

    def is_empty(self, name: str) -> bool:
        return not (self._settled[name] or self._columns[name]["run_id"])

    def settle(self) -> None:
        """Check that what was collected has the types of its tables.

        Raises:
            pa.ArrowException, ValueError, TypeError, OverflowError: a journal that nobody checked
                holds something else.
        """
        new = {name: self._table(name) for name in EVENT_TABLES if self._columns[name]["run_id"]}
        for name, table in new.items():
            self._settled[name].append(table)
        self._begin()

    def _add_metrics(self, record: Row, attempt: int) -> None:
        columns = self._columns["metrics"]
        for entry in record.get("metrics", ()):
            values = entry["values"]
            size = len(values)
            columns["run_id"] += [self._run_id] * size
            columns["step"] += [record["step"]] * size
            columns["attempt"] += [attempt] * size
            columns["phase"] += [entry["phase"]] * size
            columns["key"] += values.keys()
            columns["value"] += [float(value) for value in values.values()]

    def _add_row(self, name: str, row: Row, attempt: int) -> None:
        for column, values in self._columns[name].items():
            if column == "run_id":
                values.append(self._run_id)
            elif column == "attempt":
                values.append(attempt)
            else:
                value = row.get(column)
                if isinstance(value, str) and _is_double(name, column):
                    value = float(value)  # NaN and infinities are text in the journal
                values.append(value)

    def table(self, name: str) -> pa.Table:
        """All rows of a table that were collected since `clear`."""
        return pa.concat_tables([*self._settled[name], self._table(name)])

    def _table(self, name: str) -> pa.Table:
        return pa.Table.from_pydict(self._columns[name], schema=arrow_schema(name))


def _is_double(table: str, column: str) -> bool:
    return next(c.type for c in TABLES[table].columns if c.name == column) == "DOUBLE"


def event_fields(
    *,
    wall_time: float,
    sequence: Iterator[int],
    alarms: Iterable[Alarm] = (),
    acks: Iterable[CommandAck] = (),
    commands: Iterable[Command] = (),
    checkpoints: Iterable[CheckpointRecord] = (),
    settings: Iterable[SettingsRecord] = (),
) -> dict[str, Any]:
    """The parts of a journal record that hold events; empty ones are left out.

    Args:
        sequence: numbers the events of an attempt whose order counts.
    """

    def numbered(row: dict[str, Any]) -> Any:
        return plain(row | {"sequence": next(sequence)})

    fields = {
        "alarms": [plain(alarm_row(alarm)) for alarm in alarms],
        "command_events": [numbered(ack_row(ack, wall_time)) for ack in acks],
        "commands": [plain(command_row(command)) for command in commands],
        "checkpoints": [numbered(checkpoint_row(checkpoint)) for checkpoint in checkpoints],
        "settings": [numbered(settings_row(record)) for record in settings],
    }
    return {name: rows for name, rows in fields.items() if rows}
