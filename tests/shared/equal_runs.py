"""Whether two runs hold the same rows, wherever they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from echoscope.store.reader import RunReader, open_run
from echoscope.store.schema import TABLES

OWN = ("path", "updated_at")
"""Columns that say where a run lies."""


def content(run: RunReader) -> dict[str, Any]:
    """Every row of every table."""
    out = {}
    for table in TABLES:
        rows = run.sql(f"SELECT * FROM {table} ORDER BY ALL").to_pylist()
        out[table] = [{k: v for k, v in row.items() if k not in OWN} for row in rows]
    return out


def assert_equal_runs(run: Path, copy: str | Path) -> None:
    ours, theirs = content(open_run(copy)), content(open_run(run))
    for table in TABLES:
        assert repr(ours[table]) == repr(theirs[table]), table
