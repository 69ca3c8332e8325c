"""Read a metrics file into a `MetricTable`: CSV, JSON, a notebook, a trainer's console log, or a
binary file of a tracker.

What a file is, is told from its content. Nothing in it is trusted: it is parsed as text, never
evaluated. Memory stays bounded whatever the number of rows.
"""

from __future__ import annotations

import csv
import io
import itertools
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from echoscope.store.importers.lines import UTF16, conversion, wide_encoding
from echoscope.store.importers.packed_file import ERRORS, opened, packing_of
from echoscope.store.importers.spooled.trackio_traces import is_sqlite

from .foreign_names import OUTCOMES, Meaning
from .forms.console_log import ConsoleLog
from .forms.delimited_text import NUM_SAMPLED, Columns, Dialect, dialect_of
from .forms.json_records import JsonLinesForm, documents, is_notebook, notebook_lines, parsed
from .forms.tensorboard import is_events, read_events
from .forms.trackio import read_trackio
from .forms.wandb_file import is_wandb, read_wandb_table
from .records import Collector, MetricsFileError, Reading, is_named, no_such_run, refuse_export
from .table import MetricTable

MAX_LINE_CHARS = 32_000_000
MAX_DOCUMENT_BYTES = 256 << 20
"""A JSON document over several lines is read at once."""
_SNIFF_BYTES = 262_144

Lines = Callable[[], Iterator[str]]
"""A text that can be read again and again."""

NO_TEXT = "is binary, and not of TensorBoard, trackio or W&B"
NOT_METRICS = (
    "holds no metrics of a run: neither a CSV header, nor JSON, nor lines with a known name such "
    "as `step:1 - reward:0.5`, `{'reward': 0.5}` or `reward=0.5`"
)
"""Why a file is no metrics; the same file may hold rollouts (see `unread.py`)."""

_BINARY_FORMS = (
    (is_events, read_events),
    (is_sqlite, read_trackio),
    (is_wandb, read_wandb_table),
)
"""How the files of TensorBoard, trackio and W&B are told by their first bytes, and read."""


def read_metrics(
    path: str | Path, mapping: Mapping[str, Meaning] | None = None, *, run: str = ""
) -> MetricTable:
    """Read a metrics file.

    Args:
        path: A CSV of any dialect; JSON lines, an array, a document of columns, TRL's
            `trainer_state.json` or a notebook with its outputs; or what a trainer printed.
        mapping: Column name -> what it is, where its name does not say so (see `parse_map`).
        run: Which run to read of a file that holds several; "" for the one with most rows.

    Raises:
        MetricsFileError: not such a file, no numbers in it, or no run of this name; one line.
        OSError: it cannot be read.
    """
    path, mapping = Path(path), mapping or {}
    _must_be_a_file(path)
    try:
        table = _read_bytes(path, Reading(str(path), mapping, run))
    except csv.Error as error:
        raise MetricsFileError(f"{path}: the CSV cannot be read: {error}") from None
    except ERRORS as error:
        if not packing_of(path):
            raise
        raise MetricsFileError(f"{path}: cannot be unpacked: {error}") from None
    if run and not is_named(run, table.run):
        raise MetricsFileError(f"{path}: {no_such_run(run, table.runs)}")
    return table


def _read_bytes(path: Path, reading: Reading) -> MetricTable:
    with opened(path) as file:
        head = file.read(_SNIFF_BYTES)
    if not head.strip():
        raise MetricsFileError(f"{path}: is empty")
    for matches, read in _BINARY_FORMS:
        if matches(head):
            return read(reading)
    encoding = "utf-16" if head.startswith(UTF16) else "utf-8-sig"
    if wide := wide_encoding(head):
        raise MetricsFileError(f"{path}: seems to be text in {wide}: {conversion(wide)}")
    if b"\x00" in head and encoding != "utf-16":
        raise MetricsFileError(f"{path}: {NO_TEXT}")

    damage = ""

    def lines() -> Iterator[str]:
        nonlocal damage
        with opened(path) as file:
            try:
                yield from _lines(file, encoding)
            except ERRORS as error:
                if not packing_of(path):
                    raise
                damage = str(error)

    try:
        table = _read(path, reading, lines)
    except MetricsFileError:
        if damage:
            raise MetricsFileError(f"{path}: cannot be unpacked: {damage}") from None
        raise
    if not damage:
        return table
    note = f"the file is damaged and was read up to the damage: {damage}"
    return replace(table, notes=(*table.notes, note))


def _must_be_a_file(path: Path) -> None:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise MetricsFileError(f"{path}: is a folder; name a metrics file or a run")
    if not stat.S_ISREG(mode):
        raise MetricsFileError(
            f"{path}: is a pipe or a device, which cannot be read twice; save it to a file first"
        )


def _read(path: Path, reading: Reading, lines: Lines) -> MetricTable:
    start = next((line for line in lines() if line.strip()), "").lstrip()
    table = _read_json(path, reading, lines, start) if start[:1] in ("{", "[") else None
    if table is not None:
        return table
    if path.suffix in (".yaml", ".yml"):
        raise MetricsFileError(f"{path}: is YAML; write its rows as JSON lines or CSV")
    reader = reader_of(reading, lines)
    if reader is None or (best := reader.best()) is None:
        raise MetricsFileError(f"{path}: {NOT_METRICS}")
    return best.finish()


def _read_json(path: Path, reading: Reading, lines: Lines, start: str) -> MetricTable | None:
    """The table of JSON: a value a line, or values that go over lines; None where it is none."""
    first, filled = parsed(start), (line for line in lines() if line.strip())
    if isinstance(first, dict):
        refuse_export(path, first)
    is_first_alone = sum(1 for _ in itertools.islice(filled, 2)) == 1
    values = _documents(lines) if first is None else [first] if is_first_alone else None
    if values and is_notebook(values[0]):
        log = ConsoleLog(reading, "notebook")
        log.feed(notebook_lines(values[0]))
        best = log.best()
        if best is None:
            raise MetricsFileError(f"{path}: the notebook has no saved output with metrics")
        return best.finish()
    reader = JsonLinesForm(reading, is_only=values is not None and len(values) == 1)
    if values is None:
        reader.feed(lines())
    else:
        reader.take(values)
    best = reader.best()
    return None if best is None else best.finish()


Reader = JsonLinesForm | Columns | ConsoleLog
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
        if is_plain and table.collector.known_keys & OUTCOMES:
            return table
        if not is_plain and not table.collector.known_keys:
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
    return len(log.known_keys) >= len(table.known_keys) + (not has_bars)


def _documents(lines: Lines) -> list[Any]:
    """JSON values over any number of lines; none of a text that is too large to be held."""
    text, size = [], 0
    for line in lines():
        text.append(line)
        size += len(line)
        if size > MAX_DOCUMENT_BYTES:
            return []
    return list(documents("\n".join(text)))


def _lines(file: BinaryIO, encoding: str) -> Iterator[str]:
    """Lines as text, also where a progress bar went back to the start of its line.

    The rest of an absurdly long line is dropped.
    """
    text = io.TextIOWrapper(file, encoding, errors="replace")
    while line := text.readline(MAX_LINE_CHARS):
        yield line.removesuffix("\n")
        while line and not line.endswith("\n"):
            line = text.readline(MAX_LINE_CHARS)
