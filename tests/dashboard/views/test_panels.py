"""The page Panels: metrics, charts and queries of one run or several, and who may change them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_text import app_text
from made_run import make_run
from shown_figures import shown_figures
from streamlit.testing.v1 import AppTest

from echoscope.store.query.metric_keys import ENTROPY, SUCCESS_RATE
from echoscope.store.reader import open_run
from echoscope.store.steer.panels import FILE, Panel, add, read_pages

OpenPage = Callable[..., AppTest]
STEPS = Panel(sql="SELECT step, num_trajectories FROM steps ORDER BY step", title="Episodes")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for n, name in enumerate(("a", "b")):
        make_run(
            tmp_path / name,
            8,
            values=lambda step, n=n: {ENTROPY: 1.0 + n + step / 10 + 99 * (step == 5)},
        )
    return tmp_path


def lines(page: AppTest, index: int = 0) -> dict[str, dict[str, Any]]:
    """Name -> trace of one of the figures, those with numbers packed left out."""
    assert not page.exception
    figure = [*shown_figures(page).values()][index]
    return {trace["name"]: trace for trace in json.loads(figure.text)["data"] if "name" in trace}


def test_a_panel_shows_what_sql_says(root: Path, open_page: OpenPage) -> None:
    add(root, "main", STEPS)
    page = open_page("panels", root, run="a")
    answer = open_run(root / "a").sql(STEPS.sql or "").to_pydict()
    figure = next(iter(shown_figures(page).values()))
    assert "num_trajectories" in figure.text
    assert answer["num_trajectories"] == [4] * 8
    assert "Episodes" in figure.layout["annotations"][0]["text"]


def test_several_runs_are_lines_of_one_panel(root: Path, open_page: OpenPage) -> None:
    add(root, "main", Panel(metric=ENTROPY))
    assert set(lines(open_page("panels", root, runs="a,b"))) == {"a", "b"}


def test_a_built_in_chart_over_tokens(root: Path, open_page: OpenPage) -> None:
    make_run(root / "c", 4, values=lambda step: {SUCCESS_RATE: 0.5})
    add(root, "main", Panel(chart="success", x="tokens"))
    page = open_page("panels", root, run="c")
    assert "training" in lines(page)
    (figure,) = shown_figures(page).values()
    assert figure.layout["xaxis"]["title"]["text"] == "sampled tokens"
    assert "Success" in figure.layout["annotations"][0]["text"]


def test_outliers_are_clipped_and_counted(root: Path, open_page: OpenPage) -> None:
    add(root, "main", Panel(metric=ENTROPY, clip=True, width="half"))
    page = open_page("panels", root, run="a")
    layout = next(iter(shown_figures(page).values())).layout
    assert layout["yaxis"]["range"][1] < 3
    assert "1 outside" in layout["annotations"][0]["text"]


def test_a_person_adds_and_removes_a_panel(root: Path, open_page: OpenPage) -> None:
    page = open_page("panels", root, run="a", edit="true")
    assert "has no panels yet" in app_text(page)
    page.selectbox(key="panel_metric").select(ENTROPY)
    page.button(key="panel_add_button").click().run()
    assert read_pages(root) == {"main": [Panel(metric=ENTROPY)]}
    page.button(key="panel_remove_0").click().run()
    assert not page.exception
    assert read_pages(root) == {}


def test_a_read_only_dashboard_shows_panels_and_changes_none(
    root: Path, open_page: OpenPage
) -> None:
    add(root, "main", Panel(metric=ENTROPY))
    page = open_page("panels", root, run="a", edit="true", options={"is_read_only": True})
    assert len(shown_figures(page)) == 1
    assert not page.button


def test_a_broken_file_is_said_in_a_sentence(root: Path, open_page: OpenPage) -> None:
    (root / FILE).write_text("pages: {main: [{metric: a, color: <script>}]}")
    page = open_page("panels", root, run="a")
    assert not page.exception
    assert "color: extra inputs are not permitted" in app_text(page)
    assert (root / FILE).read_text().endswith("<script>}]}")


def test_a_panel_that_cannot_be_shown_leaves_the_others(root: Path, open_page: OpenPage) -> None:
    add(root, "main", Panel(metric="no/such"))
    add(root, "main", Panel(sql="DROP TABLE steps"))
    add(root, "main", Panel(metric=ENTROPY))
    page = open_page("panels", root, run="a")
    assert not page.exception
    assert "not measured in this run" in app_text(page)
    assert len(shown_figures(page)) == 1


def test_a_link_names_the_page_and_the_runs(root: Path, open_page: OpenPage) -> None:
    add(root, "main", Panel(metric=ENTROPY))
    add(root, "mine", STEPS)
    page = open_page("panels", root, runs="b", board="mine")
    assert "num_trajectories" in next(iter(shown_figures(page).values())).text
    assert page.selectbox(key="url_board").options == ["main", "mine"]
