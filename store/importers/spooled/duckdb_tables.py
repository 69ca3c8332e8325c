"""Episodes of a DuckDB file that `echoscope export --to duckdb` or `runs seal` wrote.

Such a file may come from a stranger. It is opened read-only and without access to other files, only
its base tables are read, and every column is cast to the type that the store gives it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa

from ...query.check import one_line
from ...schema import TABLES
from ..lines import BadJsonError

_NAMES = ("trajectories", "turns", "tokens")
_MEMORY = "1GB"
_ORDER = {
    "trajectories": "attempt, id",
    "turns": "attempt, trajectory_id, turn",
    "tokens": "attempt, trajectory_id, turn",
}
_SLICE = 128


def write_episodes(path: Path, target: Path) -> None:
    """Write the rows of each episode in the tables as one line.

    Raises:
        BadJsonError: it is no DuckDB file of a run, or damaged.
    """
    try:
        with duckdb.connect(
            str(path),
            read_only=True,
            config={
                "enable_external_access": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "memory_limit": _MEMORY,
                "temp_directory": "",
                "lock_configuration": "true",
            },
        ) as connection:
            _write(connection, target)
    except duckdb.Error as error:
        raise BadJsonError(f"the DuckDB file cannot be read: {one_line(error)}") from None


def _write(connection: duckdb.DuckDBPyConnection, target: Path) -> None:
    selects = {name: _select(connection, name) for name in _NAMES}
    with target.open("xb") as out:
        steps = connection.sql(
            f"SELECT DISTINCT step FROM ({selects['trajectories']}) WHERE step IS NOT NULL "
            "ORDER BY step"
        ).fetchall()
        for (step,) in steps:
            rows, turns, tokens = (
                connection.sql(
                    f"SELECT * FROM ({selects[name]}) WHERE step = $1 ORDER BY {_ORDER[name]}",
                    params=[step],
                ).to_arrow_table()
                for name in _NAMES
            )
            _write_step(rows, turns, tokens, out)


def _write_step(rows: pa.Table, turns: pa.Table, tokens: pa.Table, out: BinaryIO) -> None:
    turns_of, tokens_of = _by_episode(turns), _by_episode(tokens)
    for start in range(0, rows.num_rows, _SLICE):
        for row in rows.slice(start, _SLICE).to_pylist(maps_as_pydicts="lossy"):
            key = (row["attempt"], row["id"])
            episode = {
                "trajectory": row,
                "turns": turns_of.get(key, []),
                "tokens": tokens_of.get(key, []),
            }
            out.write(json.dumps({"echoscope_rows": episode}, default=str).encode() + b"\n")


def _by_episode(rows: pa.Table) -> dict[tuple[Any, Any], list[dict[str, Any]]]:
    out: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in rows.to_pylist(maps_as_pydicts="lossy"):
        out.setdefault((row["attempt"], row["trajectory_id"]), []).append(row)
    return out


def _select(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    """A query for the columns of a table of ours; NULL for those that came later.

    Raises:
        BadJsonError: there is no such base table.
    """
    there = connection.execute(
        "SELECT column_name FROM information_schema.columns JOIN information_schema.tables "
        "USING (table_catalog, table_schema, table_name) "
        "WHERE table_name = ? AND table_schema = 'main' AND table_type = 'BASE TABLE'",
        [name],
    ).fetchall()
    names = {str(column) for (column,) in there}
    if not names and name == "tokens":
        return f"SELECT {', '.join(_nulls(name))} WHERE false"  # a file of an early version
    if not names:
        raise BadJsonError(f"the DuckDB file has no table {name}, as a run has")
    columns = [
        f'TRY_CAST("{column.name}" AS {column.type}) AS "{column.name}"'
        if column.name in names
        else f'NULL::{column.type} AS "{column.name}"'
        for column in TABLES[name].columns
    ]
    return f'SELECT {", ".join(columns)} FROM main."{name}"'


def _nulls(name: str) -> list[str]:
    return [f'NULL::{column.type} AS "{column.name}"' for column in TABLES[name].columns]
