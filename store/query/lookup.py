"""Rows of one step straight from its row groups: what SQL over all files would first have to find.

A pack has one row group per step, and its footer says which. Files never change: footers are read
once, and the rows of the last few steps are kept, as whoever looks at one trajectory of a step
looks at its neighbours next.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..log.index import VisibleFile
from ..log.packs.pack_file import value_range
from ..log.packs.salvage import Salvage
from ..schema import arrow_schema

_MAX_FOOTERS = 256
_MAX_TABLES = 24
_MAX_BYTES = 32_000_000
StepRange = tuple[float, float]


class StepLookup:
    """Reads the rows of single steps. May be used from several threads."""

    def __init__(self) -> None:
        self._footers: OrderedDict[Path, tuple[pq.FileMetaData, list[StepRange]]] = OrderedDict()
        self._kept: OrderedDict[tuple[Path, int], pa.Table] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def rows(self, root: Path, table: str, files: Sequence[VisibleFile], step: int) -> pa.Table:
        """The visible rows of one step.

        Raises:
            OSError, pa.ArrowException: a file is gone or damaged.
        """
        tables = [arrow_schema(table).empty_table()]
        for file in files:
            if file.limit is None or step <= file.limit:
                tables.append(self._rows_of(root / file.entry.path, table, step, file.left))
        return pa.concat_tables(tables)

    def _rows_of(self, path: Path, table: str, step: int, left: Salvage | None) -> pa.Table:
        with self._lock:
            kept = self._kept.get((path, step))
            if kept is not None:
                self._kept.move_to_end((path, step))
                return kept
        rows = self._read(path, table, step, left)
        with self._lock:
            if (path, step) not in self._kept and rows.nbytes <= _MAX_BYTES:
                self._kept[path, step] = rows
                self._num_bytes += rows.nbytes
            while len(self._kept) > _MAX_TABLES or self._num_bytes > _MAX_BYTES:
                self._num_bytes -= self._kept.popitem(last=False)[1].nbytes
        return rows

    def _read(self, path: Path, table: str, step: int, left: Salvage | None) -> pa.Table:
        footer, ranges = self._footer(path, left)
        kept = range(len(ranges)) if left is None else left.kept
        groups = [number for number in kept if ranges[number][0] <= step <= ranges[number][1]]
        if not groups:
            return arrow_schema(table).empty_table()
        with pq.ParquetFile(path, metadata=footer) as opened:
            rows = opened.read_row_groups(groups)
        if any(ranges[number] != (step, step) for number in groups):
            rows = rows.filter(pc.equal(rows.column("step"), step))
        return conform(rows, table)

    def _footer(self, path: Path, left: Salvage | None) -> tuple[pq.FileMetaData, list[StepRange]]:
        if left is not None:  # the one in the file may be damaged
            return left.footer, _step_ranges(left.footer)
        with self._lock:
            known = self._footers.pop(path, None)
            if known is None:
                footer = pq.read_metadata(path)
                known = (footer, _step_ranges(footer))
            self._footers[path] = known
            while len(self._footers) > _MAX_FOOTERS:
                self._footers.popitem(last=False)
            return known


def _step_ranges(footer: pq.FileMetaData) -> list[StepRange]:
    """First and last step of each row group; everything where the footer does not say."""
    ranges = (value_range(footer, number, "step") for number in range(footer.num_row_groups))
    return [span or (-math.inf, math.inf) for span in ranges]


def conform(rows: pa.Table, table: str) -> pa.Table:
    """Rows of an older minor version get the columns that came later, as NULL."""
    schema = arrow_schema(table)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
