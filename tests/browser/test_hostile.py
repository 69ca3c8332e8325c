"""Hostile text in every field that is shown: it stays text, and nothing of it acts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, until, visit
from made_evaluation import make_evaluation
from made_run import make_run

from echoscope.dashboard.page import links

SCRIPT = "<script>window.hurt=1</script>"
HANDLER = '<img id=hurt src="http://evil.example/a.png" onerror="window.hurt=1">'
MARKDOWN = "![x](http://evil.example/b.png) [click](javascript:window.hurt=1) :material/bolt:"
ODD = "\u202eright to left\u202c \x00\x1b[31m \u200b\ufeff $E=mc^2$ `code` **bold** # title"
HOSTILE = f"{SCRIPT}{HANDLER}{MARKDOWN}{ODD}</think><svg onload=window.hurt=1>"
NAME = "<img src=x onerror=window.hurt=1> **b** ![x](http:evil)"
ALL_DRAWN = """
  [...document.querySelectorAll(".echoscope-figure")].every(
    (chart) => chart.querySelector(".main-svg") || chart.offsetWidth === 0)
"""


@pytest.fixture
def hostile(tmp_path: Path, serve: Callable[..., DashboardProcess]) -> str:
    root = tmp_path / "runs"
    make_run(root / NAME, 12, name=HOSTILE, tags=[HOSTILE[:200]], text=HOSTILE)
    for number in range(2):
        make_evaluation(root / f"{NAME} {number}", {HOSTILE[:200]: ["10", "11"]}, who=HOSTILE)
    return serve(root).url


def test_no_page_gives_life_to_it(hostile: str, page: Any) -> None:
    page.set_viewport_size({"width": 1440, "height": 6000})
    for name in links.PAGES:
        path = "" if name == "runs" else name
        visit(page, f"{hostile}/{path}?trajectory=t00000003-00001&step=3&q={SCRIPT}")
        until(lambda: page.evaluate(ALL_DRAWN), f"charts of {name}", page=page)
        assert page.evaluate("window.hurt") is None, name
        assert page.locator("#hurt").count() == 0, name
        assert page.locator("img[src*='evil']").count() == 0, name
        assert page.locator("img[src='x']").count() == 0, name
        assert page.locator("a[href^='javascript']").count() == 0, name
        assert page.locator("[onerror], svg[onload]").count() == 0, name
        assert page.locator("[data-testid=stException]").count() == 0, name


def test_it_is_shown_as_the_text_it_is(hostile: str, page: Any) -> None:
    visit(page, f"{hostile}/replay?trajectory=t00000003-00001&step=3")
    main = page.locator("[data-testid=stMain]")
    until(lambda: "<script>window.hurt=1</script>" in main.inner_text(), "the text", page=page)
