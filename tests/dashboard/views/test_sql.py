"""The page SQL: a query runs when a person says so, and its answer is only text and numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
from made_run import make_run
from shown_figures import shown_figures
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.charts.sql_result import (
    chart,
    colour_columns,
    colour_values,
    numeric_columns,
    repeats,
    shown_frame,
)

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
    page = page.selectbox(key="_sql_example").select("Who steered").run()
    assert "FROM commands" in page.text_area[0].value


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


def test_answers_can_be_drawn(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "a", 5)
    page = run_query(open_page("sql", tmp_path, run="a"), "SELECT step, success_rate FROM steps")
    assert not page.exception
    (figure,) = shown_figures(page).values()
    assert figure.layout["yaxis"]["title"]["text"] == "success_rate"


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
    assert numeric_columns(table) == []


def test_names_in_a_chart_are_text() -> None:
    frame = pd.DataFrame({"x": [1, 2], "<a href='http://evil.example'>b</a>": [3, 4]})
    figure = chart(frame, "x", list(frame.columns[1:]), "line")
    assert "<a" not in figure.data[0].name
    assert "<a" not in figure.layout.yaxis.title.text


def test_nan_and_null_are_told_apart() -> None:
    table = pa.table(
        {"value": pa.array([0.5, float("nan"), None, float("inf")]), "n": [1, 2, 3, 4]}
    )
    frame = shown_frame(table)
    assert frame["value"].tolist() == ["0.5", "nan", None, "inf"]
    assert frame["n"].tolist() == [1, 2, 3, 4]
    assert shown_frame(pa.table({"value": [0.5, None]}))["value"].isna().tolist() == [False, True]


def test_rows_of_each_split_are_a_curve_of_their_own(tmp_path: Path, open_page: OpenPage) -> None:
    """One line over `group by step, split` went to and fro between the splits."""
    make_run(tmp_path / "a", 3)
    sql = (
        "SELECT step, split, avg(step) AS height FROM "
        "(SELECT step, unnest(['train', 'eval']) AS split FROM steps) GROUP BY ALL ORDER BY ALL"
    )
    page = run_query(open_page("sql", tmp_path, run="a"), sql)
    assert not page.exception
    (figure,) = shown_figures(page).values()
    curves = json.loads(figure.text)["data"]
    assert [curve["name"] for curve in curves] == ["eval", "train"]
    box = next(box for box in page.selectbox if box.label == "Colour by")
    assert (box.value, box.options) == ("split", ["split"])


def test_columns_with_few_values_can_have_colours() -> None:
    table = pa.table(
        {
            "step": [1, 1, 2, 2],
            "split": ["train", "eval", "train", None],
            "group": [1, 2, 1, 2],
            "same": ["a"] * 4,
            "value": [0.1, 0.2, 0.3, 0.4],
        }
    )
    assert colour_columns(table, "step") == ["split", "group"]
    assert (repeats(table, "step"), repeats(table, "value")) == (True, False)
    assert colour_values(table, "split") == ["train", "eval", "train", "NULL"]
    figure = chart(table.to_pandas(), "step", ["value"], "line", colour_values(table, "split"))
    assert {trace.name: list(trace.y) for trace in figure.data} == {
        "train": [0.1, 0.3],
        "eval": [0.2],
        "NULL": [0.4],
    }
