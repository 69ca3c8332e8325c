"""What the metrics of a run come to: of each the last value, the extremes, the mean of the latest.

A table over all runs of a root has a column for any of them. So a run's metrics are read once, and
what is kept is some numbers a metric. Files of packs never change: a run that goes on is summed up
from what was kept of them, and its journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..log.index import RunIndex

RECENT = 10
"""Values of a metric whose mean is its recent value."""
_COLUMNS = ["step", "key", "value"]
_PART = pa.schema(
    [
        ("step", pa.int32()),
        ("key", pa.string()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
    ]
)


class MetricSummary(NamedTuple):
    """Of one metric of one run; values that are not finite do not count."""

    last: float
    last_step: int
    recent: float
    """Mean of the last `RECENT` values."""
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSummary:
    """Of all metrics of one run."""

    keys: tuple[str, ...] = ()
    numbers: NDArray[np.float64]
    """(5, K): last, last step, recent, low, high."""
    packed: Packed

    def of(self, key: str) -> MetricSummary | None:
        """None where the run has no finite value of it."""
        try:
            column = self.numbers[:, self.keys.index(key)]
        except ValueError:
            return None
        last, last_step, *others = column.tolist()
        return MetricSummary(last, int(last_step), *others)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """What was kept of the files of a run's packs."""

    files: Mapping[str, int | None]
    """Path -> the last step that counts; None for all of it."""
    part: pa.Table
    """The latest rows of each metric, each with the extremes of all: `_PART`."""


NOTHING_PACKED = Packed(files={}, part=_PART.empty_table())


def summary_of(index: RunIndex, before: Packed = NOTHING_PACKED) -> RunSummary:
    """Sum up the metrics of a run; damaged files are left out.

    Args:
        before: What an earlier summary of the run kept.
    """
    visible = index.files("metrics")
    files = {file.entry.path: file.limit for file in visible}
    if not before.files.items() <= files.items():  # a rewind, or packs that were written anew
        before = NOTHING_PACKED
    parts = [before.part]
    for file in visible:
        if file.entry.path not in before.files:
            parts.append(_part_of(index.whole_rows(file, _COLUMNS)))
    packed = before if len(parts) == 1 else Packed(files=files, part=_joined(parts))
    live = _part_of(index.events.table("metrics").select(_COLUMNS))
    part = _joined([packed.part, live]) if packed.part.num_rows else live
    keys, _, starts, ends = _by_key(part)
    if not keys:
        return RunSummary(keys=(), numbers=np.empty((5, 0)), packed=packed)
    step, value, low, high = (
        part.column(name).to_numpy() for name in ("step", "value", "low", "high")
    )
    numbers = np.stack(
        [
            value[ends - 1],
            step[ends - 1].astype(np.float64),
            np.add.reduceat(value, starts) / (ends - starts),
            low[starts],
            high[starts],
        ]
    )
    return RunSummary(keys=tuple(keys), numbers=numbers, packed=packed)


def _part_of(rows: pa.Table) -> pa.Table:
    """Rows of metrics as a part, reduced."""
    rows = rows.filter(pc.is_finite(rows.column("value")))
    value = rows.column("value")
    columns = [rows.column("step"), rows.column("key"), value, value, value]
    return _joined([pa.Table.from_arrays(columns, schema=_PART)])


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    """One part of several: of each key the `RECENT` latest rows, by key and step."""
    table = pa.concat_tables(parts).sort_by([("key", "ascending"), ("step", "ascending")])
    if not table.num_rows:
        return table
    table = table.combine_chunks()
    _, sizes, starts, ends = _by_key(table)
    low, high = (table.column(name).to_numpy() for name in ("low", "high"))
    lows = np.repeat(np.minimum.reduceat(low, starts), sizes)
    highs = np.repeat(np.maximum.reduceat(high, starts), sizes)
    is_recent = np.arange(table.num_rows) >= np.repeat(ends - RECENT, sizes)
    table = table.set_column(3, "low", pa.array(lows)).set_column(4, "high", pa.array(highs))
    return table.filter(pa.array(is_recent))


def _by_key(part: pa.Table) -> tuple[list[str], Any, Any, Any]:
    """Of rows that are sorted by key: the keys, their numbers of rows, first rows, and ends."""
    runs = pc.run_end_encode(part.column("key").combine_chunks())
    keys, ends = runs.values.to_pylist(), runs.run_ends.to_numpy(zero_copy_only=False)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    return keys, ends - starts, starts, ends.astype(np.int64)
