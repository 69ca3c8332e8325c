"""Rows of one step straight from its row groups: what SQL over all files would first have to find.

A pack has one row group per step, and its footer says which. Files never change, so their footers
are read once.
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
from ..schema import arrow_schema

_MAX_FOOTERS = 256
StepRange = tuple[float, float]


class StepLookup:
    """Reads the rows of single steps. May be used from several threads."""

    def __init__(self) -> None:
        self._footers: OrderedDict[Path, tuple[pq.FileMetaData, list[StepRange]]] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, root: Path, table: str, files: Sequence[VisibleFile], step: int) -> pa.Table:
        """The visible rows of one step.

        Raises:
            OSError, pa.ArrowException: a file is gone or damaged.
        """
        tables = [arrow_schema(table).empty_table()]
        for file in files:
            if file.limit is None or step <= file.limit:
                tables += self._read(root / file.entry.path, step)
        return pa.concat_tables(tables)

    def _read(self, path: Path, step: int) -> list[pa.Table]:
        footer, ranges = self._footer(path)
        groups = [n for n, (first, last) in enumerate(ranges) if first <= step <= last]
        if not groups:
            return []
        with pq.ParquetFile(path, metadata=footer) as opened:
            rows = opened.read_row_groups(groups)
        return [rows.filter(pc.equal(rows.column("step"), step))]

    def _footer(self, path: Path) -> tuple[pq.FileMetaData, list[StepRange]]:
        with self._lock:
            entry = self._footers.pop(path, None)
            if entry is None:
                footer = pq.read_metadata(path)
                entry = (footer, _step_ranges(footer))
            self._footers[path] = entry
            while len(self._footers) > _MAX_FOOTERS:
                self._footers.popitem(last=False)
            return entry


def _step_ranges(footer: pq.FileMetaData) -> list[StepRange]:
    """First and last step of each row group; everything where the footer does not say."""
    column = footer.schema.names.index("step")
    ranges = []
    for number in range(footer.num_row_groups):
        statistics = footer.row_group(number).column(column).statistics
        is_told = statistics is not None and statistics.has_min_max
        ranges.append((statistics.min, statistics.max) if is_told else (-math.inf, math.inf))
    return ranges
