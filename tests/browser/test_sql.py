"""The page SQL in a real browser: what would write is refused there, too, and touches no file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, until, visit
from evasions import CTES, EXPLAINED, nothing_changes, written
from made_run import make_run

ANSWERS = ("columns,", "not allowed", "Error", "expected one statement", "cannot be checked")
"""Words of an answer: its size, or why there is none."""
Serve = Callable[..., DashboardProcess]


def answer(page: Any, address: str, sql: str) -> str:
    """Type a query on a page that has no answer yet, run it, and return what the page says."""
    visit(page, f"{address}/sql?run=a")
    page.get_by_label("Query", exact=True).fill(sql)
    page.get_by_test_id("stFormSubmitButton").get_by_role("button").click()
    main = page.locator("[data-testid=stMain]")
    texts: list[str] = until(
        lambda: [text for text in [main.inner_text()] if any(word in text for word in ANSWERS)],
        f"answer to {sql}",
        page=page,
    )
    return texts[0]


@pytest.mark.parametrize("options", [(), ("--read-only",)])
def test_d1_no_evasion_gets_through_the_page(
    options: tuple[str, ...], tmp_path: Path, serve: Serve, page: Any
) -> None:
    root = tmp_path / "runs"
    make_run(root / "a", 4)
    address = serve(root, *options).url
    with nothing_changes(root):
        for sql in (*CTES, *EXPLAINED):
            assert "columns," not in answer(page, address, written(sql, root / "a")), sql
    assert "4 rows, 2 columns" in answer(page, address, "SELECT step, return_mean FROM steps")
