"""Records of metrics in JSON: lines, arrays, trainer states, columns, notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

from ..foreign_names import meaning_of, step_column
from ..records import MAX_DEPTH, Collector, Reading, flat, leaves

Record = dict[str, Any]
_DECODER = json.JSONDecoder()
_NO_GAP = re.compile(r"[^\s,\x00-\x1f]")
"""Where a value begins."""
_HISTORIES = ("log_history", "history", "logs", "metrics", "records", "steps", "rows", "data")
"""Where documents keep their rows, the likeliest first."""
MAX_GROUPS = 64


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text; None where it is none (or nested too deeply)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def documents(text: str) -> Iterator[Any]:
    """JSON values that follow each other, each over any number of lines; stops at what is none."""
    offset = 0
    while start := _NO_GAP.search(text, offset):
        try:
            value, offset = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            return
        yield value


def is_notebook(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("cells"), list)


def records_of(document: Any, *, name: str = "value", is_only: bool = False) -> list[Record]:
    """The records of metrics that a JSON value holds; empty where it holds none.

    Args:
        name: What a series without a name is called.
        is_only: The file holds nothing else, so the records are somewhere inside.
    """
    if isinstance(document, list):
        is_series = is_only and len(document) > 1 and _is_numbers(document)
        return [{name: value} for value in document] if is_series else _of_list(document, name)
    if not isinstance(document, dict):
        return []
    own = flat(document)
    best = max(_tables_inside(document), key=_worth, default=[])
    if best and (is_only or not _known(own)) and _worth(best) > (0, 0):
        return best
    return [own] if own else []


def _known(record: Mapping[str, Any]) -> int:
    return sum(
        meaning_of(name) is not None for name, value in record.items() if not isinstance(value, str)
    )


def _worth(rows: list[Record]) -> tuple[int, int]:
    """How many known metrics rows have, and how many of them there are."""
    names = {name: row[name] for row in rows[:50] for name in row}
    return _known(names), len(rows)


def _tables_inside(document: Mapping[str, Any]) -> list[list[Record]]:
    """Every way to read the document, or a part of it, as rows."""
    out: list[list[Record]] = []
    waiting: list[tuple[Mapping[str, Any], int]] = [(document, 0)]
    while waiting:
        group, depth = waiting.pop()
        out += [rows for rows in (_of_columns(group), _of_points(group)) if len(rows) > 1]
        keys = sorted(group, key=lambda k: _HISTORIES.index(k) if k in _HISTORIES else 99)
        for key in keys:
            value = group[key]
            if isinstance(value, dict) and depth < MAX_DEPTH:
                waiting.append((value, depth + 1))
            if not isinstance(value, list) or _is_numbers(value):
                continue
            if depth < MAX_DEPTH and not (isinstance(value[0], dict) and _known(flat(value[0]))):
                # A list of runs, say, each with rows of its own.
                waiting += [(v, depth + 1) for v in value[:MAX_GROUPS] if isinstance(v, dict)]
            rows = _of_list(value, str(key))
            if len(rows) > 1 or (key in _HISTORIES and rows and _known(rows[0])):
                out.append(rows)
    return out


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, int | float) or v is None for v in value)


def _of_list(values: list[Any], name: str) -> list[Record]:
    """Rows, or the points of one metric."""
    points = _points(values)
    if points:
        return [{"step": step, name: value} for step, value in points]
    return [flat(value) for value in values if isinstance(value, dict)]


def _of_columns(group: Mapping[str, Any]) -> list[Record]:
    """`{"steps": [1, 2], "reward": [0.1, 0.2]}`, and groups of such.

    Lists of another length than the step's (or than most) are left out.
    """
    columns = {name: v for name, v in leaves(group) if _is_numbers(v) and len(v) > 1}
    if not columns:
        return []
    if len({name.partition("/")[0] for name in columns}) == 1 and all("/" in n for n in columns):
        columns = {name.partition("/")[2]: values for name, values in columns.items()}
    step = step_column(columns)
    lengths = [len(values) for values in columns.values()]
    length = len(columns[step]) if step else max(lengths, key=lengths.count)
    same = {name: values for name, values in columns.items() if len(values) == length}
    return [dict(zip(same, row, strict=True)) for row in zip(*same.values(), strict=True)]


def _of_points(group: Mapping[str, Any]) -> list[Record]:
    """Metrics by name, each a list of `{"step": 1, "value": 0.1}`."""
    rows: dict[Any, Record] = {}
    for name, value in group.items():
        for step, number in _points(value):
            rows.setdefault(step, {"step": step})[str(name)] = number
    return [rows[step] for step in sorted(rows)]


def _points(value: Any) -> list[tuple[float, Any]]:
    """Steps and values of one metric; empty where it is none."""
    first = value[0] if isinstance(value, list) and value else None
    if not isinstance(first, dict) or "value" not in first or len(first) > 3:
        return []
    step = step_column(first)
    rows = [row for row in value if isinstance(row, dict)] if step is not None else []
    points = [(row.get(step), row.get("value")) for row in rows]
    return [(step, number) for step, number in points if isinstance(step, int | float)]


def notebook_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """What a notebook's cells printed, line by line; a table as rows with `|` between its cells."""
    for cell in document["cells"]:
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else ():
            if not isinstance(output, dict):
                continue
            data = output.get("data")
            data = data if isinstance(data, dict) else {}
            html = _text(data.get("text/html"))
            if "<table" in html:
                yield from table_lines(html)
                continue
            text = _text(output.get("text")) or _text(data.get("text/plain"))
            yield from re.split(r"[\r\n]+", text)


_ROW = re.compile(r"<tr\b", re.IGNORECASE)
_CELL = re.compile(r"<t[dh]\b[^>]*>([^<]*)", re.IGNORECASE)
"""A cell of a table in HTML, and its text."""


def table_lines(html: str) -> Iterator[str]:
    """Rows of an HTML table as `| a | b |`.

    >>> list(table_lines("<table><tr><th>Step</th><th>reward</th></tr></table>"))
    ['| Step | reward |']
    """
    for row in _ROW.split(html)[1:]:
        cells = [" ".join(unescape(text).split()).replace("|", "/") for text in _CELL.findall(row)]
        if cells:
            yield f"| {' | '.join(cells)} |"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


class JsonLinesForm:
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
