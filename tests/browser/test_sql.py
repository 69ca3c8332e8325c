"""The page SQL in a real browser: what would write is refused there, too, and touches no file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, settle, until, visit
from evasions import CTES, EXPLAINED, nothing_changes, written
from made_run import make_run

Serve = Callable[..., DashboardProcess]


def ask(page: Any, sql: str) -> str:
    """Type a query, run it, and return what the page says below the form."""
    page.get_by_label("Query", exact=True).fill(sql)
    page.get_by_test_id("stFormSubmitButton").get_by_role("button").click()
    until(lambda: page.evaluate("new URL(location).searchParams.get('sql')") == sql, "run")
    settle(page)
    return str(page.locator("[data-testid=stMain]").inner_text())


@pytest.mark.parametrize("options", [(), ("--read-only",)])
def test_d1_no_evasion_gets_through_the_page(
    options: tuple[str, ...], tmp_path: Path, serve: Serve, page: Any
) -> None:
    root = tmp_path / "runs"
    make_run(root / "a", 4)
    visit(page, f"{serve(root, *options).url}/sql?run=a")
    for sql in (*CTES, *EXPLAINED):
        with nothing_changes(root):
            said = ask(page, written(sql, root / "a"))
            assert "Query failed" in said or "not allowed" in said or "Error" in said, sql
    assert "4 rows" in ask(page, "SELECT step, return_mean FROM steps")
