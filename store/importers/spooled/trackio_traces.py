"""Traces of a trackio project: rows of the table `traces`, one conversation each.

The table stands beside `metrics` in one SQLite database, which `diagnostics/read/forms/trackio.py`
reads through `opened_database` as well. Names of the columns are those
of trackio 0.36 to 0.43.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..lines import MAX_LINE_BYTES, BadJsonError, json_of

MAGIC = b"SQLite format 3\x00"
_NEEDED = frozenset({"run_name", "step", "messages", "metadata"})
_PLAIN = ("id", "run_id", "run_name", "timestamp", "step", "key", "trace_index")
BUSY_S = 2.0
"""How long to wait while the trainer commits."""
_MOST_S = 600.0
_STEPS_OF_WORK = 1_000_000
"""Of SQLite's machine between two looks at the clock."""


def is_sqlite(head: bytes) -> bool:
    """Whether a file that begins so is a database of SQLite."""
    return head.startswith(MAGIC)


@contextmanager
def opened_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A stranger's database, for reading only and in bounded time. It may be in use: what its
    writer has committed is read.

    Raises:
        sqlite3.Error: it is locked or damaged, or reading it takes too long.
    """
    address = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as database:
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        end = time.monotonic() + _MOST_S
        database.set_progress_handler(lambda: time.monotonic() > end, _STEPS_OF_WORK)
        database.execute("PRAGMA query_only = ON")
        database.execute("PRAGMA trusted_schema = OFF")
        try:
            yield database
        except UnicodeDecodeError as error:  # SQLite's own message quotes damaged bytes
            raise sqlite3.DatabaseError("its schema is no text in UTF-8") from error


def columns_of(database: sqlite3.Connection, table: str) -> frozenset[str]:
    """The columns of a table; empty where there is none, or a view of that name."""
    kinds = database.execute("SELECT type FROM sqlite_master WHERE name = ?", [table]).fetchall()
    if kinds != [("table",)]:
        return frozenset()
    rows = database.execute("SELECT name FROM pragma_table_info(?)", [table]).fetchall()
    return frozenset(name for (name,) in rows)


def reason_of(error: sqlite3.Error) -> str:
    """Why a database cannot be read, in words."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return (
            f"another program has locked the SQLite database for more than {BUSY_S:.0f} s: try "
            "again, or copy the file and read the copy"
        )
    if "interrupted" in text:
        return (
            f"reading the SQLite database took more than {_MOST_S:.0f} s: copy the rows of one run "
            "into a smaller database"
        )
    return f"the SQLite database is damaged: {text}"


def write_traces(path: Path, target: Path, run: str = "") -> bool:
    """Write the traces of a run as JSON lines, a trace a line; False where there are none.

    Args:
        run: The name of the run; "" for the only one.

    Raises:
        BadJsonError: the database is locked or damaged; or it holds traces of several runs and
            `run` names none of them.
    """
    try:
        with opened_database(path) as database:
            columns = columns_of(database, "traces")
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
        raise BadJsonError(reason_of(error)) from None
    return True


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
