"""Traces of trackio projects: of several runs, beside metrics, and in files that are damaged."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from echoscope.diagnostics.tools.importing import SeveralRunsError, import_path
from echoscope.store.importers.importing import ImportingError, import_run
from echoscope.store.importers.sources import SourceError, source_of
from echoscope.store.importers.spooled.trackio_traces import columns_of, opened_database
from echoscope.store.reader import open_run

from .conftest import FIXTURES

PROJECT = FIXTURES / "trackio" / "lake.db"


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    """The project with a second run, whose replies are others."""
    file = tmp_path / "lake.db"
    shutil.copy(PROJECT, file)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(
            "INSERT INTO traces SELECT id || 'b', 'b', timestamp, 'lake-2', step, key, "
            "trace_index, replace(CAST(messages AS TEXT), '6', '7'), metadata, '', log_id, "
            "space_id, spans "
            "FROM traces WHERE step = 1"
        )
        database.execute(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) "
            "SELECT 'b', timestamp, 'lake-2', step, '{\"critic/score/mean\": 0.875}' FROM metrics"
        )
    return file


def replies(run: Path) -> list[str]:
    rows = open_run(run).sql("SELECT response FROM turns ORDER BY trajectory_id, turn")
    return [text for text in rows.column("response").to_pylist() if "<" not in text]


def test_traces_and_metrics_of_a_project_are_one_run(tmp_path: Path) -> None:
    report = import_path(PROJECT, tmp_path / "run")
    assert (report.written.num_kept, report.written.trainer) == (4, "trackio")
    reader = open_run(tmp_path / "run")
    assert reader.metrics("critic/score/mean")[1].tolist() == [0.25, 0.5]
    assert reader.metrics("rollout/success_rate")[1].tolist() == [0.5, 1.0]
    assert reader.metrics("eval/all/success_rate")[1].tolist() == [0.0]


def test_a_project_in_a_folder_gives_both(tmp_path: Path) -> None:
    report = import_path(PROJECT.parent, tmp_path / "run")
    assert report.written.num_kept == 4
    assert report.metrics is not None
    assert open_run(tmp_path / "run").metrics("critic/score/mean")[1].tolist() == [0.25, 0.5]


def test_the_run_is_chosen_by_name(two_runs: Path, tmp_path: Path) -> None:
    with pytest.raises(SeveralRunsError, match="lake-1, lake-2"):
        import_path(two_runs, tmp_path / "none")
    with pytest.raises(ImportingError, match=r"traces of 2 runs \(lake-1; lake-2\); choose one"):
        import_run(two_runs, tmp_path / "none")
    for name, run in (("lake-1", "first"), ("lake-2", "second")):
        report = import_path(two_runs, tmp_path / run, run=name)
        assert report.metrics is not None
        assert not any("--run" in note for note in report.metrics.table.notes), "it was chosen"
    assert replies(tmp_path / "second") == ["5", "7"]
    values = open_run(tmp_path / "second").metrics("critic/score/mean")[1]
    assert values.tolist() == [0.875, 0.875]


def test_a_project_without_metrics(two_runs: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(two_runs)) as database, database:
        database.execute("DELETE FROM metrics")
    import_path(two_runs, tmp_path / "run", run="lake-2")
    assert replies(tmp_path / "run") == ["5", "7"]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM traces",
        "DROP TABLE traces",
        "ALTER TABLE traces RENAME COLUMN messages TO words",
        "ALTER TABLE traces RENAME TO t; CREATE VIEW traces AS SELECT * FROM t",
    ],
)
def test_a_project_without_traces_is_one_of_metrics(statement: str, tmp_path: Path) -> None:
    file = tmp_path / "lake.db"
    shutil.copy(PROJECT, file)
    with closing(sqlite3.connect(file)) as database, database:
        for part in statement.split("; "):
            database.execute(part)
    assert source_of(file, tmp_path, "") is None
    assert import_path(file, tmp_path / "run").written.num_kept == 0


def test_a_damaged_project_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lake.db").write_bytes(PROJECT.read_bytes()[:3000])
    with pytest.raises(SourceError, match="the SQLite database is "):
        source_of(tmp_path / "lake.db", tmp_path, "")


def test_a_name_that_is_no_text_is_opened(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"\xff.db")
    shutil.copy(PROJECT, file)
    assert import_path(tmp_path, tmp_path / "run").written.num_kept == 4


def test_a_trace_without_messages_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "lake.db"
    shutil.copy(PROJECT, file)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE traces SET messages = '[{' WHERE step = 1 AND trace_index = 0")
        database.execute("UPDATE traces SET metadata = '5' WHERE step = 1 AND trace_index = 1")
    report = import_run(file, tmp_path / "run")
    assert report.num_kept == 3
    assert dict(report.rows.counts) == {"the trace has no messages": 1}


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
