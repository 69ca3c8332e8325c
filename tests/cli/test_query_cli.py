"""`echoscope query`: one SELECT over a run, printed in three forms, within limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_run import make_run
from sql_bombs import BOMBS

Type = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "a", 3)


def test_columns_of_one_name_are_all_printed(run: Path, type_command: Type) -> None:
    sql = "SELECT 1 AS a, 2 AS a, 3 AS a_2"
    assert json.loads(type_command("query", run, sql, "--json").out) == [
        {"a": 1, "a_3": 2, "a_2": 3}
    ]
    assert type_command("query", run, sql, "--format", "csv").out == "a,a,a_2\n1,2,3\n"
    assert "│ 1 │ 2 │ 3   │" in type_command("query", run, sql).out


@pytest.mark.parametrize("form", ["json", "csv", "table"])
@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT timestamp 'infinity'", "a date or a time of the answer cannot be printed"),
        ("SELECT date 'infinity'", "a date or a time of the answer cannot be printed"),
        ("SELECT * FROM steps LIMIT 99999999999999999999", "the value is out of range"),
        ("SELECT nothing", 'Referenced column "nothing" was not found'),
    ],
)
def test_what_cannot_be_printed_is_one_line(
    run: Path, type_command: Type, form: str, sql: str, why: str
) -> None:
    answer = type_command("query", run, sql, "--format", form)
    assert (answer.code, answer.out) == (1, "")
    assert why in answer.err
    assert answer.err.count("\n") == 1


def test_a_huge_limit_is_all_rows(run: Path, type_command: Type) -> None:
    arguments = ("SELECT step FROM steps", "--format", "csv", "--limit", "9" * 30)
    assert type_command("query", run, *arguments).out == "step\n0\n1\n2\n"


def test_a_query_ends_with_its_time_and_says_how_to_give_more(
    run: Path, type_command: Type
) -> None:
    answer = type_command("query", run, BOMBS["a cross join"], "--timeout", "0.3")
    assert (answer.code, answer.out) == (1, "")
    assert "stopped after 0.3 seconds" in answer.err
    assert answer.err.endswith("--timeout and --memory allow more\n")
    wrong = type_command("query", run, "SELECT 1", "--memory", "much")
    assert (wrong.code, wrong.err) == (1, "error: a memory limit is 500MB or 4GB, not 'much'\n")


def test_damage_is_named_beside_the_answer(run: Path, type_command: Type) -> None:
    broken = next((run / "seg" / "turns").glob("00000001-*"))
    broken.write_bytes(b"no parquet")
    answer = type_command("query", run, "SELECT count(*) AS n FROM turns", "--json")
    assert answer.code == 0
    assert answer.err.startswith("warning: ")
    assert broken.name in answer.err
