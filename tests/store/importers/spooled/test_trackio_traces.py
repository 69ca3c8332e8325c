"""Traces of trackio projects: beside metrics, of several runs, and in files that are damaged."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rollout_import import import_run

from echoscope.diagnostics.tools.importing import import_path
from echoscope.store.importers.importing import ImportingError
from echoscope.store.importers.sources import SourceError, source_of
from echoscope.store.importers.spooled.trackio_traces import columns_of, opened_database
from echoscope.store.reader import open_run

from ..conftest import FIXTURES

PROJECT = FIXTURES / "trackio" / "lake.db"


def changed(folder: Path, *statements: str) -> Path:
    """A copy of the project with these statements run."""
    file = folder / "lake.db"
    shutil.copy(PROJECT, file)
    with closing(sqlite3.connect(file)) as database, database:
        for statement in statements:
            database.execute(statement)
    return file


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    """The project with a second run, whose replies are others."""
    return changed(
        tmp_path,
        "INSERT INTO traces SELECT id || 'b', 'b', timestamp, 'lake-2', step, key, trace_index, "
        "replace(CAST(messages AS TEXT), '6', '7'), metadata, '', log_id, space_id, spans "
        "FROM traces WHERE step = 1",
        "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) "
        "SELECT 'b', timestamp, 'lake-2', step, '{\"critic/score/mean\": 0.875}' FROM metrics",
    )


def replies(run: Path) -> list[str]:
    rows = open_run(run).sql("SELECT response FROM turns ORDER BY trajectory_id, turn")
    return [text for text in rows.column("response").to_pylist() if "<" not in text]


@pytest.mark.parametrize("path", [PROJECT, PROJECT.parent], ids=["a file", "a folder"])
def test_traces_and_metrics_of_a_project_are_one_run(path: Path, tmp_path: Path) -> None:
    report = import_path(path, tmp_path / "run")
    assert (report.written.num_kept, report.written.trainer) == (4, "trackio")
    reader = open_run(tmp_path / "run")
    assert reader.metrics("critic/score/mean")[1].tolist() == [0.25, 0.5]
    assert reader.metrics("rollout/success_rate")[1].tolist() == [0.5, 1.0]
    assert reader.metrics("eval/all/success_rate")[1].tolist() == [0.0]


def test_the_run_is_chosen_by_name(two_runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ImportingError, match="lake-1, lake-2"):
        import_path(two_runs, tmp_path / "none")
    with pytest.raises(ImportingError, match=r"traces of 2 runs \(lake-1; lake-2\); choose one"):
        import_run(two_runs, tmp_path / "none")
    import_path(two_runs, tmp_path / "second", run="lake-2")
    assert replies(tmp_path / "second") == ["5", "7"]
    values = open_run(tmp_path / "second").metrics("critic/score/mean")[1]
    assert values.tolist() == [0.875, 0.875]


def test_a_project_without_metrics(two_runs: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(two_runs)) as database, database:
        database.execute("DELETE FROM metrics")
    with pytest.raises(ImportingError, match="choose one with --run NAME"):
        import_path(two_runs, tmp_path / "none")
    import_path(two_runs, tmp_path / "run", run="lake-2")
    assert replies(tmp_path / "run") == ["5", "7"]


@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM traces"],
        ["ALTER TABLE traces RENAME COLUMN messages TO words"],
        ["ALTER TABLE traces RENAME TO t", "CREATE VIEW traces AS SELECT * FROM t"],
    ],
)
def test_a_project_without_traces_is_metrics(statements: list[str], tmp_path: Path) -> None:
    file = changed(tmp_path, *statements)
    assert source_of(file, tmp_path, "") is None
    assert import_path(file, tmp_path / "run").written.num_kept == 0


def test_a_damaged_project_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lake.db").write_bytes(PROJECT.read_bytes()[:3000])
    with pytest.raises(SourceError, match="the SQLite database is "):
        source_of(tmp_path / "lake.db", tmp_path, "")


def test_a_name_that_is_no_text_is_opened(tmp_path: Path) -> None:
    shutil.copy(PROJECT, tmp_path / os.fsdecode(b"\xff.db"))
    assert import_path(tmp_path, tmp_path / "run").written.num_kept == 4


def test_a_trace_without_messages_is_left_out(tmp_path: Path) -> None:
    file = changed(
        tmp_path,
        "UPDATE traces SET messages = '[{' WHERE step = 1 AND trace_index = 0",
        "UPDATE traces SET metadata = '5' WHERE step = 1 AND trace_index = 1",
    )
    report = import_run(file, tmp_path / "run")
    assert report.num_kept == 3
    assert dict(report.survey.refused_rows.counts) == {"the trace has no messages": 1}


def test_a_schema_that_sqlite_quotes_in_no_utf8_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "demo.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE traces (a)")
        database.execute("PRAGMA writable_schema = ON")
        database.execute(
            "UPDATE sqlite_master SET name = CAST(x'8b' AS TEXT), sql = 'CREATE TABLE ('"
        )
    with (
        pytest.raises(sqlite3.DatabaseError, match="its schema is no text in UTF-8"),
        opened_database(path) as database,
    ):
        columns_of(database, "traces")
