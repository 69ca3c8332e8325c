"""`run.duckdb`: a finished run as one ordinary DuckDB file, for people who want that."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb

from ..errors import RunBusyError, StoreError
from ..log.durable import FileLock, new_id, sync_folder
from ..log.index import RunIndex
from ..log.integrity import damage_of
from ..schema import TABLES, create_table_sql
from .check import one_line
from .database import RunDatabase, quote, run_status

STORAGE = "v1.5.0"
"""Readable by DuckDB 1.5 and later."""
_BATCH_ROWS = 10_000


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
    _require_whole(index)
    # Whoever holds this lock is the only one: what lies there was left by a seal that was killed.
    lock = FileLock(index.layout.pack_lock)
    try:
        lock.acquire()
    except RunBusyError:
        raise RunBusyError(
            f"{index.layout.root}: another process is packing or sealing this run; try again later"
        ) from None
    try:
        for leftover in index.layout.left_by_packing():
            leftover.unlink(missing_ok=True)
        _copy_tables(RunDatabase(index.layout.root, [index]), temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    except duckdb.Error as error:
        raise StoreError(f"{target}: {one_line(error)}") from error
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror}") from error
    finally:
        for leftover in (temporary, temporary.with_name(f"{temporary.name}.wal")):
            leftover.unlink(missing_ok=True)
        lock.release()
    return target


def _copy_tables(database: RunDatabase, target: Path) -> None:
    """Every table of a run into a new DuckDB file. What reads runs cannot write: two databases."""
    database.show(TABLES)
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH {quote(str(target))} AS sealed (STORAGE_VERSION '{STORAGE}')")
        for name in TABLES:
            connection.execute(create_table_sql(name, f"sealed.{name}", text_compression=True))
            rows = database.connection.sql(f"FROM {name}").to_arrow_reader(_BATCH_ROWS)
            connection.register("rows", rows)
            connection.execute(f"INSERT INTO sealed.{name} SELECT * FROM rows")
            connection.unregister("rows")
        connection.execute("DETACH sealed")


def _require_whole(index: RunIndex) -> None:
    """Raises StoreError where the run is damaged: an older `run.duckdb` may hold more of it."""
    root = index.layout.root
    damage = [str(problem) for problem in index.problems] + [
        f"{root / file.entry.path}: {why}"
        for name in TABLES
        for file in index.files(name)
        if (why := damage_of(root, file.entry))
    ]
    if damage:
        raise StoreError(f"{damage[0]}; `echoscope runs repair {root}` writes a copy to seal")
