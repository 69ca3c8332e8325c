"""Read a metrics file into a `MetricTable`: CSV, JSON lines, or a trainer's console log.

The kind is told from the content. Nothing in the file is trusted: it is parsed as text, never
evaluated. Memory stays bounded whatever the number of rows.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from .metric_names import Meaning, is_summary_column, step_column
from .metric_table import MetricTable, TableBuilder

MAX_LINE_CHARS = 4_000_000
MAX_COLUMNS = 5_000
_SNIFF_BYTES = 262_144
_MAX_STEP = 2**53

Mapped = Mapping[str, Meaning]


class MetricsFileError(ValueError):
    """A file that no run's metrics can be read from."""


def read_metrics(path: str | Path, mapping: Mapped | None = None) -> MetricTable:
    """Read a metrics file.

    Args:
        path: A CSV (also tab or semicolon separated), JSON lines (also verl's `{"step", "data"}`, a
            JSON array, or TRL's `trainer_state.json`), or a console log with lines such as
            `step:12 - key:value - key:np.float64(value)`.
        mapping: Column name -> what it is, where its name does not say so (see `parse_map`).

    Raises:
        MetricsFileError: not such a file, no step column, or no numbers; one line.
        OSError: it cannot be read.
    """
    path, mapping = Path(path), mapping or {}
    if path.is_dir():
        raise MetricsFileError(f"{path}: is a folder; name a metrics file or a run")
    with path.open("rb") as file:
        head = file.read(_SNIFF_BYTES)
    if not head.strip():
        raise MetricsFileError(f"{path}: is empty")
    if b"\x00" in head:
        raise MetricsFileError(f"{path}: is binary; CSV, JSON lines and console logs can be read")
    text = head.decode("utf-8-sig", errors="replace")
    reader: Callable[[Path, Mapped], MetricTable]
    if text.lstrip()[:1] in ("{", "[") and not _LOG_LINE.search(text):
        reader = _read_json
    elif _LOG_LINE.search(text):
        reader = _read_log
    else:
        reader = _read_csv
    table = reader(path, mapping)
    if not table.num_rows:
        raise MetricsFileError(f"{path}: no row with a step was found ({table.kind})")
    if not table.keys():
        raise MetricsFileError(f"{path}: {table.num_rows} steps, but no column holds numbers")
    return table


def to_number(value: Any) -> float:
    """A finite number as it stands; a written NaN or infinity as infinity; else NaN (absent).

    Trainers write NaN where a loss broke, and leave out what was not computed: they differ.
    """
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return math.inf
        return number if math.isfinite(number) else math.inf
    if not isinstance(value, str):
        return math.nan
    text = value.strip().lower()
    if text in ("true", "false"):
        return float(text == "true")
    try:
        number = float(text.replace("_", "x"))
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.inf


# --- CSV


def _read_csv(path: Path, mapping: Mapped) -> MetricTable:
    names, delimiter = _csv_header(path)
    with path.open("rb") as file:
        may_span_lines = b'"' in file.read(_SNIFF_BYTES)
    step_name = _find_step(path, names, mapping)
    skipped = 0

    def count_skipped(row: pa_csv.InvalidRow) -> str:
        nonlocal skipped
        skipped += 1
        return "skip"

    builder, lost = TableBuilder(), 0
    try:
        # Only numbers are read, so any byte may stand for itself: no text can be invalid.
        source = pa.transcoding_input_stream(pa.OSFile(str(path)), "latin-1", "utf-8")
        blocks = pa_csv.open_csv(
            source,
            read_options=pa_csv.ReadOptions(
                column_names=names, skip_rows=1, block_size=4 << 20, use_threads=False
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=may_span_lines,
                invalid_row_handler=count_skipped,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
        for batch in blocks:
            steps = _numbers(batch.column(names.index(step_name)))
            good = np.isfinite(steps) & (np.abs(steps) < _MAX_STEP)
            lost += int((~good).sum())
            columns = {
                name: _numbers(batch.column(index))
                for index, name in enumerate(names)
                if name != step_name and not is_summary_column(name)
            }
            matrix = np.column_stack([*columns.values()]) if columns else np.empty((len(steps), 0))
            builder.add_block(_whole(path, steps[good]), list(columns), matrix[good])
    except pa.ArrowInvalid as error:
        raise MetricsFileError(f"{path}: {' '.join(str(error).split())}") from None
    notes = [f"{skipped} lines with another number of cells were left out"] if skipped else []
    notes += [f"{lost} rows without a step were left out"] if lost else []
    return builder.build(kind="csv", path=str(path), mapping=mapping, notes=notes)


def _csv_header(path: Path) -> tuple[list[str], str]:
    with path.open("rb") as file:
        start = file.readline(MAX_LINE_CHARS).decode("utf-8-sig", errors="replace")
    line = re.split(r"[\r\n]", start, maxsplit=1)[0]
    delimiter = max(",\t;", key=line.count)
    if delimiter not in line:
        raise MetricsFileError(
            f"{path}: the first line is neither a CSV header, nor JSON, nor a trainer's step line"
        )
    try:
        cells = next(csv.reader([line], delimiter=delimiter))
    except csv.Error as error:
        raise MetricsFileError(f"{path}: the header cannot be read: {error}") from None
    if len(cells) > MAX_COLUMNS:
        raise MetricsFileError(f"{path}: {len(cells)} columns, but at most {MAX_COLUMNS} are read")
    return _distinct(cells), delimiter


def _distinct(cells: Sequence[str]) -> list[str]:
    names: list[str] = []
    for index, cell in enumerate(cells):
        name = cell.strip() or f"column {index + 1}"
        names.append(name if name not in names else f"{name} ({index + 1})")
    return names


def _numbers(column: pa.Array) -> NDArray[np.float64]:
    """Cells as numbers, with what `to_number` says of everything that is none."""
    trimmed = pc.utf8_trim_whitespace(column)
    blank = pc.equal(trimmed, "")
    try:
        values = pc.if_else(blank, None, trimmed).cast(pa.float64())
    except pa.ArrowInvalid:
        return _mixed_numbers(trimmed)
    numbers = np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)
    absent = np.asarray(blank.to_numpy(zero_copy_only=False), dtype=np.bool_)
    return np.where(absent, np.nan, np.where(np.isfinite(numbers), numbers, np.inf))


def _mixed_numbers(cells: pa.Array) -> NDArray[np.float64]:
    """Numbers among text: only cells that begin like one are looked at one by one."""
    likely = pc.match_substring_regex(
        cells, r"^[-+]?(\d|\.\d|nan|inf|true|false)", ignore_case=True
    )
    where = np.flatnonzero(np.asarray(likely.to_numpy(zero_copy_only=False), dtype=np.bool_))
    out = np.full(len(cells), np.nan)
    out[where] = [to_number(cell) for cell in cells.take(pa.array(where)).to_pylist()]
    return out


def _find_step(path: Path, names: Iterable[str], mapping: Mapped) -> str:
    names = list(names)
    mapped = [name for name, meaning in mapping.items() if meaning.key == "step"]
    for name in mapping:
        if name not in names:
            raise MetricsFileError(f"{path}: --map names the column {name!r}, which is not there")
    found = mapped[0] if mapped else step_column(names)
    if found is None:
        shown = ", ".join(itertools.islice(names, 6))
        raise MetricsFileError(
            f"{path}: no step column among {shown}; say which it is with --map NAME=step"
        )
    return found


def _whole(path: Path, steps: NDArray[np.float64]) -> NDArray[np.float64]:
    if (steps != np.floor(steps)).any():
        raise MetricsFileError(f"{path}: the step column holds fractions, so it counts no steps")
    return steps


# --- JSON


def _read_json(path: Path, mapping: Mapped) -> MetricTable:
    builder, bad, lost = TableBuilder(), 0, 0
    step_name: str | None = None
    for entry in _json_records(path):
        if entry is None:
            bad += 1
            continue
        flat = _flat(entry)
        if step_name is None or step_name not in flat:
            step_name = _step_name_of(flat, mapping) or step_name
        step = to_number(flat.pop(step_name, None)) if step_name else math.nan
        if not math.isfinite(step) or abs(step) >= _MAX_STEP or step != math.floor(step):
            lost += 1
            continue
        numbers = {name: to_number(value) for name, value in flat.items()}
        builder.add_row(step, {name: v for name, v in numbers.items() if not math.isnan(v)})
    if step_name is None:
        raise MetricsFileError(
            f"{path}: no step in any JSON record; say which field it is with --map NAME=step"
        )
    notes = [f"{bad} lines are not JSON objects and were left out"] if bad else []
    notes += [f"{lost} records without a whole step were left out"] if lost else []
    return builder.build(kind="jsonl", path=str(path), mapping=mapping, notes=notes)


def _step_name_of(flat: Mapping[str, Any], mapping: Mapped) -> str | None:
    mapped = [name for name, m in mapping.items() if m.key == "step" and name in flat]
    return mapped[0] if mapped else step_column(flat)


def _json_records(path: Path) -> Iterator[dict[str, Any] | None]:
    """Every record; None for a line that holds none."""
    with path.open("rb") as file:
        lines = _lines(file)
        first = next((line for line in lines if line.strip()), "")
        whole = _as_object(first)
        if whole is None or not isinstance(whole, dict | list):
            yield from _whole_document(path)
            return
        if isinstance(whole, list):
            yield from (entry if isinstance(entry, dict) else None for entry in whole)
        elif isinstance(whole.get("log_history"), list):
            yield from (e if isinstance(e, dict) else None for e in whole["log_history"])
        else:
            yield whole
        for line in lines:
            if line.strip():
                entry = _as_object(line)
                yield entry if isinstance(entry, dict) else None


def _whole_document(path: Path) -> Iterator[dict[str, Any] | None]:
    """A JSON document over several lines: an array of records, or TRL's trainer state."""
    limit = 64 << 20
    if path.stat().st_size > limit:
        raise MetricsFileError(f"{path}: its first line is not JSON, and it is no small document")
    document = _as_object(path.read_text(encoding="utf-8-sig", errors="replace"))
    if isinstance(document, dict):
        document = document.get("log_history")
    if not isinstance(document, list):
        raise MetricsFileError(f"{path}: neither JSON lines nor a JSON array of records")
    yield from (entry if isinstance(entry, dict) else None for entry in document)


def _as_object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """verl's `{"step", "data": {...}}` and nested groups, two levels deep, joined by `/`."""
    out: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, dict):
            prefix = "" if name in ("data", "metrics", "values") else f"{name}/"
            out.update({f"{prefix}{inner}": v for inner, v in value.items()})
        else:
            out[str(name)] = value
    return dict(itertools.islice(out.items(), MAX_COLUMNS))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines as text; the rest of an absurdly long line is dropped."""
    is_start = True
    while raw := file.readline(MAX_LINE_CHARS):
        if is_start:
            yield raw.decode("utf-8-sig", errors="replace")
        is_start = raw.endswith(b"\n")


# --- console logs

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STEP_LINE = re.compile(r"\bstep:\s*(\d{1,15}) - (?=[^\s:]+:)")
_LOG_LINE = re.compile(r"\bstep:\s*\d{1,15} - [^\s:]+:")
_NUMPY = re.compile(r"^(?:np\.|numpy\.)?(?:float|int|bool)\w*\((?P<inner>[^()]*)\)$")


def _read_log(path: Path, mapping: Mapped) -> MetricTable:
    builder = TableBuilder()
    with path.open("rb") as file:
        for line in _lines(file):
            found = parse_log_line(line)
            if found is not None:
                builder.add_row(*found)
    return builder.build(kind="log", path=str(path), mapping=mapping)


def parse_log_line(line: str) -> tuple[int, dict[str, float]] | None:
    """The step and numbers of one line as verl and RAGEN print it, or None.

    >>> parse_log_line("(TaskRunner pid=7) step:3 - actor/entropy:0.5 - x:np.float64(1e-3)")
    (3, {'actor/entropy': 0.5, 'x': 0.001})
    """
    text = _COLOUR.sub("", line)
    match = _STEP_LINE.search(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for part in text[match.end() :].strip().split(" - ")[:MAX_COLUMNS]:
        name, colon, written = part.rpartition(":")
        written = written.strip()
        wrapped = _NUMPY.match(written)
        number = to_number(wrapped["inner"] if wrapped else written)
        if colon and name.strip() and not math.isnan(number):
            values[name.strip()] = number
    return int(match[1]), values
