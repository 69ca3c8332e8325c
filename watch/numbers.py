"""Rows of metrics in a file of text that grows: JSON lines, CSV, or what a trainer printed.

While a file is short, all of it is read again at each change, so that what it is, which grammar its
lines have and which field counts the steps are told from all that is there. Then what was told
holds, and only new lines are read.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

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

from .window import Row

YOUNG_BYTES = 256 << 10
MIN_ROWS = 8
MAX_WAITING = 1_000_000
"""Rows that may wait to be handed on: more than one look can bring."""
_CHUNK_LINES = 2_000
_MAY_SAY = {
    "dashes": re.compile(r"step:"),
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
        if len(self.rows) < MAX_WAITING:
            self.rows.append((int(step), values, weight))

    @property
    def num_rows(self) -> int:
        return self._num


class Parser(Protocol):
    """Takes lines in and gives rows of metrics out."""

    kind: str

    def feed(self, lines: Iterable[str]) -> None: ...

    def rows(self, *, is_quiet: bool) -> list[Row]:
        """Rows since the last `forget`. `is_quiet`: nothing follows what the last lines began."""

    def forget(self) -> None:
        """The rows so far were taken."""

    @property
    def is_settled(self) -> bool:
        """Rows that follow will not change what was told of earlier ones."""

    @property
    def counts_rows(self) -> bool:
        """No step is written: rows are counted."""


class _Collected:
    """Rows of one collector."""

    def __init__(self, kind: str, name: str, mapping: Mapping[str, Meaning]) -> None:
        self.kind = kind
        self.collector = Collector(path=name, kind=kind, mapping=mapping, make_builder=_Tap)

    is_settled = True

    def rows(self, *, is_quiet: bool) -> list[Row]:
        return _rows_of(self.collector)

    def forget(self) -> None:
        self.rows(is_quiet=False).clear()

    @property
    def counts_rows(self) -> bool:
        return self.collector.counts_rows


class _Json(_Collected):
    """JSON lines."""

    def __init__(self, name: str, mapping: Mapping[str, Meaning]) -> None:
        super().__init__("json", name, mapping)

    def feed(self, lines: Iterable[str]) -> None:
        for line in lines:
            for record in records_of(parsed(line)):
                self.collector.add(record)


class _Csv(_Collected):
    """A table in text."""

    def __init__(self, name: str, mapping: Mapping[str, Meaning], dialect: Dialect) -> None:
        super().__init__("csv", name, mapping)
        self._text = DelimitedText(dialect, name)

    def feed(self, lines: Iterable[str]) -> None:
        header = ["" for _ in range(self._text.dialect.num_before + 1)]
        for record in self._text.records(itertools.chain(header, lines)):
            self.collector.add(record)


class _Log:
    """What a trainer printed."""

    kind = "log"

    def __init__(self, name: str, mapping: Mapping[str, Meaning], grammar: str = "") -> None:
        self._taps: list[_Tap] = []
        self._log = ConsoleLog(path=name, mapping=mapping, make_builder=self._tap)
        self.grammar = grammar
        """The one whose rows are taken; empty while that is not settled."""

    def feed(self, lines: Iterable[str]) -> None:
        may_say = _MAY_SAY.get(self.grammar)
        self._log.feed(lines if may_say is None else filter(may_say.search, lines))

    def rows(self, *, is_quiet: bool) -> list[Row]:
        if is_quiet:
            self._log.close_open()
        collector = self._leading()
        return [] if collector is None else _rows_of(collector)

    def _tap(self) -> _Tap:
        self._taps.append(_Tap())
        return self._taps[-1]

    def forget(self) -> None:
        for tap in self._taps:
            tap.rows.clear()

    @property
    def is_settled(self) -> bool:
        return bool(self.grammar)

    def _leading(self) -> Collector | None:
        grammar = self.grammar or self._log.leader()
        return None if grammar is None else self._log.collector(grammar)

    def settle(self) -> None:
        """Once a grammar has `MIN_ROWS`, it is the log's."""
        if not self.grammar and len(self.rows(is_quiet=False)) >= MIN_ROWS:
            self.grammar = self._log.leader() or ""

    @property
    def counts_rows(self) -> bool:
        collector = self._leading()
        return collector is not None and collector.counts_rows


def _rows_of(collector: Collector) -> list[Row]:
    builder = collector.settle()
    return builder.rows if isinstance(builder, _Tap) else []


def parser_of(lines: Sequence[str], name: str, mapping: Mapping[str, Meaning]) -> Parser | None:
    """A parser that has read these lines, the beginning of a file; None for a whole document."""
    start = next((line for line in lines if line.strip()), "").lstrip()
    parser: Parser
    if start[:1] in ("{", "["):
        value = parsed(start)
        if isinstance(value, dict) and not is_notebook(value) and len(lines) > 0:
            if len(lines) == 1 and len(records_of(value, is_only=True)) > 1:
                return None  # one object with rows inside, such as a trainer's state
            parser = _Json(name, mapping)
            parser.feed(lines)
            return parser
        if isinstance(value, list) or _is_document(lines):
            return None
    dialect = dialect_of(list(lines[:NUM_SAMPLED]))
    if dialect is not None and dialect.num_before == 0 and dialect.delimiter != "|":
        parser = _Csv(name, mapping, dialect)
        try:
            parser.feed(lines[1:])
        except csv.Error:
            parser = _Log(name, mapping)
            parser.feed(lines)
            return parser
        if parser.collector.known or not _has_log(lines, name, mapping):
            return parser
    parser = _Log(name, mapping)
    parser.feed(lines)
    return parser


def _is_document(lines: Sequence[str]) -> bool:
    return next(documents("\n".join(lines)), None) is not None


def _has_log(lines: Sequence[str], name: str, mapping: Mapping[str, Meaning]) -> bool:
    log = ConsoleLog(path=name, mapping=mapping)
    log.feed(lines)
    return log.best() is not None


def _is_summary(row: Row, parser: Parser) -> bool:
    """What transformers prints behind the last step: no step, though it would be counted as one."""
    return parser.counts_rows and "train_runtime" in row[1]


@dataclass(slots=True)
class TextNumbers:
    """The rows of one growing text."""

    name: str
    mapping: Mapping[str, Meaning] = field(default_factory=dict)
    grammar: str = ""
    """Of a log, once it is settled."""
    _young: list[str] | None = field(default_factory=list)
    _size: int = 0
    _given: list[Row] = field(default_factory=list)
    """Rows of a young text that were given out."""
    _parser: Parser | None = None
    is_document: bool = False
    """It is one JSON document, to be read whole."""

    @property
    def is_young(self) -> bool:
        return self._young is not None

    @property
    def counts_rows(self) -> bool:
        return self._parser is not None and self._parser.counts_rows

    def begin_again(self) -> None:
        """The text that follows is that of another file under the same name."""
        if self._young is not None:
            self._young, self._size, self._given = [], 0, []

    def feed(self, lines: Sequence[str]) -> None:
        """Raises MetricsFileError where the text cannot hold the metrics of a run."""
        if self._young is not None:
            place = 0
            while place < len(lines) and self._size <= YOUNG_BYTES:
                self._size += len(lines[place]) + 1
                place += 1
            self._young += lines[:place]
            if self._size <= YOUNG_BYTES:
                return
            lines = lines[place:]
            if not self._grow_up():
                return
        assert self._parser is not None
        for start in range(0, len(lines), _CHUNK_LINES):
            self._parser.feed(lines[start : start + _CHUNK_LINES])
            self._settle()

    def _grow_up(self) -> bool:
        """From now on only new lines are read; not where the text is one document."""
        assert self._young is not None
        self._parser = parser_of(self._young, self.name, self.mapping)
        self.is_document = self._parser is None
        if not self.is_document:
            self._young = None
            self._settle()
        return not self.is_document

    def _settle(self) -> None:
        if isinstance(self._parser, _Log) and not self.grammar:
            self._parser.settle()
            self.grammar = self._parser.grammar

    def rows(self, *, is_quiet: bool) -> tuple[list[Row], bool]:
        """New rows, and whether they are all rows of the text once more, read in another way.

        Raises:
            MetricsFileError: the text cannot hold the metrics of a run.
        """
        if self._young is not None:
            self._parser = parser_of(self._young, self.name, self.mapping)
            self.is_document = self._parser is None
        parser = self._parser
        if parser is None:
            return [], False
        rows = [row for row in parser.rows(is_quiet=is_quiet) if not _is_summary(row, parser)]
        given, self._given = self._given, rows
        is_again = rows[: len(given)] != given
        new = rows if is_again else rows[len(given) :]
        if self._young is None and parser.is_settled:
            parser.forget()
            self._given = []
        return new, is_again

    def resume(self, head: Sequence[str], context: Sequence[str], grammar: str) -> None:
        """Go on with a long text: its beginning tells what it is, the context what was begun."""
        parser: Parser | None = _Log(self.name, self.mapping, grammar) if grammar else None
        if isinstance(parser, _Log):
            parser.feed(head)
        else:
            parser = parser_of(head, self.name, self.mapping)
        self._parser, self.is_document = parser, parser is None
        if parser is None:
            return
        self._young, self.grammar = None, grammar
        parser.feed(context)
        parser.rows(is_quiet=False)
        parser.forget()


def lines_of_text(path: Path, start: int, size: int, encoding: str) -> list[str]:
    """Whole lines of a part of a file."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(size)
    lines = data.decode(encoding, errors="replace").splitlines()
    return lines[1:] if start else lines
