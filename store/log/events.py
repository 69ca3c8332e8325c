"""Events as the journal and the packs hold them: rows of the event tables.

Journal records hold rows without `run_id` and `attempt`, which every record has once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from ..query.rows import Row
from ..records import Split, StepMetrics, Trajectory, TrajectoryOutcome
from ..schema import COUNTED_METRICS, EVENT_TABLES, STEP_METRICS, TABLES, arrow_schema

_NAMES = {name: TABLES[name].column_names for name in EVENT_TABLES}
_NUMBERS = {name: {c.name for c in TABLES[name].columns if c.type == "DOUBLE"} for name in _NAMES}


def metric_values(metrics: StepMetrics) -> dict[str, float]:
    """Values and durations under one roof."""
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
    kept_flags = [outcomes[t.id].kept for t in train if t.id in outcomes]
    solved = [float(t.is_success) for t in train if t.is_success is not None]
    returns = [t.episode_return for t in train if not t.stop_reason.is_failure]
    returns = [value for value in returns if not math.isnan(value)]
    row: dict[str, Any] = {
        "step": step,
        "wall_time": metrics[0].wall_time if metrics else wall_time,
        "policy_version": metrics[0].policy_version if metrics else None,
        "num_trajectories": len(train),
        "num_kept": sum(kept_flags) if kept_flags else None,
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
        for column, key in COUNTED_METRICS.items():
            value = values.get(key, math.nan)
            row[column] = None if math.isnan(value) else value
    return row | {column: values.get(key) for column, key in STEP_METRICS.items()}


class EventColumns:
    """Rows of the event tables, collected from journal records column by column."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._columns: dict[str, dict[str, list[Any]]] = {
            name: {column: [] for column in columns} for name, columns in _NAMES.items()
        }
        self._tables: dict[str, pa.Table] = {}
        """What `table` gave last: rows only come on top."""

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
        row = {**row, "run_id": self._run_id, "attempt": attempt}
        for column, values in self._columns[name].items():
            value = row.get(column)
            if isinstance(value, str) and column in _NUMBERS[name]:
                value = float(value)  # NaN and infinities are text in the journal
            values.append(value)

    def columns(self, name: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Some columns of the rows of a table, row by row: a list of many runs makes no tables."""
        return zip(*(self._columns[name][column] for column in columns), strict=True)

    def table(self, name: str) -> pa.Table:
        """All rows of a table that were collected."""
        before = self._tables.get(name, _empty(name))
        new = {column: values[before.num_rows :] for column, values in self._columns[name].items()}
        if new["run_id"]:
            rows = pa.Table.from_pydict(new, schema=arrow_schema(name))
            before = self._tables[name] = pa.concat_tables([before, rows])
        return before


@cache
def _empty(name: str) -> pa.Table:
    return arrow_schema(name).empty_table()
