"""Records of metrics in JSON: lines, arrays, trainer states, columns, notebooks."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

from ..foreign_names import meaning_of, step_column
from ..records import MAX_DEPTH, flat

Record = dict[str, Any]
_DECODER = json.JSONDecoder()
_STEP_KEY = re.compile(r"(?:step|iter|iteration|epoch|checkpoint)?[-_ ]?(\d{1,15})", re.IGNORECASE)
_HISTORIES = ("log_history", "history", "logs", "metrics", "records", "steps", "rows", "data")
"""Where documents keep their rows, the likeliest first."""
_CURVE_VALUES = ("values", "value", "y", "data", "vals")
_CURVE_STEPS = ("steps", "step", "x", "iterations", "epochs", "episodes")
MAX_GROUPS = 64
"""Groups of a list that are looked into."""


def parsed(text: str) -> Any:
    """The value of a JSON text; None where it is none (or nested too deeply)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def documents(text: str) -> Iterator[Any]:
    """JSON values that follow each other, each over any number of lines; stops at what is none."""
    place = 0
    while place < len(text):
        gap = re.compile(r"[\s,\x00-\x1f]*").match(text, place)
        place = gap.end() if gap else place
        if place >= len(text):
            return
        try:
            value, place = _DECODER.raw_decode(text, place)
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
        tables = (_of_columns(group), _of_steps(group), _of_split(group), _of_points(group))
        out += [rows for rows in tables if len(rows) > 1]
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
    """Rows, the points of one metric, or a header with rows of cells."""
    rows = [flat(value) for value in values if isinstance(value, dict)]
    if rows:
        return rows
    if points := _points(values):
        return [{"step": step, name: value} for step, value in points]
    return _of_cells(values[0], values[1:]) if values else []


def _of_cells(head: Any, rows: Any) -> list[Record]:
    is_head = isinstance(head, list) and bool(head) and all(isinstance(c, str) for c in head)
    if not is_head or not isinstance(rows, list):
        return []
    return [dict(zip(head, row, strict=False)) for row in rows if isinstance(row, list)]


def _of_split(group: Mapping[str, Any]) -> list[Record]:
    """pandas' `{"columns": [...], "data": [[...], ...]}`, and `{"header": ..., "rows": ...}`."""
    names = _first_of(group, ("columns", "header", "headers", "fields", "names", "keys"))
    return _of_cells(names, _first_of(group, ("data", "rows", "values", "records")))


def _of_steps(group: Mapping[str, Any]) -> list[Record]:
    """`{"10": {"reward": 0.1}, "20": {"reward": 0.2}}`."""
    out = []
    for key, value in group.items():
        match = _STEP_KEY.fullmatch(str(key))
        if not match or not isinstance(value, dict):
            return []
        out.append({"step": int(match[1]), **flat(value)})
    return out


def _of_columns(group: Mapping[str, Any]) -> list[Record]:
    """`{"steps": [1, 2], "reward": [0.1, 0.2]}`, groups of such, and pandas' form of the same,
    `{"reward": {"0": 0.1, "1": 0.2}}`.

    Lists of another length than the step's (or than most) are left out.
    """
    columns: dict[str, list[Any]] = {}
    waiting: list[tuple[str, Any, int]] = [(str(k), v, 0) for k, v in reversed(list(group.items()))]
    while waiting:
        name, value, depth = waiting.pop()
        if _is_numbers(value) and len(value) > 1:
            columns[name] = value
        if not isinstance(value, dict) or not value or depth >= MAX_DEPTH:
            continue
        if len(value) <= 3 and _first_of(value, _CURVE_STEPS) is not None and _points(value):
            continue
        has_groups = any(isinstance(v, dict | list) for v in value.values())
        if not has_groups and all(str(k).isdigit() for k in value):
            columns[name] = list(value.values())
        else:
            waiting += [(f"{name}/{k}", v, depth + 1) for k, v in reversed(value.items())]
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
    """Metrics with a step for each of their values, by name or in a list with names."""
    series = [(str(name), value) for name, value in group.items()]
    for many in group.values():
        for one in many if isinstance(many, list) else ():
            label = _first_of(one, ("name", "metric", "tag", "key", "label", "title"))
            if isinstance(label, str):
                series.append((label, one))
    rows: dict[Any, Record] = {}
    for name, value in series:
        for step, number in _points(value):
            rows.setdefault(step, {"step": step})[name] = number
    return [rows[step] for step in sorted(rows)]


def _points(value: Any) -> list[tuple[float, Any]]:
    """Steps and values of one metric, in any of their forms; empty where it is none of them.

    `[[1, 0.1], ...]`, TensorBoard's `[[time, 1, 0.1], ...]`, `[{"step": 1, "value": 0.1}, ...]` and
    `{"steps": [1, ...], "values": [0.1, ...]}`.
    """
    points: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        numbers, steps = _first_of(value, _CURVE_VALUES), _first_of(value, _CURVE_STEPS)
        if _is_numbers(numbers) and len(numbers) > 1:
            is_paired = _is_numbers(steps) and len(steps) == len(numbers)
            points = list(zip(steps if is_paired else itertools.count(1), numbers, strict=False))
    elif isinstance(value, list) and len(value) > 1 and isinstance(value[0], list):
        if all(_is_numbers(p) and len(p) == len(value[0]) for p in value) and len(value[0]) in (
            2,
            3,
        ):
            points = [(point[-2], point[-1]) for point in value]
    elif isinstance(value, list) and value and isinstance(value[0], dict) and "value" in value[0]:
        step = step_column(value[0])
        rows = [row for row in value if isinstance(row, dict)] if step is not None else []
        points = [(row.get(step), row.get("value")) for row in rows]
    return [(step, number) for step, number in points if isinstance(step, int | float)]


def _first_of(group: Any, names: tuple[str, ...]) -> Any:
    return next((group[n] for n in names if n in group), None) if isinstance(group, dict) else None


class _Table(HTMLParser):
    """Cells of the tables in a notebook's output."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._is_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        self._is_cell = tag in ("td", "th")
        if self._is_cell and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_cell = self._is_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._is_cell and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


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


def table_lines(html: str) -> Iterator[str]:
    """Rows of an HTML table as `| a | b |`.

    >>> list(table_lines("<table><tr><th>Step</th><th>reward</th></tr></table>"))
    ['| Step | reward |']
    """
    table = _Table()
    table.feed(html)
    for row in table.rows:
        if row:
            yield f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in row)} |"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
