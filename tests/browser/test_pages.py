"""Every page in a real browser: drawn without an error, linked by its address, moved by keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing import DashboardProcess, Watch, table_rows, until, visit
from made_run import make_run

from echoscope.dashboard.page import links
from echoscope.diagnostics.judge.verdict import diagnose

WIDTHS = ((1440, 900), (390, 844))


def asked(page: Any) -> dict[str, str]:
    """The parameters in the address, as the page has it now."""
    query = urlsplit(page.evaluate("location.href")).query
    return {name: values[-1] for name, values in parse_qs(query).items()}


@pytest.mark.parametrize("name", list(links.PAGES))
def test_a_page_is_drawn_in_both_widths(name: str, dashboard: DashboardProcess, page: Any) -> None:
    for width, height in WIDTHS:
        page.set_viewport_size({"width": width, "height": height})
        path = "" if name == "runs" else name
        visit(page, f"{dashboard.url}/{path}?run=tiny&runs=tiny")
        assert page.locator("h1").first.inner_text() == links.PAGES[name]
        assert page.locator("[data-testid=stException]").count() == 0
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) <= 0


def test_an_address_restores_the_view(dashboard: DashboardProcess, page: Any, browser: Any) -> None:
    view = "run=tiny&step=4&trajectory=t00000004-00002&turn=0&heat=entropy"
    visit(page, f"{dashboard.url}/replay?{view}")
    page.get_by_text("Entropy (nats)").first.wait_for()
    reply = page.locator(".es-text").first.inner_text()
    other = browser.new_context()
    fresh = other.new_page()
    visit(fresh, page.evaluate("location.href"))
    fresh.get_by_text("Entropy (nats)").first.wait_for()
    assert asked(fresh) == asked(page)
    assert fresh.locator(".es-text").first.inner_text() == reply
    fresh.get_by_role("heading", name="Group 0, sibling 2").wait_for()
    other.close()


IS_DRAWN = "[...document.querySelectorAll('.echoscope-figure')].map(f => !!f.querySelector('svg'))"


def test_charts_are_drawn_once_they_are_in_sight(
    dashboard: DashboardProcess, page: Any, watch: Watch
) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    visit(page, f"{dashboard.url}/live?run=tiny")
    page.get_by_text("after step ").first.wait_for()  # drawn anew with it
    until(lambda: page.evaluate(IS_DRAWN)[:1] == [True], "first chart", page=page)
    seen = -1
    while seen != (seen := len(page.evaluate(IS_DRAWN))):  # a busy machine lists them one by one
        page.wait_for_timeout(1_500)
    hidden = [i for i, is_drawn in enumerate(page.evaluate(IS_DRAWN)) if not is_drawn]
    assert hidden
    page.locator(".echoscope-figure").nth(hidden[-1]).scroll_into_view_if_needed()
    until(lambda: page.evaluate(IS_DRAWN)[hidden[-1]], "hidden chart", page=page)
    fetched = [request for request in watch.requests if "plotly" in request.lower()]
    assert len(fetched) == 1
    assert re.fullmatch(r"http://127[.]0[.]0[.]1:[0-9]+/assets/[0-9a-f]+/plotly[.]js", fetched[0])


def test_an_address_restores_a_zoom(dashboard: DashboardProcess, page: Any) -> None:
    visit(page, f"{dashboard.url}/live?run=tiny&zoom=1.5,3.25")
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    reach = page.evaluate("document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range")
    assert reach == [1.5, 3.25]


def test_a_chart_that_cannot_be_drawn_says_so(dashboard: DashboardProcess, page: Any) -> None:
    page.add_init_script("window.Plotly = {react: () => Promise.reject(new Error('no room'))}")
    page.route("**/assets/plotly-*", lambda route: route.fulfill(body="", status=200))
    visit(page, f"{dashboard.url}/live?run=tiny")
    page.get_by_text("This chart could not be drawn: no room").first.wait_for()


def press(page: Any, key: str, name: str, is_right: Callable[[str], bool]) -> str:
    """Press a key until the address has what is wanted: one that comes amid a redraw is lost."""
    for _ in range(5):
        page.keyboard.press(key)
        for _ in range(60):
            page.wait_for_timeout(100)
            if is_right(asked(page).get(name, "")):
                return asked(page)[name]
    raise AssertionError(f"{key} did not change {name}: {asked(page)}")


def test_keys_move_through_trajectories_and_turns(dashboard: DashboardProcess, page: Any) -> None:
    first, second = "t00000004-00002", "t00000004-00003"
    visit(page, f"{dashboard.url}/replay?run=tiny&step=4&trajectory={first}&turn=0&order=id")
    page.locator(".es-text").first.wait_for()
    page.locator("h1").first.click()
    assert press(page, "j", "trajectory", lambda value: value != first) == second
    assert press(page, "k", "trajectory", lambda value: value != second) == first
    assert press(page, "p", "turn", lambda value: value == "0")  # from the newest, which is 1
    assert press(page, "n", "turn", lambda value: value == "1")


def test_a_page_chosen_from_the_menu_names_its_run(dashboard: DashboardProcess, page: Any) -> None:
    visit(page, dashboard.url)
    page.get_by_role("link", name="Live").first.click()
    page.get_by_role("heading", name="Live").wait_for()
    named = until(lambda: asked(page).get("run"), "run in the address", page=page)
    assert (dashboard.root / named / "run.json").is_file()


def test_a_run_that_starts_later_appears_where_nothing_was_live(
    tmp_path: Path, serve: Any, page: Any
) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    visit(page, f"{serve(root).url}/runs")
    page.wait_for_selector("text=There are no runs under")
    for name in ("first", "second"):  # into an empty root, and beside a run that has ended
        make_run(root / name)
        until(lambda name=name: name in str(table_rows(page)), f"run {name}", page=page)


def test_the_tab_names_page_and_run(dashboard: DashboardProcess, page: Any) -> None:
    visit(page, f"{dashboard.url}/live?run=tiny")
    until(lambda: page.title() == "Live - tiny - Echoscope", "title of the tab", page=page)


def test_a_link_to_a_run_that_is_gone_offers_no_button_of_another_one(
    dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/live?run=gone")
    page.wait_for_selector("text=There is no run 'gone' under")
    assert asked(page)["run"] == "gone"
    assert page.locator("[data-testid=stButton]").count() == 0


def test_the_verdict_has_its_column_on_a_first_visit(
    dashboard: DashboardProcess, page: Any
) -> None:
    """It came with the first verdict and pushed the other columns aside."""
    make_run(dashboard.root / "first-visit", 40)
    visit(page, f"{dashboard.url}/?filter=^first-visit")
    before = until(lambda: table_rows(page), "table", page=page)[0]
    assert "Verdict" in before
    visit(page, f"{dashboard.url}/diagnosis?run=first-visit")
    page.get_by_text("after step 39").first.wait_for()  # judged
    visit(page, f"{dashboard.url}/?filter=^first-visit")
    state = diagnose(dashboard.root / "first-visit").state.value
    until(lambda: state in str(table_rows(page)[1:]), "verdict", page=page)
    assert table_rows(page)[0] == before
