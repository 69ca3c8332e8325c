"""CSV for spreadsheets: trajectories, turns and steps, each a file."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from echoscope.text.strict_json import json_value

from ...schema import TABLES
from ..format import Format, Options, Written
from ..source import RunSource

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet, and a formula can fetch addresses."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SLICE = 256
_ORDERS = {
    "trajectories": ("attempt", "id"),
    "turns": ("attempt", "trajectory_id", "turn"),
}


class _Table:
    """One CSV file with the columns of a table of the store."""

    def __init__(self, file: TextIO, name: str) -> None:
        self.num_guarded = 0
        self.num_replaced = 0
        self.num_rows = 0
        self._writer = csv.writer(file, lineterminator="\r\n")
        self._writer.writerow(TABLES[name].column_names)

    def add(self, rows: pa.Table) -> None:
        for start in range(0, rows.num_rows, _SLICE):
            part = rows.slice(start, _SLICE).to_pylist(maps_as_pydicts="lossy")
            self._writer.writerows([self._cell(value) for value in row.values()] for row in part)
        self.num_rows += rows.num_rows

    def _cell(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        text = value if isinstance(value, str) else json.dumps(json_value(value))
        clean, count = _CONTROLS.subn("\ufffd", text)
        self.num_replaced += count > 0
        if clean.startswith(_FORMULA):
            self.num_guarded += 1
            return f"'{clean}"
        return clean


def _write(source: RunSource, path: Path, options: Options) -> Written:
    path.mkdir()
    tables: dict[str, _Table] = {}
    with (
        _opened(path, "trajectories") as trajectories,
        _opened(path, "turns") as turns,
        _opened(path, "steps") as steps,
    ):
        tables["trajectories"] = _Table(trajectories, "trajectories")
        tables["turns"] = _Table(turns, "turns")
        tables["steps"] = _Table(steps, "steps")
        for step, keys in source.by_step():
            for name, order in _ORDERS.items():
                rows = source.rows_of(name, step, keys)
                tables[name].add(rows.sort_by([(column, "ascending") for column in order]))
            source.done(len(keys))
        query = "SELECT * FROM steps WHERE step BETWEEN $1 AND $2 ORDER BY step"
        tables["steps"].add(source.reader.sql(query, list(source.steps)))
    return Written(num_rows=tables["trajectories"].num_rows, notes=list(_notes(tables.values())))


def _opened(folder: Path, name: str) -> TextIO:
    # With the mark, spreadsheets read UTF-8 as UTF-8.
    return (folder / f"{name}.csv").open("x", encoding="utf-8-sig", newline="")


def _notes(tables: Iterable[_Table]) -> Sequence[str]:
    guarded = sum(table.num_guarded for table in tables)
    replaced = sum(table.num_replaced for table in tables)
    notes = []
    if guarded:
        notes.append(
            f"{guarded} texts begin with =, +, -, @, a tab or a line end; an apostrophe stands "
            "before them, so that no spreadsheet runs them as formulas."
        )
    if replaced:
        notes.append(f"{replaced} texts hold control characters; U+FFFD stands in their place.")
    return notes


CSV = Format(
    name="csv",
    noun="episode",
    write=_write,
    is_folder=True,
    leaves_out="token ids and log-probs, pictures, diagnostic arrays, alarms, settings, "
    "checkpoints, and metrics other than the columns of steps.csv",
)
