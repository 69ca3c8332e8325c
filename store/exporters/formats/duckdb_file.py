"""One DuckDB file with every table of the run, for whoever has DuckDB and not Echoscope.

The tables have the names and columns that `echoscope query` shows, with a comment on each.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from ...query.check import one_line
from ...query.database import quote
from ...schema import DATA_TABLES, TABLES, create_table_sql
from ..format import ExportError, ExportFormat, Written
from ..source import RunSource

_STORAGE = "v1.5.0"
"""Readable by DuckDB 1.5 and later."""
_BY_EPISODE = ("trajectories", "turns", "tokens")


def _write(source: RunSource, path: Path) -> Written:
    written = Written()
    try:
        with duckdb.connect() as connection:
            connection.execute(f"SET temp_directory = {quote('')}")
            connection.execute(f"ATTACH {quote(str(path))} AS run (STORAGE_VERSION '{_STORAGE}')")
            for name, table in TABLES.items():
                target = f'run."{name}"'
                connection.execute(create_table_sql(name, target, text_compression=True))
                connection.execute(f"COMMENT ON TABLE {target} IS {quote(table.doc)}")
                for column in table.columns:
                    target_column = f'{target}."{column.name}"'
                    connection.execute(f"COMMENT ON COLUMN {target_column} IS {quote(column.doc)}")
            _copy_data(source, connection)
            _copy_events(source, connection)
            ((count,),) = connection.sql("SELECT count(*) FROM run.trajectories").fetchall()
            written.num_rows = int(count)
            connection.execute("DETACH run")
    except duckdb.Error as error:
        raise ExportError(
            f"cannot write the DuckDB file ({one_line(error)}); nothing was left behind"
        ) from error
    finally:
        path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
    options = source.options
    is_part = options.where or options.best is not None or options.labels
    if is_part or source.split != "all":
        written.notes.append(
            "The tables trajectories, turns and tokens hold the episodes that were asked for; the "
            "other tables hold every row of these steps."
        )
    return written


def _insert(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    if rows.num_rows:
        connection.register("new_rows", rows)
        connection.execute(f'INSERT INTO run."{name}" BY NAME SELECT * FROM new_rows')
        connection.unregister("new_rows")


def _copy_data(source: RunSource, connection: duckdb.DuckDBPyConnection) -> None:
    """Step by step: a run may be larger than memory."""
    for step, keys in source.by_step():
        for name in _BY_EPISODE:
            _insert(connection, name, source.rows_of(name, step, keys))
        source.done(len(keys))
    first, last = source.steps
    steps = source.reader.sql(
        "SELECT DISTINCT step FROM steps WHERE step <= $1 ORDER BY step", [last]
    )
    for step in steps.column("step").to_pylist():
        if step >= first:
            _insert(connection, "diagnostics", source.reader.rows_of_step("diagnostics", step))
        # A picture is stored with the first step that shows it.
        _insert(connection, "images", source.reader.rows_of_step("images", step))


def _copy_events(source: RunSource, connection: duckdb.DuckDBPyConnection) -> None:
    first, last = source.steps
    for name, table in TABLES.items():
        if name in DATA_TABLES:
            continue
        where = f" WHERE step BETWEEN {first} AND {last}" if "step" in table.column_names else ""
        _insert(connection, name, source.reader.sql(f'SELECT * FROM "{name}"{where}'))


DUCKDB = ExportFormat(
    name="duckdb",
    noun="episode",
    write=_write,
    leaves_out="",
)
