"""trackio's database: the table `metrics` with a row of JSON for each call of `trackio.log`.

The database is opened for reading only, by Python's own SQLite. It may be in use: what the trainer
has committed is read. Names of the columns are those of trackio 0.20 to 0.43.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from echoscope.store.importers.spooled.trackio_traces import columns_of, opened_database, reason_of
from echoscope.text.amounts import counted

from ..foreign_names import Meaning
from ..records import Collector, MetricsFileError, flat
from ..table import MetricTable
from .json_records import parsed

RUN, CLOCK = "run", "wall_time"
MAX_ROW_CHARS = 16 << 20
_NEEDED = frozenset({"run_name", "step", "metrics"})


def read_trackio(path: Path, mapping: Mapping[str, Meaning], run: str = "") -> MetricTable:
    """The metrics of a run of a trackio project.

    Raises:
        MetricsFileError: another program's database, a damaged or locked one, or no metrics.
        OSError: it cannot be read.
    """
    with path.open("rb"):
        pass  # SQLite says "unable to open database file", whatever is wrong
    collector = Collector(path=str(path), kind="trackio", mapping=mapping, run=run)
    damage = {"rows": 0}
    try:
        with opened_database(path) as database:
            for row in _rows(database, path, damage):
                collector.add(row)
            notes: list[str] = []
    except sqlite3.Error as error:
        if not collector.num_records:
            raise MetricsFileError(f"{path}: {reason_of(error)}") from None
        notes = [f"the database is damaged ({error}): what could be read before was"]
    if not collector.num_records:
        raise MetricsFileError(f"{path}: the trackio project has no metrics")
    if damage["rows"]:
        notes.append(f"left out: {counted(damage['rows'], 'row')} without a JSON object")
    return collector.finish(notes)


def _rows(
    database: sqlite3.Connection, path: Path, damage: dict[str, int]
) -> Iterator[dict[str, Any]]:
    columns = columns_of(database, "metrics")
    if not columns >= _NEEDED:
        raise MetricsFileError(
            f"{path}: is a SQLite database, but not one of trackio: it has no table `metrics` with "
            "the columns run_name, step and metrics"
        )
    clock = "timestamp" if "timestamp" in columns else "NULL"
    query = (
        f"SELECT run_name, step, {clock}, CASE WHEN length(metrics) <= {MAX_ROW_CHARS} THEN "
        "metrics END FROM metrics ORDER BY rowid"
    )
    for name, step, logged_at, text in database.execute(query):
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        values = parsed(text) if isinstance(text, str) else None
        if not isinstance(values, dict):
            damage["rows"] += 1
            continue
        seconds = _seconds(logged_at)
        out = {RUN: str(name), "step": step}
        out |= {} if seconds is None else {CLOCK: seconds}
        yield out | {k: v for k, v in flat(values).items() if k not in out}


def _seconds(logged_at: Any) -> float | None:
    """Seconds since the epoch of trackio's ISO time; None where it is none."""
    try:
        moment = datetime.fromisoformat(logged_at)
    except (TypeError, ValueError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
