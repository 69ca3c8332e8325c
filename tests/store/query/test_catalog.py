"""A DuckLake catalog shows what the runs show, from the files where they lie.

DuckDB's extension comes with `make test-s3`, as does the S3 server; PostgreSQL comes from Debian.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import duckdb
import pytest
from made_run import add_steps, make_run, open_writer
from s3_server import free_port, s3_server
from typer.testing import CliRunner

from echoscope.cli.runs import app
from echoscope.store.log.packing import pack
from echoscope.store.log.remote import pulling
from echoscope.store.log.remote.pulling import local_folder
from echoscope.store.log.remote.pushing import Pushing
from echoscope.store.query.catalog import Catalog, CatalogError
from echoscope.store.reader import open_runs
from echoscope.store.schema import TABLES
from echoscope.store.writer import RunWriter

pytestmark = pytest.mark.s3
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))


def adopt(address: str, root: Path) -> dict[str, int]:
    """Packs that were new, by run."""
    with Catalog(address, root) as catalog:
        return {each.run_id: each.num_packs for each in catalog.adopt(open_runs(root))}


def rows(address: str, table: str) -> list[dict[str, Any]]:
    """What somebody with DuckDB alone sees."""
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH 'ducklake:{address}' AS team (READ_ONLY)")
        columns = ", ".join(f'"{name}"' for name in TABLES[table].column_names)
        sql = f"SELECT {columns} FROM team.{table} ORDER BY ALL"
        return connection.execute(sql).to_arrow_table().to_pylist()


def assert_shows(address: str, root: Path) -> None:
    """Every row of every table, of runs that are packed to their end."""
    reader = open_runs(root)
    for table in TABLES:
        stored = reader.sql(f"SELECT * FROM {table} ORDER BY ALL").to_pylist()
        for row in stored:
            row.pop("updated_at", None)
        assert repr(rows(address, table)) == repr(stored), table


def hashes(root: Path) -> dict[str, str]:
    """Of every data file of the runs."""
    files = root.glob("*/pack/*/*")
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        pack(make_run(tmp_path / "runs" / name, 5, text=f"run {name}"), grace_s=0)
    return tmp_path / "runs"


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "team.ducklake")


def test_a_catalog_shows_every_row_and_takes_a_pack_once(root: Path, address: str) -> None:
    before = hashes(root)
    assert adopt(address, root) == {"a": 1, "b": 1}
    assert_shows(address, root)
    assert adopt(address, root) == {"a": 0, "b": 0}
    assert_shows(address, root)
    assert hashes(root) == before


def test_a_run_that_grows_brings_its_next_pack(root: Path, address: str) -> None:
    writer = open_writer(root / "c", rotate_every=4)
    add_steps(writer, "c", range(6))
    pack(root / "c", grace_s=0)
    assert adopt(address, root)["c"] == 1
    assert max(row["step"] for row in rows(address, "steps") if row["run_id"] == "c") < 5
    add_steps(writer, "c", range(6, 9))
    writer.close(status="finished")
    pack(root / "c", grace_s=0)
    assert adopt(address, root)["c"] >= 1
    assert_shows(address, root)


def test_a_rewind_hides_steps_of_a_pack_and_marks_no_file_for_deletion(
    root: Path, address: str
) -> None:
    path = root / "a"
    before = hashes(root)
    adopt(address, root)
    writer = RunWriter.resume(path, from_step=2)
    adopt(address, root)
    steps = [row["step"] for row in rows(address, "trajectories") if row["run_id"] == "a"]
    assert max(steps) == 2
    add_steps(writer, "a", range(3, 5), text="another way")
    writer.close(status="finished")
    pack(path, grace_s=0)
    adopt(address, root)
    assert_shows(address, root)
    assert before.items() <= hashes(root).items()
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH 'ducklake:{address}' AS team")
        connection.execute("CALL ducklake_expire_snapshots('team', older_than => now())")
        connection.execute("CALL ducklake_cleanup_old_files('team', cleanup_all => true)")
        connection.execute("CHECKPOINT team")
    assert before.items() <= hashes(root).items()
    assert_shows(address, root)


def test_a_damaged_pack_waits_until_it_is_whole(root: Path, address: str) -> None:
    file = next((root / "a").glob("pack/*/turns-*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-100] + bytes(100))
    with Catalog(address, root) as catalog:
        adoptions = list(catalog.adopt(open_runs(root)))
    assert [each.num_packs for each in adoptions] == [0, 1]
    assert str(file) in adoptions[0].waiting[0]
    file.write_bytes(whole)
    assert adopt(address, root) == {"a": 1, "b": 0}
    assert_shows(address, root)


def test_the_command_says_what_came_and_which_run_is_gone(root: Path, address: str) -> None:
    told = CliRunner().invoke(app, ["catalog", address, str(root)])
    assert told.output == f"2 runs, 2 new packs\nATTACH 'ducklake:{address}' AS team (READ_ONLY);\n"
    shutil.rmtree(root / "b")
    told = CliRunner().invoke(app, ["catalog", address, str(root)])
    assert told.stdout.startswith("1 runs, 0 new packs")
    assert "b: in the catalog, but no longer in" in told.stderr


def test_a_catalog_of_another_root_is_refused(root: Path, address: str, tmp_path: Path) -> None:
    adopt(address, root)
    with pytest.raises(CatalogError, match=r"this catalog is of .*/runs, store version 1, not of"):
        Catalog(address, tmp_path / "elsewhere")


def test_a_place_that_cannot_be_written_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no_such_folder"):
        Catalog(str(tmp_path / "no_such_folder" / "team.ducklake"), tmp_path)
    with pytest.raises(CatalogError) as caught:
        Catalog(f"postgres:host=127.0.0.1 port={free_port()} password=hunter2 dbname=x", tmp_path)
    assert "refused" in str(caught.value)
    assert "hunter2" not in str(caught.value)


class Postgres:
    """A server on loopback, which knows no password."""

    def __init__(self, folder: Path) -> None:
        self.data, self.port = folder / "data", free_port()
        self._as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._as:
            os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
            for parent in folder.parents[:2]:
                parent.chmod(0o711)
        self._run("initdb", "-A", "trust", "-U", "postgres", "-D", str(self.data))
        self.start()

    @property
    def address(self) -> str:
        return f"postgres:host=127.0.0.1 port={self.port} dbname=postgres user=postgres"

    def start(self) -> None:
        options = f"-p {self.port} -k {self.data} -c listen_addresses=127.0.0.1"
        log = str(self.data / "log")
        self._run("pg_ctl", "-w", "-D", str(self.data), "-o", options, "-l", log, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-w", "-m", "immediate", "-D", str(self.data), "stop")

    def kill(self) -> None:
        """At once, as when the machine goes away."""
        os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(POSTGRES[-1].with_name(program)), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    if not POSTGRES:
        pytest.skip("needs Debian's package postgresql")
    server = Postgres(tmp_path_factory.mktemp("pg"))
    yield server
    if (server.data / "postmaster.pid").exists():
        server.stop()


def test_postgres_that_is_restarted_between_two_runs_ends_with_the_same_rows(
    root: Path, postgres: Postgres
) -> None:
    with Catalog(postgres.address, root) as catalog:
        adoptions = catalog.adopt(open_runs(root))
        next(adoptions)
        postgres.stop()
        with pytest.raises(CatalogError, match="postgres"):
            next(adoptions)
    postgres.start()
    assert {row["run_id"] for row in rows(postgres.address, "trajectories")} == {"a"}
    assert adopt(postgres.address, root) == {"a": 0, "b": 1}
    assert_shows(postgres.address, root)


def test_two_processes_that_adopt_at_once_add_no_file_twice(root: Path, postgres: Postgres) -> None:
    with Catalog(postgres.address, root) as first, Catalog(postgres.address, root) as second:
        outcomes = []
        for catalog in (first, second, first, second):
            try:
                outcomes.append(next(catalog.adopt(open_runs(root))).num_packs)
            except CatalogError as error:
                outcomes.append(str(error))
    assert sum(each for each in outcomes if isinstance(each, int)) == 1
    adopt(postgres.address, root)
    assert_shows(postgres.address, root)


def test_runs_on_object_storage_are_adopted_there(
    root: Path, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "EVERY_S", 0.0)
    monkeypatch.setenv("ECHOSCOPE_CACHE", str(tmp_path / "cache"))
    with s3_server() as server:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{server}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        bucket = re.sub("[^a-z0-9]", "", tmp_path.name.lower())
        urlopen(Request(f"http://{server}/{bucket}", method="PUT"), timeout=10).close()
        url = f"s3://{bucket}/team/runs"
        for name in ("a", "b"):
            Pushing(root / name, url).push()
        copy = local_folder(url)
        assert adopt(postgres.address, copy) == {"a": 1, "b": 1}
        assert list((tmp_path / "cache").rglob("*.parquet")) == []
        with duckdb.connect() as connection:
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID 'key', SECRET 'secret', ENDPOINT '{server}', "
                "URL_STYLE 'path', USE_SSL false)"
            )
            connection.execute(f"ATTACH 'ducklake:{postgres.address}' AS team (READ_ONLY)")
            counted = connection.execute(
                "SELECT run_id, count(*) FROM team.turns GROUP BY ALL ORDER BY ALL"
            ).fetchall()
    assert counted == [("a", 20), ("b", 20)]
