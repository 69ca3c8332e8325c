"""Rows of metrics in a text that grows: JSON lines, CSV, or what a trainer printed.

While a text is short, all of it is read again at each change, so that what it is, which grammar its
lines have and which field counts the steps are told from all that is there. Then what was told
holds, and only new lines are read.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.forms.console_log import ConsoleLog
from echoscope.diagnostics.read.forms.delimited_text import (
    NUM_SAMPLED,
    DelimitedText,
    Dialect,
    dialect_of,
)
from echoscope.diagnostics.read.forms.json_records import documents, is_notebook, parsed, records_of
from echoscope.diagnostics.read.records import Collector
from echoscope.diagnostics.read.table import TableBuilder

from .metrics import Row

YOUNG_BYTES = 256 << 10
_MIN_ROWS = 8
_MAX_WAITING = 1_000_000
"""Rows that may wait to be handed on: more than one look can bring."""
_CHUNK_LINES = 2_000
_MAY_SAY = {
    "pairs step": re.compile(r"step|epoch", re.IGNORECASE),
    "dictionaries": re.compile(r"""[{}'"]|step|iter|epoch|\d/\d""", re.IGNORECASE),
}
"""Grammar -> what a line has that can matter to it, where that is quickly told: most lines of a
long log say nothing."""


class _Tap(TableBuilder):
    """Hands rows on instead of keeping them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._num = 0

    def add_row(self, step: float, values: Mapping[str, float], weight: float = 1.0) -> None:
        self._num += 1
        if len(self.rows) < _MAX_WAITING:
            self.rows.append((int(step), values, weight))

    @property
    def num_rows(self) -> int:
        return self._num


class _Parser:
    """Takes lines in and gives rows out: JSON lines, where no subclass says something else."""

    kind = "json"

    def __init__(self, name: str, mapping: Mapping[str, Meaning]) -> None:
        self._taps: list[_Tap] = []
        self._begin(name, mapping)

    def _begin(self, name: str, mapping: Mapping[str, Meaning]) -> None:
        self.collector: Collector | None = Collector(
            path=name, kind=self.kind, mapping=mapping, make_builder=self._tap
        )

    def _tap(self) -> _Tap:
        self._taps.append(_Tap())
        return self._taps[-1]

    def feed(self, lines: Iterable[str]) -> None:
        """Raises MetricsFileError where the text cannot hold the metrics of a run."""
        for line in lines:
            self._add(records_of(parsed(line)))

    def _add(self, records: Iterable[Mapping[str, object]]) -> None:
        assert self.collector is not None
        for record in records:
            self.collector.add(record)

    @property
    def is_settled(self) -> bool:
        """Rows that follow will not change what was told of earlier ones."""
        return True

    def close_open(self) -> None:
        """Nothing follows what the last lines began."""

    def rows(self) -> list[Row]:
        """Those since the last `forget`."""
        builder = None if self.collector is None else self.collector.settle()
        return builder.rows if isinstance(builder, _Tap) else []

    def forget(self) -> None:
        """The rows so far were taken."""
        for tap in self._taps:
            tap.rows.clear()


class _Csv(_Parser):
    """A table in text."""

    kind = "csv"

    def __init__(self, name: str, mapping: Mapping[str, Meaning], dialect: Dialect) -> None:
        super().__init__(name, mapping)
        self._text = DelimitedText(dialect, name)

    def feed(self, lines: Iterable[str]) -> None:
        header = ["" for _ in range(self._text.dialect.num_before + 1)]
        self._add(self._text.records(itertools.chain(header, lines)))


class _Log(_Parser):
    """What a trainer printed."""

    def _begin(self, name: str, mapping: Mapping[str, Meaning]) -> None:
        self.collector = None
        self._log = ConsoleLog(path=name, mapping=mapping, make_builder=self._tap)
        self._grammar = ""
        """The one whose rows are taken; empty while that is not settled."""

    def feed(self, lines: Iterable[str]) -> None:
        may_say = _MAY_SAY.get(self._grammar, _MAY_SAY.get(self._grammar.partition(" ")[0]))
        self._log.feed(lines if may_say is None else filter(may_say.search, lines))
        self._choose()
        if not self._grammar and len(self.rows()) >= _MIN_ROWS:
            self._grammar = self._log.leader() or ""

    def close_open(self) -> None:
        self._log.close_open()
        self._choose()

    def _choose(self) -> None:
        grammar = self._grammar or self._log.leader()
        self.collector = None if grammar is None else self._log.collector(grammar)

    @property
    def is_settled(self) -> bool:
        return bool(self._grammar)


def _parser_of(lines: Sequence[str], name: str, mapping: Mapping[str, Meaning]) -> _Parser | None:
    """A parser that has read these lines, the beginning of a text; None for a whole document."""
    start = next((line for line in lines if line.strip()), "").lstrip()
    parser: _Parser
    if start[:1] in ("{", "["):
        value = parsed(start)
        if isinstance(value, dict) and not is_notebook(value):
            if len(lines) == 1 and len(records_of(value, is_only=True)) > 1:
                return None  # one object with rows inside, such as a trainer's state
            parser = _Parser(name, mapping)
            parser.feed(lines)
            return parser
        if isinstance(value, list) or next(documents("\n".join(lines)), None) is not None:
            return None
    dialect = dialect_of(list(lines[:NUM_SAMPLED]))
    log = _Log(name, mapping)
    if dialect is None or dialect.num_before > 0 or dialect.delimiter == "|":
        log.feed(lines)
        return log
    parser = _Csv(name, mapping, dialect)
    try:
        parser.feed(lines[1:])
    except csv.Error:
        log.feed(lines)
        return log
    if parser.collector is not None and parser.collector.known:
        return parser
    log.feed(lines)
    log.close_open()
    return parser if log.collector is None else log


@dataclass(slots=True)
class TextMetrics:
    """The rows of one growing text."""

    name: str
    mapping: Mapping[str, Meaning] = field(default_factory=dict)
    is_document: bool = False
    """It is one JSON document, to be read whole."""
    _young: list[str] | None = field(default_factory=list)
    """All lines, while they are few."""
    _size: int = 0
    _given: list[Row] = field(default_factory=list)
    """Rows of a young text that were given out."""
    _parser: _Parser | None = None

    def begin_again(self) -> None:
        """The text that follows is that of another file under the same name."""
        if self._young is not None:
            self._young, self._size, self._given = [], 0, []

    def feed(self, lines: Sequence[str]) -> None:
        """Raises MetricsFileError where the text cannot hold the metrics of a run."""
        if self._young is not None:
            num_young = 0
            while num_young < len(lines) and self._size <= YOUNG_BYTES:
                self._size += len(lines[num_young]) + 1
                num_young += 1
            self._young += lines[:num_young]
            if self._size <= YOUNG_BYTES:
                return
            self._read_young()
            if self._parser is None:
                return
            self._young, lines = None, lines[num_young:]
        assert self._parser is not None
        for start in range(0, len(lines), _CHUNK_LINES):
            self._parser.feed(lines[start : start + _CHUNK_LINES])

    def _read_young(self) -> None:
        assert self._young is not None
        self._parser = _parser_of(self._young, self.name, self.mapping)
        self.is_document = self._parser is None

    def rows(self, *, is_quiet: bool) -> tuple[list[Row], bool]:
        """New rows, and whether they are all rows of the text once more, read in another way.

        Args:
            is_quiet: nothing follows what the last lines began.

        Raises:
            MetricsFileError: the text cannot hold the metrics of a run.
        """
        if self._young is not None:
            self._read_young()
        parser = self._parser
        if parser is None:
            return [], False
        if is_quiet:
            parser.close_open()
        rows = parser.rows()
        if parser.collector is not None and parser.collector.counts_rows:
            # What transformers prints behind the last step would be counted as one.
            rows = [row for row in rows if "train_runtime" not in row[1]]
        given, self._given = self._given, list(rows)
        is_again = rows[: len(given)] != given
        new = rows if is_again else rows[len(given) :]
        if self._young is None and parser.is_settled:
            parser.forget()
            self._given = []
        return list(new), is_again
