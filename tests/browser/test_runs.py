"""The page Runs as a person uses it: clicks on headings, groups, curves and ticks of its table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import TELEPHONE, DashboardProcess, table_rows, until, visit
from made_run import CONFIG, make_run

ROW = 35
HEAD, TICK, EYE, SOLO, NAME = 0, 16, 77, 127, 190
"""Pixels from the left of the table; of a row from its top."""
MENU_PADDING = 8
CURVES = ".js-plotly-plot .scatterlayer .trace"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rates with two seeds each; the success grows with both."""
    root = tmp_path_factory.mktemp("runs")
    for rate in (1e-6, 1e-4):
        for seed in range(2):
            success = 0.2 + 0.1 * seed + (0.5 if rate > 1e-5 else 0.0)
            make_run(
                root / f"lr{rate:g}-s{seed}",
                4,
                config={**CONFIG, "optim": {"lr": rate}, "seed": seed},
                values=lambda step, success=success: {"eval/all/success_rate": success * step / 3},
            )
    return root


def click(page: Any, x: int, row: int) -> None:
    """A place of the table, which is painted on a canvas."""
    table = page.locator("[data-testid=stDataFrame]").first
    until(lambda: table.bounding_box(), "table", page=page)
    box = table.bounding_box()
    page.mouse.click(box["x"] + x, box["y"] + ROW * row + ROW / 2)


def names(page: Any) -> list[str]:
    rows = table_rows(page) or [[]]
    column = next((n for n, title in enumerate(rows[0]) if title.startswith(("Run", "Group"))), 0)
    return [row[column] for row in rows[1:]]


def test_groups_open_and_curves_hide_by_a_click(
    root: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    address = "?group=lr&sort=-eval_success&curve=eval/success_rate"
    visit(page, f"{serve(root).url}/{address}")
    heads = ["▸ lr 0.0001  (2)", "▸ lr 1e-06  (2)"]
    until(lambda: names(page) == heads, "groups", page=page)
    until(lambda: page.locator(CURVES).count() >= 2, "curves", page=page)
    page.get_by_text("Drawn: 2 of 2 groups of this page").wait_for()
    assert ":material/" not in str(table_rows(page))  # what a screen reader would be told
    click(page, EYE, 2)
    page.wait_for_url("**hide=**")
    page.get_by_text("Drawn: 1 of 2 groups of this page").wait_for()
    click(page, SOLO, 2)
    page.wait_for_url("**solo=**")
    click(page, NAME, 1)
    page.wait_for_url("**open=**")
    opened = ["▾ lr 0.0001  (2)", "\u2003lr0.0001-s1", "\u2003lr0.0001-s0", "▸ lr 1e-06  (2)"]
    until(lambda: names(page) == opened, "runs of the group", page=page)
    click(page, TICK, 1)
    page.get_by_text("2 ticked", exact=True).wait_for()
    page.get_by_role("link", name="Compare", exact=True).last.wait_for()


def test_a_heading_sorts_all_runs_and_ticks_stay(
    root: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    visit(page, f"{serve(root).url}/?cols=eval_success,optim.lr&curves=0&sort=run")
    by_name = ["lr0.0001-s0", "lr0.0001-s1", "lr1e-06-s0", "lr1e-06-s1"]
    until(lambda: names(page) == by_name, "runs", page=page)
    click(page, TICK, 1)
    page.get_by_role("button", name="Untick all").wait_for()
    width = page.locator("[data-testid=stDataFrame]").first.bounding_box()["width"]
    click(page, int(width) - 40, HEAD)
    page.wait_for_url("**sort=-optim.lr**")
    filter_box = page.get_by_role("searchbox", name="Filter")
    filter_box.fill("lr < 1e-5 and eval_success > 25 %")
    filter_box.press("Enter")
    until(lambda: names(page) == ["lr1e-06-s1"], "the run of the filter", page=page)
    page.get_by_role("button", name="Untick all").wait_for()


def test_groups_and_order_are_of_the_runs_of_all_pages(
    tmp_path: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    """Thirty runs, of which a page shows the 25 newest; the older a run, the better it is."""
    for number in range(30):
        success = (90 - number) / 100
        make_run(
            tmp_path / f"run-{number:02d}",
            2,
            config={**CONFIG, "optim": {"lr": 10.0 ** -(1 + number % 6)}, "seed": number // 6},
            values=lambda step, success=success: {"eval/all/success_rate": success},
        )
    url = serve(tmp_path).url
    visit(page, f"{url}/?cols=eval_success&curves=0&sort=-eval_success")
    best = [f"run-{number:02d}" for number in range(25)]
    until(lambda: names(page) == best, "the best of all first", page=page)
    visit(page, f"{url}/?cols=eval_success&curves=0&group=lr&sort=-eval_success")
    rates = ("0.1", "0.01", "0.001", "0.0001", "1e-05", "1e-06")
    groups = [f"\u25b8 lr {rate}  (5)" for rate in rates]
    until(lambda: names(page) == groups, "every group with all of its runs", page=page)
    head, *rows = table_rows(page)
    column = next(n for n, title in enumerate(head) if title.startswith("Evaluation success"))
    # Runs k, k + 6, ... k + 24 of a group are twelve places after its first on average.
    assert [row[column].split(" (")[0] for row in rows] == [f"{78 - k} %" for k in range(6)]


def save_and_leave(page: Any, url: str, name: str) -> None:
    """Save what the page shows as a view, and begin anew without it."""
    page.get_by_role("button", name="Views").click()
    page.get_by_role("textbox", name="Name", exact=True).fill(name)
    page.get_by_role("button", name="Save what is shown").click()
    page.get_by_text("Link: /?view=").wait_for()
    visit(page, url)


@pytest.mark.long
def test_a_saved_view_opens_whatever_is_shown(
    root: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    url = serve(shutil.copytree(root, root.parent / "viewed")).url
    visit(page, f"{url}/?filter=lr > 1e-5&group=lr&sort=-eval_success")
    save_and_leave(page, url, "high")
    visit(page, f"{url}/?sort=run")
    save_and_leave(page, url, "all")
    page.get_by_role("button", name="Views").click()
    page.get_by_role("button", name="high").click()
    until(lambda: names(page) == ["▸ lr 0.0001  (2)"], "group of the view", page=page)
    filter_box = page.get_by_role("searchbox", name="Filter")
    assert filter_box.input_value() == "lr > 1e-5"
    page.get_by_role("button", name="all", exact=True).click()
    until(lambda: len(names(page)) == 4, "all runs", page=page)
    assert filter_box.input_value() == ""
    assert "filter" not in page.url
    assert "group" not in page.url


def test_headings_and_the_menu_sort_are_one_state(
    root: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    visit(page, f"{serve(root).url}/?cols=optim.lr,eval_success&curves=0")
    until(lambda: len(names(page)) == 4, "runs", page=page)
    menu = page.get_by_role("button", name="Sort").first
    menu.click()
    chosen = page.get_by_role("combobox", name="Sort by")
    chosen.wait_for()
    menu.click()  # and what the closed menu showed is sent with the next click
    chosen.wait_for(state="detached")
    width = page.locator("[data-testid=stDataFrame]").first.bounding_box()["width"]
    click(page, int(width) - 60, HEAD)
    page.wait_for_url("**sort=-eval_success**")
    until(lambda: names(page)[:1] == ["lr0.0001-s1"], "the best run first", page=page)
    menu.click()
    sort_order = "Evaluation success, highest first"
    until(lambda: chosen.count() and chosen.input_value() == sort_order, sort_order, page=page)
    assert "sort=-eval_success" in page.url


@pytest.mark.long
def test_the_tables_own_buttons_leave_the_filter_free(
    root: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    visit(page, serve(root).url)
    until(lambda: len(names(page)) == 4, "runs", page=page)
    page.locator("[data-testid=stDataFrame]").first.hover()
    tools = page.locator("[data-testid=stDataFrame] [data-testid=stElementToolbar]").first
    table = page.locator("[data-testid=stDataFrame] canvas").first.bounding_box()
    assert tools.bounding_box()["y"] >= table["y"] + table["height"] - 2


def test_whoever_comes_back_from_another_page_finds_the_table_as_left(
    root: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    visit(page, f"{serve(root).url}/?group=lr&sort=-eval_success&filter=lr")
    until(lambda: len(names(page)) == 2, "groups", page=page)
    page.get_by_role("link", name="Live", exact=True).first.click()
    page.wait_for_url("**/live**")
    page.get_by_role("link", name="Runs", exact=True).first.click()
    page.wait_for_url("**group=lr**")
    until(lambda: len(names(page)) == 2, "groups again", page=page)
    assert "sort=-eval_success" in page.url
    assert page.get_by_role("searchbox", name="Filter").input_value() == "lr"


def test_on_a_phone_verdict_and_number_stand_beside_the_name(
    root: Path, serve: Callable[..., DashboardProcess], browser: Any
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, user_agent=TELEPHONE)
    page = context.new_page()
    visit(page, f"{serve(root).url}/?cols=verdict,eval_success")
    head, *_ = until(lambda: table_rows(page), "runs", page=page)
    assert [name for name in head if name] == ["Run", "Verdict", "Evaluation success"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("[data-testid=stDataFrame]").first.bounding_box()["y"] < 200
    context.close()


def is_in_place(page: Any) -> bool:
    """Whether the title begins where the menu does: not before the style has been fetched."""
    title = page.locator("h1").evaluate("one => one.getBoundingClientRect().left")
    menu = page.get_by_role("link", name="Runs", exact=True).first.bounding_box()
    return bool(menu and title == menu["x"] + MENU_PADDING)


@pytest.mark.long
def test_every_page_has_its_title_and_controls_on_the_same_line(
    root: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    url = serve(root).url
    middles = {}
    for name in ("", "live", "diagnosis", "compare", "evaluations", "panels", "system", "sql"):
        visit(page, f"{url}/{name}")
        until(lambda: is_in_place(page), f"title of {name}", page=page)
        box = page.locator("h1").bounding_box()
        middles[name] = round(box["y"] + box["height"] / 2)
    assert len(set(middles.values())) == 1, middles
    visit(page, url)
    box = page.get_by_role("searchbox", name="Filter").bounding_box()
    assert abs(box["y"] + box["height"] / 2 - middles[""]) <= 2
