"""The metrics of a text that grows: JSON lines, a table, or what a trainer prints.

While it is short, all of it is read again at each change: what it is, which of its lines are the
records, and which field counts the steps is told from all that is there. Then what was told holds,
and only new lines are read.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.forms.console_log import ConsoleLog
from echoscope.diagnostics.read.forms.json_records import JsonLinesForm, parsed
from echoscope.diagnostics.read.metrics_file import Reader, reader_of
from echoscope.diagnostics.read.records import Reading

from .ledger import Look, Metrics, Told

YOUNG_CHARS = 256 << 10
"""A shorter text is read from its beginning at each change."""


class GrowingText:
    """A text that a trainer still writes.

    Args:
        name: Of the file.
        mapping: What the user says of names of metrics.
    """

    def __init__(self, name: str, mapping: Mapping[str, Meaning]) -> None:
        self.told = Told(is_growing=True)
        self._reading = Reading(name, mapping, make_builder=Metrics)
        self._young: list[str] | None = []
        self._num_chars = 0
        self._reader: Reader | None = None
        self._family = ""
        """Which lines of a log are the records; "" while that is open."""
        self._is_open = False
        """Lines were read after which the last of them may go on."""

    def feed(self, lines: Sequence[str]) -> None:
        """Raises MetricsFileError where the text cannot hold the metrics of a run."""
        self._is_open = True
        if self._young is None:
            assert self._reader is not None
            self._reader.feed(lines)
            return
        self._young += lines
        self._num_chars += sum(map(len, lines))
        self._reader = self._read_young(self._young)
        if self._num_chars > YOUNG_CHARS:
            self._young = None
            if isinstance(self._reader, ConsoleLog):
                self._family = self._reader.leader()

    def _read_young(self, young: list[str]) -> Reader:
        if isinstance(parsed(next((line for line in young if line.strip()), "")), dict):
            reader: Reader = JsonLinesForm(self._reading)
            reader.feed(young)
            return reader
        try:
            reader = reader_of(self._reading, lambda: iter(young)) or ConsoleLog(self._reading)
        except csv.Error:
            reader = ConsoleLog(self._reading)
            reader.feed(young)
        return reader

    def take(self, look: Look, written_at: float, *, is_quiet: bool) -> None:
        """Take the steps that the lines so far give.

        Args:
            is_quiet: Nothing follows the last line: what it began is at its end.

        Raises:
            MetricsFileError: the text cannot hold the metrics of a run.
        """
        if not self._is_open:
            return
        self._is_open, reader = not is_quiet, self._reader
        if isinstance(reader, ConsoleLog):
            if is_quiet:
                reader.close_open()
            collector = reader.collectors.get(self._family or reader.leader())
        else:
            collector = None if reader is None else reader.best()
        if collector is not None:
            look.is_new |= self.told.take(collector.settle(), written_at)
