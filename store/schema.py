"""Every stored column, declared once, in `log/columns.toml`.

Arrow schemas, DuckDB tables and views, the tables of `docs/store.md` and the checks of `verify` all
come from `TABLES`. A change of the columns raises `SCHEMA_VERSION`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from .errors import StoreVersionError

SCHEMA_VERSION = "1"
"""What `run.json`, the journal and packs carry; a run of another version is refused."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """DuckDB spelling: `VARCHAR`, `BIGINT`, `FLOAT[]`, `MAP(VARCHAR, DOUBLE)`, ..."""
    doc: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    doc: str
    columns: tuple[Column, ...]
    is_audit: bool = False
    """Rows stay visible after a rewind: what people asked for is not undone."""

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


_DECLARED = tomllib.loads((Path(__file__).parent / "log" / "columns.toml").read_text("utf-8"))
STEP_METRICS: Mapping[str, str] = MappingProxyType(_DECLARED["step_metrics"])
"""Wide column of `steps` -> key of the training metric that it repeats."""
COUNTED_METRICS: Mapping[str, str] = MappingProxyType(_DECLARED["counted_metrics"])
"""Wide column of `steps` that is counted from trajectories -> the metric that stands for it where a
step has none."""


def _tables() -> Iterator[Table]:
    shared = _DECLARED["shared"]
    for name, table in _DECLARED["tables"].items():
        columns = [
            Column(column, *(shared[column] if given is True else given))
            for column, given in table.pop("columns").items()
        ]
        if name == "steps":
            columns += [
                Column(column, "DOUBLE", f"Metric `{key}`; NULL where the step has none.")
                for column, key in STEP_METRICS.items()
            ]
        yield Table(name, columns=tuple(columns), **table)


TABLES: Mapping[str, Table] = MappingProxyType({table.name: table for table in _tables()})
DATA_TABLES = ("tokens", "turns", "trajectories", "diagnostics", "images")
"""Written as Parquet segments, one per step, in this order."""
EVENT_TABLES = (
    "steps",
    "metrics",
    "alarms",
    "commands",
    "command_events",
    "checkpoints",
    "settings",
)
"""Written in the journal and moved to Parquet when it is packed."""

_ARROW_TYPES = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "BOOLEAN": pa.bool_(),
    "BLOB": pa.binary(),
}


def arrow_type(duckdb_type: str) -> pa.DataType:
    """The Arrow type of a DuckDB type as `Column.type` spells it."""
    if duckdb_type.endswith("[]"):
        return pa.list_(arrow_type(duckdb_type[:-2]))
    if duckdb_type.startswith("MAP("):
        key, value = duckdb_type[4:-1].split(", ")
        return pa.map_(arrow_type(key), arrow_type(value))
    return _ARROW_TYPES[duckdb_type]


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of one table, the schema version in its metadata."""
    fields = [pa.field(column.name, arrow_type(column.type)) for column in TABLES[table].columns]
    return pa.schema(fields, metadata={"echoscope.schema_version": SCHEMA_VERSION})


def create_table_sql(table: str, target: str, *, text_compression: bool = False) -> str:
    """`CREATE TABLE target (...)`. Long text is uncompressed in DuckDB files unless told."""
    columns = []
    for column in TABLES[table].columns:
        is_compressed = text_compression and column.type == "VARCHAR"
        compression = " USING COMPRESSION zstd" if is_compressed else ""
        columns.append(f'"{column.name}" {column.type}{compression}')
    return f"CREATE TABLE {target} ({', '.join(columns)})"


def check_version(version: object, where: str) -> None:
    """Raises StoreVersionError where a run was written by another version of the store."""
    if version != SCHEMA_VERSION:
        raise StoreVersionError(
            f"{where}: written with store version {str(version)[:20]!r}, but this Echoscope reads "
            f"{SCHEMA_VERSION!r}; install the Echoscope that wrote it"
        )
