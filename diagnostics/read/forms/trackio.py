"""trackio's database: the table `metrics` with a row of JSON for each call of `trackio.log`.

The database is opened for reading only, by Python's own SQLite. It may be in use: what the trainer
has committed is read. Names of the columns are those of trackio 0.20 to 0.43.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from echoscope.store.importers.spooled.trackio_traces import columns_of, opened_database, reason_of

from ..records import Collector, MetricsFileError, Reading, flat
from ..table import MetricTable
from .json_records import parsed

RUN, CLOCK = "run", "wall_time"
MAX_ROW_CHARS = 16 << 20
_NEEDED = frozenset({"run_name", "step", "metrics"})


def read_trackio(reading: Reading) -> MetricTable:
    """The metrics of a run of a trackio project. Raises as `read_metrics`."""
    path = Path(reading.path)
    with path.open("rb"):
        pass  # SQLite says "unable to open database file", whatever is wrong
    return reading.table("trackio", partial(_rows, path), "the trackio project has no metrics")


def _rows(path: Path, collector: Collector) -> Iterator[dict[str, Any]]:
    try:
        with opened_database(path) as database:
            yield from _of_database(database, path, collector)
    except sqlite3.Error as error:
        if not collector.num_records:
            raise MetricsFileError(f"{path}: {reason_of(error)}") from None
        collector.notes.append(f"the database is damaged ({error}): what could be read before was")


def _of_database(
    database: sqlite3.Connection, path: Path, collector: Collector
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
            collector.left_out["row", "without a JSON object"] += 1
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
