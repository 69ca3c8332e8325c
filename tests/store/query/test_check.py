"""A query reads the run and does nothing else: by its check, and again by its connection."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from evasions import CTES, EVASIONS, nothing_changes, written

from echoscope.store.errors import QueryError
from echoscope.store.log.index import RunIndex
from echoscope.store.query.check import (
    REFUSED_FUNCTIONS,
    TABLE_FUNCTIONS,
    CheckedQuery,
    checked_query,
)
from echoscope.store.query.database import RunDatabase
from echoscope.store.query.sql_process import RunningQuery
from echoscope.store.reader import RunReader, open_run, open_runs

ANSWERS = (
    "SELECT step, return_mean FROM steps ORDER BY step",
    "SELECT key, sum(value) FROM metrics GROUP BY key ORDER BY key",
    "SELECT count(*), sum(episode_return) FROM trajectories",
    "FROM commands",
)


def answers(reader: RunReader) -> list[object]:
    return [reader.sql(sql).to_pylist() for sql in ANSWERS]


def unchecked(database: RunDatabase, sql: str) -> pa.Table:
    """The answer to a query that nobody has checked."""
    return database.run(CheckedQuery(sql=sql, tables=()), None, RunningQuery())


def test_the_corpus_has_more_than_fourteen_forms_of_with() -> None:
    assert len(CTES) >= 14
    assert len(set(EVASIONS)) == len(EVASIONS)


@pytest.fixture
def work(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that relative names lead to."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def passes(sql: str) -> bool:
    with suppress(QueryError):
        checked_query(written(sql, Path("/runs/a")))
        return True
    return False


def test_the_check_alone_refuses_every_evasion_that_names_something_which_exists() -> None:
    assert [sql for sql in EVASIONS if passes(sql)] == [
        "SELECT getenv('HOME')",
        "FROM __import__",
        "FROM new_rows",
    ]


@pytest.mark.long
def test_no_evasion_passes_the_check_or_touches_a_file(work: Path, finished_run: Path) -> None:
    reader = open_run(finished_run)
    before = answers(reader)
    for sql in EVASIONS:
        with nothing_changes(work):
            with pytest.raises(QueryError) as caught:
                reader.sql(written(sql, finished_run))
            assert "\n" not in str(caught.value), sql
            assert "Traceback" not in str(caught.value), sql
            assert answers(reader) == before, sql


@pytest.mark.long
def test_without_the_check_the_connection_still_has_nothing_to_write_to(
    work: Path, finished_run: Path
) -> None:
    index = RunIndex(finished_run)
    database = RunDatabase(finished_run, [index])
    reader = RunReader(database, index)
    before = answers(reader)
    for sql in EVASIONS:
        with nothing_changes(work):
            # A statement without rows has no table to give.
            with suppress(QueryError, duckdb.Error, AttributeError):
                unchecked(database, written(sql, finished_run))
            assert answers(reader) == before, sql


@pytest.mark.parametrize("name", ["passwd", "journal", "run.json", "manifest"])
def test_without_the_check_no_other_file_can_be_read(finished_run: Path, name: str) -> None:
    database = RunDatabase(finished_run, [RunIndex(finished_run)])
    path = {"passwd": "/etc/passwd", "journal": f"{finished_run}/journal.ndjson"}.get(
        name, f"run://0/{name}"
    )
    for function in ("read_text", "read_csv", "read_blob", "read_json"):
        try:
            rows = unchecked(database, f"SELECT * FROM {function}('{path}')")
        except QueryError:
            continue
        assert rows.num_rows == 0


def test_several_runs_are_guarded_as_one(work: Path, finished_run: Path) -> None:
    reader = open_runs(finished_run.parent)
    for sql in CTES:
        with nothing_changes(work), pytest.raises(QueryError):
            reader.sql(written(sql, finished_run))


@pytest.mark.parametrize(
    "sql",
    [
        "FROM steps",
        "TABLE steps",
        "VALUES (1, 'a')",
        "(SELECT 1)",
        "SELECT step FROM steps;",
        "SELECT /* COPY x TO 'y' */ 'WITH x AS (DELETE FROM steps) FROM x' AS text -- DELETE",
        "WITH a AS (FROM steps), b AS MATERIALIZED (FROM a) SELECT * FROM b",
        "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3) FROM n",
        "PIVOT steps ON step IN (0, 1) USING avg(return_mean)",
        "UNPIVOT (SELECT step, return_mean, success_rate FROM steps) ON return_mean, success_rate",
        "SELECT * FROM steps ASOF JOIN metrics USING (step)",
        "SELECT step, lag(return_mean) OVER (ORDER BY step) FROM steps QUALIFY step > 0",
        "SELECT list_transform(actions, lambda a: upper(a)) FROM turns",
        "SELECT unnest(actions) FROM turns",
        "SELECT reward_terms['env'], info FROM trajectories JOIN turns ON id = trajectory_id",
        "SELECT step FROM steps UNION SELECT 9 EXCEPT SELECT 1",
        "SELECT split, count(*) FROM trajectories GROUP BY ROLLUP (split)",
        "SELECT * EXCLUDE (step) REPLACE (0 AS attempt) FROM steps",
        "SELECT COLUMNS('.*mean') FROM steps",
        "SELECT * FROM turns USING SAMPLE 3 ROWS",
        "SELECT * FROM range(3) r(i), LATERAL (SELECT i + 1)",
        "SELECT * FROM json_each('[1]')",
        "SHOW TABLES",
        "DESCRIBE turns",
        "DESCRIBE SELECT 1",
        "SUMMARIZE steps",
        "SELECT try_cast('x' AS INTEGER), 1.5::DECIMAL(3, 1), DATE '2020-01-01', random() < 2",
        "SELECT sum(value) FILTER (WHERE phase = 'train') FROM metrics HAVING count(*) > 0",
    ],
)
def test_what_reads_is_welcome(finished_run: Path, sql: str) -> None:
    assert open_run(finished_run).sql(sql).num_columns > 0


def test_a_function_of_a_table_sees_its_rows(finished_run: Path) -> None:
    run = open_run(finished_run)
    for table in ("steps", "trajectories"):
        bins = run.sql(f"FROM histogram({table}, step)").column("count").to_pylist()
        assert sum(bins) == run.sql(f"FROM {table}").num_rows > 0


def test_a_pivot_without_values_says_what_to_write() -> None:
    with pytest.raises(QueryError, match=r"PIVOT steps ON split IN \('train', 'eval'\)"):
        checked_query("PIVOT steps ON step USING sum(return_mean)")


def test_every_function_that_duckdb_says_has_side_effects_is_judged() -> None:
    """A new DuckDB may bring functions that write: this fails until somebody looked at them."""
    harmless = {
        *("current_connection_id", "current_query", "current_query_id", "current_transaction_id"),
        *("error", "gen_random_uuid", "random", "uuid", "uuidv4", "uuidv7", "vector_type"),
    }
    functions = duckdb.connect().sql(
        "SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE has_side_effects AND function_type = 'scalar'"
    )
    assert {name for (name,) in functions.fetchall()} - harmless <= REFUSED_FUNCTIONS


def test_allowed_table_functions_exist_and_reach_no_file() -> None:
    overloads = duckdb.connect().sql("SELECT function_name, parameters FROM duckdb_functions()")
    parameters: dict[str, set[str]] = {}
    for name, names in overloads.fetchall():
        parameters.setdefault(name, set()).update(names or ())
    assert parameters.keys() >= TABLE_FUNCTIONS
    # The path of these two leads into their text and into no file.
    for name in TABLE_FUNCTIONS - {"json_each", "json_tree"}:
        assert not {"path", "file", "filename", "path_or_buffer"} & parameters[name], name
    for name in TABLE_FUNCTIONS & {"json_each", "json_tree"}:
        assert parameters[name] == {"json", "path"}


def test_an_interrupt_before_the_query_starts_is_not_lost(finished_run: Path) -> None:
    database = RunDatabase(finished_run, [RunIndex(finished_run)])
    query = RunningQuery()
    query.interrupt()
    with pytest.raises(QueryError, match="interrupted"):
        database.run(checked_query("SELECT 1"), None, query)
    query.begin()
    assert database.run(checked_query("SELECT 1"), None, query).num_rows == 1


def test_half_a_character_is_refused_in_one_line() -> None:
    with pytest.raises(QueryError, match="half of a character"):
        checked_query("SELECT '\ud800'")
