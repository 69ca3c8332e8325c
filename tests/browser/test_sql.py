"""The page SQL in a real browser: what would write is refused there, too, and touches no file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, text_of, until, visit
from evasions import CTES, DISGUISED, EXPLAINED, NESTED, nothing_changes, written
from made_run import make_run

HAS_RUN = """sql =>
  new URL(location.href).searchParams.get("sql") === sql &&
  document.querySelector("[data-testid=stApp]").dataset.testScriptState === "notRunning"
"""


def answer(page: Any, sql: str) -> str:
    """Type a query, run it, and return what the page says once it has been answered."""
    page.get_by_label("Query", exact=True).fill(sql)
    page.get_by_test_id("stFormSubmitButton").get_by_role("button").click()
    until(lambda: page.evaluate(HAS_RUN, sql), f"answer to {sql}", page=page)
    return text_of(page)


def check(page: Any, server: DashboardProcess, run: Path, queries: Iterable[str]) -> None:
    visit(page, f"{server.url}/sql?run={run.name}")
    with nothing_changes(run):
        for sql in queries:
            page_text = answer(page, written(sql, run))
            assert "Cannot be shown" in page_text, sql
            assert "rows, " not in page_text, sql
    assert "4 rows, 2 columns" in answer(page, "SELECT step, return_mean FROM steps")


def test_no_evasion_gets_through_the_page(dashboard: DashboardProcess, page: Any) -> None:
    """COPY, INSERT, UPDATE and DELETE as CTEs, nested, disguised, and behind EXPLAIN ANALYZE."""
    run = make_run(dashboard.root / "asked", 4)
    check(page, dashboard, run, (*CTES, *EXPLAINED, *NESTED, *DISGUISED))


@pytest.mark.long
def test_no_evasion_gets_through_a_read_only_page(read_only: DashboardProcess, page: Any) -> None:
    run = make_run(read_only.root / "asked-read-only", 4)
    check(page, read_only, run, (*CTES, *EXPLAINED))
