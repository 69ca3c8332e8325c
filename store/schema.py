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


STEP_METRICS: Mapping[str, str] = MappingProxyType(
    {
        "return_std": "reward/return_std",
        "group_std_mean": "reward/group_std_mean",
        "kept_frac": "selection/kept_frac",
        "entropy": "policy/entropy",
        "mismatch_kl": "policy/mismatch_kl",
        "ref_kl": "policy/ref_kl",
        "loss": "loss/total",
        "policy_loss": "loss/policy",
        "grad_norm": "optim/grad_norm",
        "lr": "optim/lr",
        "clip_high_frac": "policy/clip_high_frac",
        "step_s": "time/step_s",
        "rollout_s": "time/rollout_s",
        "update_s": "time/update_s",
        "tokens_per_s": "time/tokens_per_s",
    }
)
"""Wide column of `steps` -> key of the training metric that it repeats."""

COUNTED_METRICS: Mapping[str, str] = MappingProxyType(
    {
        "return_mean": "reward/return_mean",
        "success_rate": "rollout/success_rate",
        "num_turns_mean": "rollout/num_turns_mean",
    }
)
"""Wide column of `steps` that is counted from trajectories -> the metric that stands for it where a
step has none."""


def _tables() -> Iterator[Table]:
    declared = tomllib.loads((Path(__file__).parent / "log" / "columns.toml").read_text("utf-8"))
    shared = declared["shared"]
    for name, table in declared["tables"].items():
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


def schema_markdown() -> str:
    """The tables of `docs/store.md`: the site is built with them (`docs/hooks.py`)."""
    parts = []
    for table in TABLES.values():
        rows = [f"| `{c.name}` | `{c.type}` | {c.doc} |" for c in table.columns]
        parts.append(
            f"### {table.name}\n\n{table.doc}\n\n| column | type | meaning |\n| --- | --- | --- |\n"
            + "\n".join(rows)
        )
    return "\n\n".join(parts) + "\n"
