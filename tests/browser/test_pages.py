"""Every page in a real browser: drawn without an error, linked by its address, moved by keys."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing import DashboardProcess, settle, until, visit
from echoscope.dashboard import ui

WIDTHS = ((1440, 900), (390, 844))


def asked(page: Any) -> dict[str, str]:
    """The parameters in the address."""
    return {name: values[-1] for name, values in parse_qs(urlsplit(page.url).query).items()}


@pytest.mark.parametrize("name", list(ui.PAGES))
def test_a_page_is_drawn_in_both_widths(name: str, recorded: DashboardProcess, page: Any) -> None:
    for width, height in WIDTHS:
        page.set_viewport_size({"width": width, "height": height})
        path = "" if name == "runs" else name
        visit(page, f"{recorded.url}/{path}?run=tiny&runs=tiny")
        assert page.locator("h1").first.inner_text() == ui.PAGES[name][0]
        assert page.locator("[data-testid=stException]").count() == 0
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) <= 0


def test_an_address_restores_the_view(recorded: DashboardProcess, page: Any, browser: Any) -> None:
    view = "run=tiny&step=4&trajectory=t00000004-00002&turn=0&heat=entropy"
    visit(page, f"{recorded.url}/replay?{view}")
    page.get_by_text("Entropy (nats)").first.wait_for()
    shown = page.locator(".es-text").first.inner_text()
    other = browser.new_context()
    fresh = other.new_page()
    visit(fresh, page.url)
    fresh.get_by_text("Entropy (nats)").first.wait_for()
    assert asked(fresh) == asked(page)
    assert fresh.locator(".es-text").first.inner_text() == shown
    assert fresh.get_by_text("t00000004-00002").first.is_visible()
    other.close()


def test_keys_move_through_trajectories_turns_and_steps(
    recorded: DashboardProcess, page: Any
) -> None:
    first = "t00000004-00002"
    visit(page, f"{recorded.url}/replay?run=tiny&step=4&trajectory={first}&turn=0")
    page.locator(".es-text").first.wait_for()
    page.locator("h1").first.click()
    page.keyboard.press("j")
    until(lambda: asked(page).get("trajectory") not in ("", None, first), "next trajectory")
    assert re.fullmatch(r"t00000004-\d{5}", asked(page)["trajectory"])
    page.keyboard.press("k")
    until(lambda: asked(page).get("trajectory") == first, "trajectory before")
    page.keyboard.press("]")
    until(lambda: asked(page).get("step") == "5", "next step")
    page.keyboard.press("[")
    until(lambda: asked(page).get("step") == "4", "step before")


def test_a_tab_without_a_run_leads_from_list_to_live(recorded: DashboardProcess, page: Any) -> None:
    visit(page, recorded.url)
    page.get_by_role("link", name="Live").first.click()
    settle(page)
    until(lambda: asked(page).get("run") == "tiny", "run in the address")
