"""CSV for spreadsheets: trajectories, turns and steps, each a file."""

from __future__ import annotations

import csv
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from echoscope.text.strict_json import json_value

from ...schema import TABLES
from ..format import ExportFormat, Written
from ..source import RunSource

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet, and a formula can fetch addresses."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SLICE = 256
_ORDERS = {
    "trajectories": ("attempt", "id"),
    "turns": ("attempt", "trajectory_id", "turn"),
}


def _add(writer: Any, rows: pa.Table) -> None:
    for start in range(0, rows.num_rows, _SLICE):
        part = rows.slice(start, _SLICE).to_pylist(maps_as_pydicts="lossy")
        writer.writerows([_cell(value) for value in row.values()] for row in part)


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(json_value(value))
    clean = _CONTROLS.sub("\ufffd", text)
    return f"'{clean}" if clean.startswith(_FORMULA) else clean


def _write(source: RunSource, path: Path) -> Written:
    path.mkdir()
    num_rows = 0
    with ExitStack() as files:
        writers = {}
        for name in (*_ORDERS, "steps"):
            # With the mark, spreadsheets read UTF-8 as UTF-8.
            file = (path / f"{name}.csv").open("x", encoding="utf-8-sig", newline="")
            writers[name] = csv.writer(files.enter_context(file), lineterminator="\r\n")
            writers[name].writerow(TABLES[name].column_names)
        for step, keys in source.by_step():
            for name, order in _ORDERS.items():
                rows = source.rows_of(name, step, keys)
                _add(writers[name], rows.sort_by([(column, "ascending") for column in order]))
                num_rows += rows.num_rows if name == "trajectories" else 0
            source.done(len(keys))
        query = "SELECT * FROM steps WHERE step BETWEEN $1 AND $2 ORDER BY step"
        _add(writers["steps"], source.reader.sql(query, list(source.steps)))
    return Written(num_rows=num_rows)


CSV = ExportFormat(
    name="csv",
    noun="episode",
    write=_write,
    is_folder=True,
    leaves_out="texts as they are (before what a spreadsheet would run as a formula stands an "
    "apostrophe, and U+FFFD for control characters), token ids and log-probs, pictures, diagnostic "
    "arrays, alarms, settings, checkpoints, and metrics other than the columns of steps.csv",
)
