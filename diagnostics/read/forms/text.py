"""The metrics in a text: JSON lines, a table, or what a trainer printed, told from its beginning.

`reader_of` reads a whole text. `GrowingText` reads one that a trainer still writes, by the same
readers.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from echoscope.text.amounts import counted

from ..foreign_names import OUTCOMES
from ..records import Collector, Reading, refuse_export
from ..table import TableBuilder
from .console_log import ConsoleLog
from .delimited_text import NUM_SAMPLED, Columns, Dialect, dialect_of
from .json_records import documents, is_notebook, parsed, records_of

YOUNG_CHARS = 256 << 10
"""A shorter text is read from its beginning at each change."""

Lines = Callable[[], Iterator[str]]


class Reader(Protocol):
    """Reads a text line by line."""

    def feed(self, lines: Iterable[str]) -> None:
        """Raises MetricsFileError where the text cannot hold the metrics of a run."""

    def best(self) -> Collector | None:
        """The records so far; None where there are none. Nothing follows the last line."""

    def notes(self) -> list[str]:
        """What a user must know."""


class JsonLines:
    """A JSON value a line."""

    def __init__(self, reading: Reading, *, is_only: bool = False) -> None:
        self.collector = Collector(reading, "json")
        self.num_bad = 0
        self._name, self._is_only = Path(reading.path).stem, is_only

    def feed(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line.strip():
                records = records_of(parsed(line), name=self._name, is_only=self._is_only)
                self.num_bad += not records
                for record in records:
                    self.collector.add(record)

    def best(self) -> Collector | None:
        return self.collector if self.collector.num_records else None

    def notes(self) -> list[str]:
        lines = counted(self.num_bad, "line")
        return [f"left out: {lines} without a JSON object"] if self.num_bad else []


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


def _is_document(lines: Sequence[str]) -> bool:
    """Whether a text that begins so is a JSON value to be read whole, or several of them."""
    start = next((line for line in lines if line.strip()), "").lstrip()
    if start[:1] not in ("{", "["):
        return False
    value = parsed(start)
    if isinstance(value, dict) and not is_notebook(value):
        # One object with rows inside, such as a trainer's state.
        return len(lines) == 1 and len(records_of(value, is_only=True)) > 1
    return isinstance(value, list) or next(documents("\n".join(lines)), None) is not None


class GrowingText:
    """Reads a text that grows.

    While it is short, all of it is read again at each change: what it is, which of its lines are
    the records, and which field counts the steps is told from all that is there. Then what was told
    holds, and only new lines are read.

    Args:
        reading: Its builders get the rows in the order in which they stand in the text. Those of a
            short text are made anew at each change.
    """

    def __init__(self, reading: Reading) -> None:
        self.is_document = False
        """It is a JSON document, to be read whole."""
        self._reading = reading
        self._young: list[str] | None = []
        self._num_chars = 0
        self._reader: Reader | None = None
        self._family = ""
        """Which lines of a log are the records; "" while that is open."""

    def feed(self, lines: Sequence[str]) -> None:
        """Raises MetricsFileError where the text cannot hold the metrics of a run."""
        if self._young is None:
            assert self._reader is not None
            self._reader.feed(lines)
            return
        self._young += lines
        self._num_chars += sum(map(len, lines))
        self._reader = self._read_young()
        if self._num_chars > YOUNG_CHARS and self._reader is not None:
            self._young = None
            if isinstance(self._reader, ConsoleLog):
                self._family = self._reader.leader() or ""

    def _read_young(self) -> Reader | None:
        young = self._young or []
        self.is_document = _is_document(young)
        if self.is_document:
            return None
        start = next((line for line in young if line.strip()), "").lstrip()
        if isinstance(parsed(start), dict):
            reader: Reader = JsonLines(self._reading)
            reader.feed(young)
            return reader
        try:
            reader = reader_of(self._reading, lambda: iter(young)) or ConsoleLog(self._reading)
        except csv.Error:
            reader = ConsoleLog(self._reading)
            reader.feed(young)
        return reader

    def builder(self, *, is_quiet: bool) -> TableBuilder | None:
        """The builder with most rows; None where there is no row.

        Args:
            is_quiet: Nothing follows the last line: what it began is at its end.

        Raises:
            MetricsFileError: the text cannot hold the metrics of a run.
        """
        reader = self._reader
        if isinstance(reader, ConsoleLog):
            if is_quiet:
                reader.close_open()
            family = self._family or reader.leader()
            collector = None if family is None else reader.collector(family)
        else:
            collector = None if reader is None else reader.best()
        return None if collector is None else collector.settle()
