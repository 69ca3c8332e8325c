"""Projects of trackio, written by its own code (`fixtures/trackio/written_by.py`)."""

from __future__ import annotations

import math
import shutil
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.store.importers.spooled import trackio_traces

TRACKIO = Path(__file__).parents[1] / "fixtures" / "trackio" / "ragen.db"


def test_runs_of_a_trackio_project() -> None:
    table = read_metrics(TRACKIO)
    assert (table.kind, table.run, table.runs) == ("trackio", "lake-1", ("lake-1", "lake-2"))
    assert table.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert table.raw["critic/score/mean"] == pytest.approx([0.05 * k for k in range(1, 7)])
    assert table.raw["val-env/lake/success"].tolist() == [1.0] * 6
    assert math.isinf(table.raw["actor/entropy"][2]), "trackio writes NaN as text"
    assert table.raw["wall_time"][0] > 1.7e9
    other = read_metrics(TRACKIO, run="lake-2")
    assert other.raw["critic/score/mean"] == pytest.approx([0.1 * k for k in range(1, 5)])
    with pytest.raises(MetricsFileError, match="no run 'lake-3'; its runs are: lake-1, lake-2"):
        read_metrics(TRACKIO, run="lake-3")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE notes (a)",
        "CREATE TABLE metrics (a, b)",
        "CREATE VIEW metrics AS SELECT 'a' run_name, 1 step, '{\"reward\": 1}' metrics",
    ],
)
def test_another_programs_database_is_refused(statement: str, tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(statement)
    with pytest.raises(MetricsFileError, match="but not one of trackio: it has no table"):
        read_metrics(file)


def test_a_locked_database_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackio_traces, "BUSY_S", 0.01)
    file = tmp_path / "p.db"
    shutil.copy(TRACKIO, file)
    with closing(sqlite3.connect(file)) as database:
        database.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            MetricsFileError, match=r"has locked the SQLite database .* copy the file"
        ):
            read_metrics(file)


def test_a_project_is_read_while_trackio_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "p.db"
    shutil.copy(TRACKIO, file)
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("INSERT INTO metrics SELECT NULL, run_id, timestamp, run_name, 7, metrics,"
                         " NULL, NULL FROM metrics WHERE id = 1")  # fmt: skip
        assert read_metrics(file).steps.tolist() == [1, 2, 3, 4, 5, 6], "not committed yet"
        database.commit()
        assert read_metrics(file).steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert list(tmp_path.glob("*.db")) == [file]


def test_half_a_database_is_one_sentence(tmp_path: Path) -> None:
    data = TRACKIO.read_bytes()
    file = tmp_path / "p.db"
    for size in range(100, len(data), 1500):
        file.write_bytes(data[:size])
        with pytest.raises(MetricsFileError, match=r"damaged|not one of trackio"):
            read_metrics(file)


def test_nothing_is_written_into_the_folder_of_a_database(tmp_path: Path) -> None:
    shutil.copy(TRACKIO, tmp_path / "p.db")
    before = zlib.crc32((tmp_path / "p.db").read_bytes())
    read_metrics(tmp_path / "p.db")
    assert [file.name for file in tmp_path.iterdir()] == ["p.db"]
    assert zlib.crc32((tmp_path / "p.db").read_bytes()) == before
