"""Evaluations in a real browser: ranked by success, and each leads to its episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, draw_chart, table_rows, text_of, until, visit
from made_evaluation import make_evaluation


@pytest.fixture
def evaluated(tmp_path: Path, serve: Callable[..., DashboardProcess]) -> str:
    root = tmp_path / "runs"
    root.mkdir()
    make_evaluation(root / "weak", {"lake": ["10", "00"] * 5}, who="tiny")
    make_evaluation(root / "strong", {"lake": ["11"] * 10}, who="qwen")
    make_evaluation(root / "elsewhere", {"lake": ["11"] * 10}, who="other", seed=3)
    return serve(root, "--read-only").url


def test_the_page_ranks_what_played_the_same_tasks(evaluated: str, page: Any) -> None:
    visit(page, f"{evaluated}/evaluations")
    head, *rows = until(lambda: table_rows(page), "ranking", page=page)
    assert head[:5] == ["#", "Who", "Success (95 %)", "Against the best", "Evaluation"]
    assert [(row[0], row[4]) for row in rows] == [("1", "strong"), ("2", "weak")]
    assert rows[1][3].endswith(", lower")
    assert [row[2] for row in table_rows(page, 1)[1:]] == ["elsewhere"]
    assert "Lower: tiny at temperature 1 (weak)." in text_of(page)
    plot = draw_chart(page, "[class*=st-key-success_0]")
    labels = page.locator(f"{plot} .ytick").all_text_contents()
    assert [label.split()[-1] for label in labels] == ["strong", "weak"]


def test_an_evaluation_leads_to_its_episodes(evaluated: str, page: Any) -> None:
    visit(page, f"{evaluated}/evaluations")
    head, first, *_ = until(lambda: table_rows(page), "ranking", page=page)
    visit(page, f"{evaluated}{first[head.index('Replay')]}")
    page.get_by_role("heading", name="Group").wait_for()


def test_live_says_that_it_is_no_training(evaluated: str, page: Any) -> None:
    visit(page, f"{evaluated}/live?run=weak")
    page.get_by_text("This is an evaluation of tiny, not a training").wait_for()
    page.locator(".st-key-evaluation_box").get_by_role("link", name="Evaluations").click()
    page.get_by_role("heading", name="Evaluations").wait_for()
