"""One SQL database over all runs of a root: a DuckLake catalog that names the packs where they lie.

A pack never changes, so its files are adopted once, in place: nothing is copied, and the runs stay
what they are. What people query are views over the adopted files. They hide the steps that a rewind
took back, by a small table of limits, so that no rewind marks a run's file for deletion.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from ..errors import StoreError
from ..log.index import RunIndex
from ..log.packs import Pack
from ..log.parquet import CHECKS
from ..log.remote.bucket import s3_place
from ..log.remote.pulling import RemoteRoot, RemoteRun
from ..reader import RunsReader
from ..schema import SCHEMA_VERSION, TABLES, create_table_sql
from .database import quote, run_row

_ADOPTED = [name for name in TABLES if name != "runs"]
_OWN_FILES = ".catalog"
"""Folder of the root for the catalog's own rows: no run has such a name."""
_OWN_TABLES = """
BEGIN;
CREATE SCHEMA lake.stored;
CREATE TABLE lake.stored.about (root VARCHAR, schema_version VARCHAR, round BIGINT);
CREATE TABLE lake.stored.packs (run_id VARCHAR, number BIGINT);
CREATE TABLE lake.stored.limits (run_id VARCHAR, attempt INTEGER, last_step INTEGER);
"""


class CatalogError(StoreError):
    """The catalog cannot be read or written; what it held stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What one run brought to the catalog."""

    run_id: str
    num_packs: int
    """Packs that are new in the catalog."""
    waiting: tuple[str, ...]
    """Damaged files, each with the reason: their packs are not adopted."""


class Catalog:
    """A DuckLake catalog of the runs of one root.

    Args:
        address: where DuckLake keeps its tables, as DuckDB spells it: a file, or
            `postgres:dbname=team host=db`.
        root: folder of runs, or the copy on this disk of one on object storage.

    Raises:
        CatalogError: the database does not answer, its DuckDB extension is missing, or the catalog
            is another root's.
    """

    def __init__(self, address: str, root: Path) -> None:
        self._shown = _without_password(address)
        remote = RemoteRoot.of(root)
        self._root = _plain(remote.bucket.url) if remote else str(root.resolve())
        self._db = duckdb.connect()
        if remote:
            self._run(_s3_secret(remote.bucket.url))
        own = quote(f"{self._root}/{_OWN_FILES}/")
        where = quote(f"ducklake:{address}")
        self._run(f"ATTACH {where} AS lake (DATA_PATH {own}, OVERRIDE_DATA_PATH true)")
        self._make_tables()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def adopt(self, reader: RunsReader) -> Iterator[Adoption]:
        """Bring the catalog up to the packs that the runs have now, one transaction a run.

        Raises:
            CatalogError: the database does not answer, or another process adopts at this moment.
        """
        for info in reader.infos():
            yield self._adopt_run(RunIndex(info.path))

    def missing(self, reader: RunsReader) -> list[str]:
        """Ids of runs in the catalog whose files are gone: a query that needs them fails."""
        there = {info.run_id for info in reader.infos()}
        return sorted({run_id for (run_id,) in self._rows("SELECT run_id FROM lake.runs")} - there)

    def _make_tables(self) -> None:
        """What a new catalog needs; one that stands must be of this root and these columns."""
        tables = "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'lake'"
        if self._rows(tables)[0][0]:
            ((root, version),) = self._rows("SELECT root, schema_version FROM lake.stored.about")
            if (root, version) != (self._root, SCHEMA_VERSION):
                raise CatalogError(
                    f"{self._shown}: this catalog is of {root}, store version {version}, not of "
                    f"{self._root}, version {SCHEMA_VERSION}; name another catalog"
                )
            return
        self._run(_OWN_TABLES)
        self._run("INSERT INTO lake.stored.about VALUES (?, ?, 0)", self._root, SCHEMA_VERSION)
        self._run(create_table_sql("runs", "lake.runs"))
        for name in _ADOPTED:
            self._run(create_table_sql(name, f"lake.stored.{name}"))
            rows = f"SELECT t.* FROM lake.stored.{name} t"
            if not TABLES[name].is_audit:
                rows += (
                    " LEFT JOIN lake.stored.limits l ON l.run_id = t.run_id "
                    "AND l.attempt = t.attempt WHERE l.last_step IS NULL OR t.step <= l.last_step"
                )
            self._run(f"CREATE VIEW lake.{name} AS {rows}")
        self._run("CALL lake.set_option('auto_compact', false)")  # a run's files are its own
        self._run("COMMIT")

    def _adopt_run(self, index: RunIndex) -> Adoption:
        run_id = index.run_id
        limits = {
            attempt: limit
            for attempt in range(1, index.state.attempt + 1)
            if (limit := index.state.limit(attempt)) is not None
        }
        self._run("BEGIN")
        try:
            # Two processes that adopt at once would both add a file: the later one fails here.
            self._run("UPDATE lake.stored.about SET round = round + 1")
            packs = self._rows("SELECT number FROM lake.stored.packs WHERE run_id = ?", run_id)
            new = {n: pack for n, pack in index.packs.items() if (n,) not in packs}
            damages = {} if RemoteRun.of(index.layout.root) else _damages(index, new)
            new = {n: pack for n, pack in new.items() if not damages.get(n)}
            for number, pack in new.items():
                self._add(index, pack)
                self._run("INSERT INTO lake.stored.packs VALUES (?, ?)", run_id, number)
            self._replace("stored.limits", run_id, [(run_id, *pair) for pair in limits.items()])
            self._replace("runs", run_id, [tuple(run_row(index).values())])
            self._run("COMMIT")
        except BaseException:
            self._db.rollback()
            raise
        waiting = tuple(why for reasons in damages.values() for why in reasons)
        return Adoption(run_id=run_id, num_packs=len(new), waiting=waiting)

    def _add(self, index: RunIndex, pack: Pack) -> None:
        remote = RemoteRun.of(index.layout.root)
        folder = _plain(remote.url) if remote else str(index.layout.root)
        for group in pack.groups:
            for entry in group.files:
                self._run(
                    "CALL ducklake_add_data_files('lake', ?, ?, schema => 'stored')",
                    entry.table,
                    f"{folder}/{entry.path}",
                )

    def _replace(self, table: str, run_id: str, rows: list[tuple[Any, ...]]) -> None:
        """Let the rows of one run in a small table be these."""
        if sorted(rows) == sorted(self._rows(f"FROM lake.{table} WHERE run_id = ?", run_id)):
            return
        self._run(f"DELETE FROM lake.{table} WHERE run_id = ?", run_id)
        for row in rows:
            marks = ", ".join("?" * len(row))
            self._run(f"INSERT INTO lake.{table} VALUES ({marks})", *row)

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._run(sql, *values).fetchall()
        return rows

    def _run(self, sql: str, *values: Any) -> duckdb.DuckDBPyConnection:
        try:
            return self._db.execute(sql, values)
        except duckdb.TransactionException as error:
            raise CatalogError(
                f"{self._shown}: another process wrote to the catalog at this moment; run the "
                "command again"
            ) from error
        except duckdb.Error as error:
            why = " ".join(_without_password(str(error)).split())[:400]
            raise CatalogError(f"{self._shown}: {why}") from error


def _damages(index: RunIndex, packs: Mapping[int, Pack]) -> dict[int, list[str]]:
    """Pack number to what is wrong with its files."""
    root, out = index.layout.root, {}
    for number, pack in packs.items():
        whys = CHECKS.damages(root, [entry for group in pack.groups for entry in group.files])
        out[number] = [f"{root / path}: {why}" for path, why in whys.items() if why]
    return out


def _without_password(text: str) -> str:
    return re.sub(r"(?i)(password\s*=\s*)('[^']*'|\S+)", r"\1...", text)


def _plain(url: str) -> str:
    """The address as DuckDB spells it: without what the query says, and a disk as a path."""
    return url.partition("?")[0].removeprefix("file://")


def _s3_secret(url: str) -> str:
    """What lets DuckDB read the bucket, from where `Bucket` takes it."""
    bucket = s3_place(url)
    values = {
        "KEY_ID": os.environ.get("AWS_ACCESS_KEY_ID"),
        "SECRET": os.environ.get("AWS_SECRET_ACCESS_KEY"),
        "SESSION_TOKEN": os.environ.get("AWS_SESSION_TOKEN"),
        "REGION": bucket["region"],
    }
    options = [f"{name} {quote(value)}" for name, value in values.items() if value]
    if not values["KEY_ID"]:
        options.append("PROVIDER credential_chain")
    if endpoint := bucket["endpoint_override"]:
        scheme, _, host = endpoint.rpartition("://")
        is_secure = (bucket["scheme"] or scheme or "https") == "https"
        options += [f"ENDPOINT {quote(host)}", "URL_STYLE 'path'", f"USE_SSL {is_secure}"]
    return f"CREATE SECRET (TYPE s3, {', '.join(options)})"
