"""`run.duckdb`: a finished run as one ordinary DuckDB file, for people who want that."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb

from .database import RunDatabase, one_line, quote, run_status
from .durable import new_id, sync_folder
from .errors import RunBusyError, StoreError
from .index import RunIndex
from .schema import TABLES, create_table_sql

_STORAGE = "v1.5.0"
"""Readable by DuckDB 1.5 and later."""


def seal(path: str | Path) -> Path:
    """Write the tables of a run that is not running into `run.duckdb`, and return its path.

    The file is a copy, rebuilt whenever this is called again; text in it is compressed.

    Raises:
        NotARunError: no run there.
        RunBusyError: the run is running.
        StoreError: it cannot be read, or the disk refuses.
    """
    index = RunIndex(Path(path))
    if run_status(index) == "running":
        raise RunBusyError(f"{index.layout.root}: the run is running; seal it when it has ended")
    target = index.layout.sealed
    temporary = target.with_name(f"run.{new_id()}.duckdb.tmp")
    connection = RunDatabase(index.layout.root, [index]).connection
    try:
        connection.execute(
            f"ATTACH {quote(str(temporary))} AS sealed (STORAGE_VERSION '{_STORAGE}')"
        )
        for name in TABLES:
            connection.execute(create_table_sql(name, f"sealed.{name}", text_compression=True))
            connection.execute(f"INSERT INTO sealed.{name} SELECT * FROM {name}")
        connection.execute("DETACH sealed")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    except duckdb.Error as error:
        raise StoreError(f"{target}: {one_line(error)}") from error
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror}") from error
    finally:
        connection.close()
        for leftover in (temporary, temporary.with_name(f"{temporary.name}.wal")):
            leftover.unlink(missing_ok=True)
    return target
