"""Traces of a trackio project: rows of the table `traces`, one conversation each.

The table stands beside `metrics` in one SQLite database, which `diagnostics/read/forms/trackio.py`
opens in the same way. Names of the columns are those of trackio 0.36 to 0.43.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from .. import read
from ..lines import MAX_LINE_BYTES, BadJsonError

_MAGIC = b"SQLite format 3\x00"
BUSY_S = 2.0
"""How long to wait while the trainer commits."""
_NEEDED = frozenset({"run_name", "step", "messages", "metadata"})
_PLAIN = ("id", "run_id", "run_name", "timestamp", "step", "key", "trace_index")
_MAX_RUNS = 10_000
_RUNS_NAMED = 8


def is_sqlite(head: bytes) -> bool:
    """Whether a file that begins so is a database of SQLite."""
    return head.startswith(_MAGIC)


@contextmanager
def opened_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A stranger's database, for reading only. It may be in use: what its writer has committed is
    read.

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
    return f"the SQLite database is damaged: {text}"


def write_traces(path: Path, target: Path, run: str) -> bool:
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
            query = f"SELECT DISTINCT run_name FROM traces ORDER BY run_name LIMIT {_MAX_RUNS}"
            names = [str(name) for (name,) in database.execute(query)]
            if not names or (run and run not in names):
                return False
            if len(names) > 1 and not run:
                more = "; ..." if len(names) > _RUNS_NAMED else ""
                raise BadJsonError(
                    f"the trackio project holds traces of {len(names)} runs "
                    f"({'; '.join(names[:_RUNS_NAMED])}{more}); choose one with --run NAME"
                )
            _write(database, columns, run or names[0], target)
    except sqlite3.Error as error:
        raise BadJsonError(reason_of(error)) from None
    return True


def _write(database: sqlite3.Connection, columns: frozenset[str], run: str, target: Path) -> None:
    plain = [name for name in _PLAIN if name in columns]
    texts = [
        f"CASE WHEN length({name}) <= {MAX_LINE_BYTES // 2} THEN CAST({name} AS TEXT) END"
        for name in ("messages", "metadata")
    ]
    query = f"SELECT {', '.join([*plain, *texts])} FROM traces WHERE run_name = ? ORDER BY rowid"
    with target.open("w") as file:
        for *values, messages, metadata in database.execute(query, [run]):
            row = {
                "trackio_trace": dict(zip(plain, values, strict=True)),
                "messages": read.json_in(messages),
                "metadata": read.json_in(metadata),
            }
            file.write(json.dumps(row, default=str) + "\n")
