"""The table of the pages Runs and Replay: what the browser is told, and what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_run import make_run
from streamlit.testing.v1 import AppTest
from tables import table_data

from echoscope.dashboard.page import table

HOSTILE = "<img src=x onerror=alert(1)>"


def draw_pick() -> None:
    import streamlit as st

    from echoscope.dashboard.page.table import Column, Row, pick_table

    rows = [Row(id=name, cells={"a": "<b>", "b": None}) for name in ("one", "two")]
    columns = [Column(name="a", label="A"), Column(name="b", label="B", kind="number")]
    pick_table(rows, columns, key="t", label="Things", picked="two", on_pick=st.write)


def draw_tick() -> None:
    import streamlit as st

    from echoscope.dashboard.page.table import Column, Row, tick_table

    rows = [Row(id="one", cells={"h": (0.0, 0.5)}, href="/live?run=one")]
    done = tick_table(rows, [Column(name="h", label="H", kind="spark")], key="t", label="Runs")
    st.text(repr((done.ticked, done.opened)))


def test_one_row_is_picked_and_cells_are_texts() -> None:
    page = AppTest.from_function(draw_pick).run()
    data = table_data(page)
    assert (data["mode"], data["picked"], data["label"]) == ("pick", "two", "Things")
    assert [row["cells"] for row in data["rows"]] == [["<b>", "none"]] * 2


def test_nothing_is_ticked_or_opened_at_first() -> None:
    page = AppTest.from_function(draw_tick).run()
    (row,) = table_data(page)["rows"]
    assert row == {"id": "one", "href": "/live?run=one", "cells": [[0.0, 0.5]]}
    assert page.text[0].value == "((), '')"


def test_the_script_writes_texts_only() -> None:
    for word in ("innerHTML", "insertAdjacentHTML", "outerHTML", "eval("):
        assert word not in table._SCRIPT


@pytest.mark.parametrize("name", ["runs", "replay"])
def test_hostile_text_is_data_and_no_part_of_the_script(
    name: str, tmp_path: Path, open_page: object
) -> None:
    make_run(tmp_path / "a")
    page = open_page(name, tmp_path, q=HOSTILE, filter="")  # type: ignore[operator]
    for element in page.get("bidi_component"):
        assert HOSTILE not in element.proto.js_content
        assert HOSTILE not in element.proto.css_content
