"""The page SQL: a query runs when a person says so, and its answer is only text and numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from made_run import make_run
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.data.sql import shown_frame

OpenPage = Callable[..., AppTest]


def run_query(page: AppTest, sql: str) -> AppTest:
    page.text_area[0].set_value(sql)
    return page.button[0].click().run()


def test_a_query_in_the_address_is_typed_in_and_does_not_run(
    tmp_path: Path, open_page: OpenPage
) -> None:
    make_run(tmp_path / "a", 4)
    page = open_page("sql", tmp_path, run="a", sql="SELECT 42 AS answer")
    assert page.text_area[0].value == "SELECT 42 AS answer"
    assert len(page.dataframe) == 1  # the columns of a table, and no answer
    page = page.button[0].click().run()
    assert page.dataframe[1].value.to_dict("list") == {"answer": [42]}
    assert page.query_params["sql"] == "SELECT 42 AS answer"


def test_an_example_is_typed_in(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "a")
    page = open_page("sql", tmp_path, run="a")
    page = page.selectbox(key="_sql_example").select("Evaluations").run()
    assert "FROM metrics" in page.text_area[0].value


def test_a_refused_query_is_explained(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "a")
    page = run_query(open_page("sql", tmp_path, run="a"), "DROP TABLE steps")
    assert not page.exception
    assert "DROP is not allowed" in page.text[0].value


def test_an_answer_without_rows(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "a")
    page = run_query(open_page("sql", tmp_path, run="a"), "SELECT 1 WHERE false")
    assert page.text[0].value == "The query has no rows."


def test_the_answer_of_another_run_is_not_shown(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    page = run_query(open_page("sql", tmp_path, run="a"), "SELECT 1")
    assert len(page.dataframe) == 2
    page = page.selectbox(key="_run_picker").select("b").run()
    assert page.query_params["run"] == "b"
    assert len(page.dataframe) == 1


def test_cells_are_cut_and_visible() -> None:
    table = pa.table(
        {
            "text": ["<b>x</b>", "a\u202eb", "x" * 5_000_000, None],
            "list": [[1], None, [], [2, 3]],
            "number": [1.5, None, 2.5, 3.5],
        }
    )
    frame = shown_frame(table)
    text = frame["text"].tolist()
    assert text[0] == "<b>x</b>"  # a table shows text as it is
    assert "RIGHT-TO-LEFT OVERRIDE" in text[1]
    assert len(text[2]) < 2_100
    assert frame["list"].tolist() == ["[1]", None, "[]", "[2, 3]"]


def test_columns_of_one_name_are_told_apart() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert list(shown_frame(table).columns) == ["a", "a (2)"]


def test_nan_and_null_are_told_apart() -> None:
    table = pa.table(
        {"value": pa.array([0.5, float("nan"), None, float("inf")]), "n": [1, 2, 3, 4]}
    )
    frame = shown_frame(table)
    assert frame["value"].tolist() == ["0.5", "nan", None, "inf"]
    assert frame["n"].tolist() == [1, 2, 3, 4]
    assert shown_frame(pa.table({"value": [0.5, None]}))["value"].isna().tolist() == [False, True]
