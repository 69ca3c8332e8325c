"""The metrics in a text: JSON lines, a table, or what a trainer printed, told by its beginning."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..foreign_names import OUTCOMES
from ..records import Collector, Reading, refuse_export
from .console_log import ConsoleLog
from .delimited_text import NUM_SAMPLED, Columns, Dialect, dialect_of
from .json_records import parsed, records_of

Lines = Callable[[], Iterator[str]]


class JsonLines:
    """A JSON value a line."""

    def __init__(self, reading: Reading, *, is_only: bool = False) -> None:
        self.collector = Collector(reading, "json")
        self._name, self._is_only = Path(reading.path).stem, is_only

    def feed(self, lines: Iterable[str]) -> None:
        self.take(parsed(line) for line in lines if line.strip())

    def take(self, values: Iterable[Any]) -> None:
        """As `feed`, of values that were parsed."""
        for value in values:
            records = records_of(value, name=self._name, is_only=self._is_only)
            if not records:
                self.collector.left_out["line", "without a JSON object"] += 1
            for record in records:
                self.collector.add(record)

    def best(self) -> Collector | None:
        return self.collector if self.collector.num_records else None


Reader = JsonLines | Columns | ConsoleLog
"""Reads a text line by line (`feed`). `best` has the records so far, None where there are none."""


def reader_of(reading: Reading, lines: Lines) -> Reader | None:
    """A reader that has read a text, a table or what a trainer printed; None where it is neither.

    Raises:
        MetricsFileError: the text cannot hold the metrics of a run.
        csv.Error: a cell of the table is too long.
    """
    dialect = dialect_of(list(itertools.islice(lines(), NUM_SAMPLED)))
    table: Columns | None = None
    if dialect is not None:
        refuse_export(Path(reading.path), dialect.names)
        table = Columns(reading, dialect)
        table.feed(lines())
        # Bars also draw tables, and commas also stand in sentences.
        is_plain = dialect.num_before == 0 and dialect.delimiter != "|"
        if is_plain and table.collector.known & OUTCOMES:
            return table
        if not is_plain and not table.collector.known:
            table = None
    log = ConsoleLog(reading)
    log.feed(lines())
    best = log.best()
    if best is None or (table is not None and not _says_more(best, table.collector, dialect)):
        return table
    return log


def _says_more(log: Collector, table: Collector, dialect: Dialect | None) -> bool:
    """Whether a text says more as a log than as a table; of tables with bars also the same."""
    if not table.num_records:
        return True  # a line with commas, and nothing after it
    has_bars = dialect is not None and dialect.delimiter == "|"
    return len(log.known) >= len(table.known) + (not has_bars)
