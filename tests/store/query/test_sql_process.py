"""SQL of somebody else ends with its time and its memory, wherever DuckDB spends them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from made_run import add_steps, make_run, open_writer
from sql_bombs import BOMBS

from echoscope.store.errors import NotARunError, QueryError
from echoscope.store.query import sql_process
from echoscope.store.query.sql_process import RunningQuery, SqlLimits, ask
from echoscope.store.reader import open_run, open_runs

LIMITS = SqlLimits(seconds=60, memory="300MB")
SHORT = SqlLimits(seconds=0.5, memory="300MB", rows=100, answer_bytes=10_000_000)
PATIENCE_S = 60.0
ENDLESS = BOMBS["a count of a million million"]
MOST_GROWTH = 100 << 20
"""Of this process, while others are filled to their limits."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "a", 4)


@pytest.fixture
def none_waits() -> Iterator[None]:
    sql_process.end_all()
    yield
    sql_process.end_all()


def processes() -> list[int]:
    """Those that answer queries: tests before this one leave children of other kinds."""
    return sorted(child.pid for child in psutil.Process().children() if _answers_queries(child))


def _answers_queries(child: psutil.Process) -> bool:
    try:
        return "store.query.worker" in " ".join(child.cmdline())
    except psutil.NoSuchProcess:  # it has ended, whether or not somebody has waited for it
        return False


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.long
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_within_the_limits_and_says_so(name: str, run: Path) -> None:
    before = peak_bytes()
    with pytest.raises(QueryError) as caught:
        ask(run, BOMBS[name], limits=SHORT)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    assert "SET " not in message
    assert peak_bytes() - before < MOST_GROWTH
    assert ask(run, "SELECT count(*) AS n FROM steps", limits=LIMITS).table["n"][0].as_py() == 4


@pytest.mark.long
def test_a_plan_without_end_is_ended(run: Path) -> None:
    with pytest.raises(QueryError, match=r"stopped after 0\.5 seconds|needs more memory"):
        ask(run, BOMBS["columns that double"], limits=SHORT)


def test_one_process_answers_many_questions(run: Path, none_waits: None) -> None:
    assert ask(run, "SELECT 1 AS x", limits=LIMITS).table.to_pydict() == {"x": [1]}
    (first,) = processes()
    large = ask(run, "SELECT x, repeat('y', 100) AS t FROM range(20000) t(x)", limits=LIMITS)
    assert large.table.num_rows == 20_000
    for wrong in (
        "SELECT nothing FROM steps",
        "DROP TABLE steps",
        "SELECT '\ud800'",
        "SELECT 1; SELECT 2",
    ):
        with pytest.raises(QueryError):
            ask(run, wrong, limits=LIMITS)
    assert ask(run, "SELECT max(step) AS s FROM steps", limits=LIMITS).table["s"][0].as_py() == 3
    assert processes() == [first]


def test_after_a_process_was_ended_another_one_answers(run: Path, none_waits: None) -> None:
    ask(run, "SELECT 1", limits=LIMITS)
    (first,) = processes()
    os.kill(first, signal.SIGKILL)
    psutil.Process(first).wait(PATIENCE_S)
    assert ask(run, "SELECT 1 AS x", limits=LIMITS).table.to_pydict() == {"x": [1]}


def test_a_process_that_dies_with_a_question_is_one_sentence(run: Path, none_waits: None) -> None:
    running = RunningQuery()
    ask(run, "SELECT 1", limits=LIMITS)
    (process,) = processes()
    threading.Timer(0.3, os.kill, (process, signal.SIGKILL)).start()
    with pytest.raises(QueryError, match="needs more than the 300MB"):
        ask(run, ENDLESS, limits=LIMITS, running=running)


def test_rows_parameters_and_types_come_back_as_they_are(run: Path) -> None:
    sql = "SELECT $2 AS t, $1 AS l, MAP {'a': 1} AS m, 1.5::DECIMAL(4, 2) AS d, NULL AS n, 'é' AS u"
    first, other = (
        open_run(run).sql(sql, [[1, 2], "x"]),
        open_run(run).sql(sql, [[1, 2], "x"], limits=LIMITS),
    )
    assert first.schema.equals(other.schema)
    assert first.to_pylist() == other.to_pylist()
    named = ask(run, "SELECT $a + $b AS s", {"a": 1, "b": 2}, limits=LIMITS)
    assert named.table.to_pydict() == {"s": [3]}
    none = ask(run, "SELECT step FROM steps WHERE step IN (SELECT unnest($1))", [()], limits=LIMITS)
    assert none.table.num_rows == 0


def test_a_live_run_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    count = "SELECT count(*) AS n FROM steps"
    with open_writer(tmp_path / "a") as writer:
        add_steps(writer, "a", range(2))
        assert ask(tmp_path / "a", count, limits=LIMITS).table["n"][0].as_py() == 2
        add_steps(writer, "a", range(2, 5))
        assert ask(tmp_path / "a", count, limits=LIMITS).table["n"][0].as_py() == 5


def test_another_run_in_the_place_of_one_is_read(tmp_path: Path, run: Path) -> None:
    count = "SELECT count(*) AS n FROM steps"
    assert ask(run, count, limits=LIMITS).table["n"][0].as_py() == 4
    run.rename(tmp_path / "away")
    make_run(run, 2)
    assert ask(run, count, limits=LIMITS).table["n"][0].as_py() == 2


def test_a_folder_of_runs_and_relative_names(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "b", 1)
    monkeypatch.chdir(tmp_path)
    count = "SELECT count(*) AS n FROM runs"
    assert ask(".", count, limits=LIMITS).table["n"][0].as_py() == 2
    assert ask("b", count, limits=LIMITS).table["n"][0].as_py() == 1
    assert open_runs(tmp_path).sql(count, limits=LIMITS)["n"][0].as_py() == 2
    with pytest.raises(NotARunError, match="c: no such folder"):
        ask("c", count, limits=LIMITS)
    (tmp_path / "d").mkdir()
    with pytest.raises(NotARunError, match="d: not a run, and holds none"):
        ask("d", count, limits=LIMITS)


def test_rows_are_cut_and_a_large_answer_is_refused(run: Path) -> None:
    limits = SqlLimits(memory="300MB", rows=3, answer_bytes=1_000)
    answer = ask(run, "SELECT x FROM range(10) t(x) ORDER BY x -- all", limits=limits)
    assert (answer.table["x"].to_pylist(), answer.is_cut) == ([0, 1, 2], True)
    assert not ask(run, "SELECT x FROM range(3) t(x);", limits=limits).is_cut
    with pytest.raises(QueryError, match="the answer has 3 MB, at most 0 MB are given"):
        ask(run, "SELECT repeat('x', 1000000) FROM range(3)", limits=limits)


def test_a_query_can_be_interrupted_from_another_thread(run: Path) -> None:
    reader = open_run(run)
    timer = threading.Timer(1.0, reader.interrupt)
    timer.start()
    with pytest.raises(QueryError, match="the query was interrupted"):
        reader.sql(ENDLESS, limits=LIMITS)
    assert reader.sql("SELECT 1 AS x", limits=LIMITS).to_pydict() == {"x": [1]}


def test_what_is_no_limit_is_refused(run: Path) -> None:
    with pytest.raises(QueryError, match="a memory limit is 500MB or 4GB, not 'much'"):
        SqlLimits(memory="much")
    with pytest.raises(
        QueryError, match="a query may take 0 seconds, but the limit must be above 0"
    ):
        SqlLimits(seconds=0)
    with pytest.raises(QueryError, match=r"stopped after 0\.5 seconds.*allow more$"):
        ask(run, ENDLESS, limits=replace(SHORT, advice="Flags allow more"))


def test_damage_is_named_where_it_is_asked_for(run: Path) -> None:
    broken = next((run / "seg" / "turns").glob("00000001-*"))
    broken.write_bytes(b"no parquet")
    answer = ask(run, "FROM turns", limits=LIMITS)
    assert broken.name in answer.warnings[0]


def test_the_process_holds_no_secret_and_writes_no_file(
    run: Path, monkeypatch: pytest.MonkeyPatch, none_waits: None
) -> None:
    monkeypatch.setenv("ECHOSCOPE_PASSWORD", "correct horse")
    ask(run, "SELECT 1", limits=LIMITS)
    (pid,) = processes()
    assert "ECHOSCOPE_PASSWORD" not in psutil.Process(pid).environ()
    assert psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
    modules = "torch", "streamlit"
    mapped = " ".join(m.path for m in psutil.Process(pid).memory_maps())
    assert not [name for name in modules if f"/{name}/" in mapped]


@pytest.mark.long
def test_a_query_ends_although_whoever_asked_was_killed(run: Path) -> None:
    script = f"""
        from echoscope.store.query.sql_process import SqlLimits, ask, warm_up
        import psutil, threading
        limits = SqlLimits(seconds=3, memory="4GB")
        ask({str(run)!r}, "SELECT 1", limits=limits)
        print(psutil.Process().children()[0].pid, flush=True)
        ask({str(run)!r}, {BOMBS["macros that double"]!r}, limits=limits)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        worker = psutil.Process(int(asking.stdout.readline()))
        asking.kill()
    worker.wait(PATIENCE_S)


def test_a_table_of_parameters_is_refused_in_one_line(run: Path) -> None:
    with pytest.raises(QueryError, match="a parameter has no type that a query knows"):
        ask(run, "SELECT $1", [object()], limits=LIMITS)
