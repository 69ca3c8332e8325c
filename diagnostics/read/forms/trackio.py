"""trackio's database: the table `metrics` with a row of JSON for each call of `trackio.log`.

The database is opened for reading only, by Python's own SQLite. It may be in use: what the trainer
has committed is read. Names of the columns are those of trackio 0.20 to 0.43.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from echoscope.text.amounts import counted

from ..foreign_names import Meaning
from ..records import Collector, MetricsFileError, flat
from ..table import MetricTable
from .json_records import parsed

RUN, CLOCK = "run", "wall_time"
MAX_ROW_CHARS = 16 << 20
BUSY_S = 2.0
"""How long to wait while the trainer commits."""
_MAGIC = b"SQLite format 3\x00"
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
        with _opened(path) as database:
            for row in _rows(database, path, damage):
                collector.add(row)
            notes: list[str] = []
    except sqlite3.Error as error:
        if not collector.num_records:
            raise MetricsFileError(f"{path}: {_reason_of(error)}") from None
        notes = [f"the database is damaged ({error}): what could be read before was"]
    if not collector.num_records:
        raise MetricsFileError(f"{path}: the trackio project has no metrics")
    if damage["rows"]:
        notes.append(f"left out: {counted(damage['rows'], 'row')} without a JSON object")
    return collector.finish(notes)


def _rows(
    database: sqlite3.Connection, path: Path, damage: dict[str, int]
) -> Iterator[dict[str, Any]]:
    columns = _columns_of(database, "metrics")
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
    for name, step, at, text in database.execute(query):
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        values = parsed(text) if isinstance(text, str) else None
        if not isinstance(values, dict):
            damage["rows"] += 1
            continue
        seconds = _seconds(at)
        out = {RUN: str(name), "step": step}
        out |= {} if seconds is None else {CLOCK: seconds}
        yield out | {k: v for k, v in flat(values).items() if k not in out}


def _seconds(at: Any) -> float | None:
    """Seconds since the epoch of trackio's ISO time; None where it is none."""
    try:
        moment = datetime.fromisoformat(at)
    except (TypeError, ValueError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def is_sqlite(head: bytes) -> bool:
    """Whether a file that begins so is a database of SQLite."""
    return head.startswith(_MAGIC)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A stranger's database, for reading only. It may be in use: what its
    writer has committed is read.

    Raises:
        sqlite3.Error: it is locked or damaged.
    """
    address = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as database:
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        database.execute("PRAGMA query_only = ON")
        database.execute("PRAGMA trusted_schema = OFF")
        try:
            yield database
        except UnicodeDecodeError as error:  # SQLite's own message quotes damaged bytes
            raise sqlite3.DatabaseError("its schema is no text in UTF-8") from error


def _columns_of(database: sqlite3.Connection, table: str) -> frozenset[str]:
    """The columns of a table; empty where there is none, or a view of that name."""
    kinds = database.execute("SELECT type FROM sqlite_master WHERE name = ?", [table]).fetchall()
    if kinds != [("table",)]:
        return frozenset()
    rows = database.execute("SELECT name FROM pragma_table_info(?)", [table]).fetchall()
    return frozenset(name for (name,) in rows)


def _reason_of(error: sqlite3.Error) -> str:
    """Why a database cannot be read, in words."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return (
            f"another program has locked the SQLite database for more than {BUSY_S:.0f} s: try "
            "again, or copy the file and read the copy"
        )
    return f"the SQLite database is damaged: {text}"
