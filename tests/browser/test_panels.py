"""Own panels in a real browser: one is added, made wider, and seen by whoever gets the link."""

from __future__ import annotations

from typing import Any

from browsing import DashboardProcess, draw_chart, until, visit
from made_run import make_run

from echoscope.store.query.metric_keys import ENTROPY
from echoscope.store.steer.panels import FILE, Panel, add, read_pages


def test_a_panel_is_added_and_made_as_wide_as_the_page(
    dashboard: DashboardProcess, page: Any
) -> None:
    make_run(dashboard.root / "paneled", 3, values=lambda step: {ENTROPY: 1.0 + step})
    visit(page, f"{dashboard.url}/panels?run=paneled&board=browser&edit=true")
    page.get_by_role("button", name="Add panel").click()
    page.get_by_role("button", name="Add", exact=True).click()
    plot = draw_chart(page, "[class*=st-key-panel-0]")
    third = page.locator(plot).bounding_box()["width"]
    page.get_by_role("button", name="Look").click()
    page.get_by_text("full", exact=True).click()
    page.get_by_role("button", name="Save").click()
    until(lambda: page.locator(plot).bounding_box()["width"] > 2 * third, "wide panel", page=page)
    (panel,) = read_pages(dashboard.root)["browser"]
    assert panel.width == "full"
    (dashboard.root / FILE).unlink()


def test_a_hostile_panel_stays_text_and_fills_the_screen(
    dashboard: DashboardProcess, page: Any
) -> None:
    text = "<img src=x onerror=alert(1)> [a](http://evil.example)"
    add(dashboard.root, "hostile", Panel(metric="loss/policy", title=text))
    add(dashboard.root, "hostile", Panel(sql=f"SELECT '{text}' AS x", title=text))
    visit(page, f"{dashboard.url}/panels?run=tiny&board=hostile")
    plot = draw_chart(page, "[class*=st-key-panel-0]")
    assert "<img" in page.locator(f"{plot} .annotation-text").first.text_content()
    assert page.locator("[data-testid=stMain] img").count() == 0
    page.locator(plot).hover()
    page.locator(f"{plot} .modebar-btn[data-title=Fullscreen]").click()
    until(lambda: page.evaluate("document.fullscreenElement !== null"), "full screen", page=page)
    (dashboard.root / FILE).unlink()
