"""SQL that a person typed: it reads the run, nothing else, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from evasions import EVASIONS, nothing_changes, written
from made_run import make_run

from echoscope.dashboard.data import sql as sql_box
from echoscope.dashboard.page.problems import Problem

Serve = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path, serve_root: Serve) -> Path:
    serve_root(tmp_path, sql_rows=10, sql_seconds=20.0, sql_memory="200MB")
    make_run(tmp_path / "a", 4)
    return tmp_path


@pytest.mark.parametrize("name", sql_box.EXAMPLES)
def test_the_examples_run(name: str, root: Path) -> None:
    answer = sql_box.ask("a", sql_box.EXAMPLES[name])
    assert len(answer.table.columns) > 0


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT step FROM steps ORDER BY step",
        "SELECT step FROM steps ORDER BY step;",
        "SELECT step FROM steps ORDER BY step -- by step",
        "SELECT step FROM steps ORDER BY step /* ) */",
        "WITH s AS (SELECT step FROM steps) SELECT * FROM s ORDER BY step",
        "FROM (SELECT step FROM steps ORDER BY step)",
    ],
)
def test_one_select_in_any_form(sql: str, root: Path) -> None:
    assert sql_box.ask("a", sql).table.to_pydict() == {"step": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "SELECT 1; SELECT 2",
        "SELECT 1); DROP TABLE live_steps; SELECT (2",
        "SELECT 1) UNION ALL (SELECT 2",
        "DROP TABLE live_steps",
        "EXPLAIN ANALYZE DROP TABLE live_steps",
        "INSERT INTO live_steps SELECT * FROM steps",
        "SET memory_limit = '100GB'",
        "PRAGMA enable_external_access",
        "ATTACH 'x.db'",
        "COPY (SELECT 1) TO 'x.csv'",
        "INSTALL httpfs",
        "CALL pragma_version()",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('../other/secret.csv')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_text('http://127.0.0.1:1/')",
        "SELECT getenv('HOME')",
        "not sql at all",
        "SELECT nothing FROM steps",
        "x" * 30_000,
    ],
)
def test_what_is_refused(sql: str, root: Path) -> None:
    with pytest.raises(Problem) as caught:
        sql_box.ask("a", sql)
    assert "Traceback" not in caught.value.text
    assert sql_box.ask("a", "SELECT count(*) FROM steps").table.column(0)[0].as_py() == 4


@pytest.mark.long
def test_no_evasion_is_answered_or_touches_a_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    count = "SELECT (SELECT count(*) FROM steps), (SELECT sum(value) FROM metrics)"
    before = sql_box.ask("a", count).table.to_pylist()
    for sql in EVASIONS:
        with nothing_changes(root):
            with pytest.raises(Problem) as caught:
                sql_box.ask("a", written(sql, root / "a"))
            assert "Traceback" not in caught.value.text, sql
            assert sql_box.ask("a", count).table.to_pylist() == before, sql


def test_rows_are_cut_and_it_says_so(root: Path) -> None:
    answer = sql_box.ask("a", "SELECT * FROM range(1000) ORDER BY 1")
    assert (answer.table.num_rows, answer.is_cut) == (10, True)
    assert answer.table.column(0).to_pylist() == list(range(10))
    assert not sql_box.ask("a", "SELECT * FROM range(10)").is_cut


def test_a_query_without_end_is_stopped(root: Path, serve_root: Serve) -> None:
    serve_root(root, sql_seconds=0.3)
    with pytest.raises(Problem, match=r"stopped after 0\.3 seconds"):
        sql_box.ask("a", "SELECT count(*) FROM range(1000000000000) t(x) WHERE x % 7 = 3")
    serve_root(root)
    assert sql_box.ask("a", "SELECT 1").table.num_rows == 1


def test_a_query_without_bound_is_refused(root: Path) -> None:
    with pytest.raises(Problem, match="needs more memory"):
        sql_box.ask("a", "SELECT list(x) FROM range(100000000) t(x)")


def test_csv_holds_lists_as_json_and_no_formulas() -> None:
    table = pa.table(
        {"=a": ["=1+1", "plain", None], "n": [[1, 2], None, []], "x": [1.5, None, -2.0]}
    )
    read = pacsv.read_csv(pa.BufferReader(sql_box.csv_bytes(table))).to_pydict()
    assert read == {
        "'=a": ["'=1+1", "plain", ""],
        "n": ["[1, 2]", "", "[]"],
        "x": [1.5, None, -2.0],
    }


def test_csv_holds_pictures_as_base64() -> None:
    table = pa.table({"png": pa.array([b"\x89PNG", None], pa.binary())})
    assert sql_box.csv_bytes(table) == b'"png"\n"iVBORw=="\n\n'


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        pytest.param(
            "SELECT list(range) FROM range(60000000) GROUP BY range % 7",
            "needs more memory",
            marks=pytest.mark.long,
        ),
        ("SELECT 1" + " + 1" * 3000, "is nested too deeply; write it in fewer levels"),
    ],
)
def test_a_limit_is_said_with_a_way_out_that_there_is(root: Path, sql: str, sentence: str) -> None:
    with pytest.raises(Problem, match=sentence) as caught:
        sql_box.ask("a", sql)
    assert "SET" not in caught.value.text
    assert "temp_directory" not in caught.value.text
