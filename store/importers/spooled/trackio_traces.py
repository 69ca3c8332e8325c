"""Traces of a trackio project: rows of the table `traces`, one conversation each.

The table stands beside `metrics` in one SQLite database, which `diagnostics/read/forms/trackio.py`
reads. It is opened for reading only, and may come from a stranger. Names of the columns are those
of trackio 0.36 to 0.43.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..lines import MAX_LINE_BYTES, BadJsonError, json_of

MAGIC = b"SQLite format 3\x00"
_NEEDED = frozenset({"run_name", "step", "messages", "metadata"})
_PLAIN = ("id", "run_id", "run_name", "timestamp", "step", "key", "trace_index")
_BUSY_S = 2.0
_MOST_S = 600.0
_STEPS_OF_WORK = 1_000_000
"""Of SQLite's machine between two looks at the clock."""


def is_sqlite(head: bytes) -> bool:
    """Whether a file that begins so is a database of SQLite."""
    return head.startswith(MAGIC)


def write_traces(path: Path, target: Path, run: str = "") -> bool:
    """Write the traces of a run as JSON lines, a trace a line; False where there are none.

    Args:
        run: The name of the run; "" for the only one.

    Raises:
        BadJsonError: the database is locked or damaged; or it holds traces of several runs and
            `run` names none of them.
    """
    address = f"file:{quote(str(path.resolve()))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_S)) as database:
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            end = time.monotonic() + _MOST_S
            database.set_progress_handler(lambda: time.monotonic() > end, _STEPS_OF_WORK)
            database.execute("PRAGMA query_only = ON")
            database.execute("PRAGMA trusted_schema = OFF")
            columns = _columns(database)
            if not columns >= _NEEDED:
                return False
            names = [
                str(name)
                for (name,) in database.execute(
                    "SELECT run_name FROM traces GROUP BY run_name ORDER BY count(*) DESC, run_name"
                ).fetchmany(10_000)
            ]
            if not names or (run and run not in names):
                return False
            if len(names) > 1 and not run:
                shown = "; ".join(names[:8]) + ("; ..." if len(names) > 8 else "")
                raise BadJsonError(
                    f"the trackio project holds traces of {len(names)} runs ({shown}); choose one "
                    "with --run NAME"
                )
            _write(database, columns, run or names[0], target)
    except sqlite3.Error as error:
        raise BadJsonError(f"the SQLite database cannot be read: {error}") from None
    return True


def _columns(database: sqlite3.Connection) -> frozenset[str]:
    """The columns of the table `traces`; empty where there is none, or a view of that name."""
    kinds = database.execute("SELECT type FROM sqlite_master WHERE name = 'traces'").fetchall()
    if kinds != [("table",)]:
        return frozenset()
    rows = database.execute("SELECT name FROM pragma_table_info('traces')").fetchall()
    return frozenset(name for (name,) in rows)


def _write(database: sqlite3.Connection, columns: frozenset[str], run: str, target: Path) -> None:
    plain = [name for name in _PLAIN if name in columns]
    texts = [
        f"CASE WHEN length({name}) <= {MAX_LINE_BYTES // 2} THEN {name} END"
        for name in ("messages", "metadata")
    ]
    query = f"SELECT {', '.join([*plain, *texts])} FROM traces WHERE run_name = ? ORDER BY rowid"
    with target.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for *values, messages, metadata in database.execute(query, [run]):
            row = {
                "trackio_trace": dict(zip(plain, values, strict=True)),
                "messages": _value(messages),
                "metadata": _value(metadata),
            }
            file.write(json.dumps(row) + "\n")


def _value(text: Any) -> Any:
    """What a column holds as JSON text; None where it is none."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    try:
        return json_of(text.encode(errors="replace"))[0] if isinstance(text, str) else None
    except BadJsonError:
        return None
