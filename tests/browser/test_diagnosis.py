"""Diagnosis in a real browser: verdict, table and template of the step that was chosen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, settle, text_of, until, visit
from made_run import made_trajectory, open_writer, step_metrics, template_record

from echoscope.diagnostics.bench.synthetic_runs import make

LAST = 40
COLLAPSE = 21
"""From this step on no reply parses any more."""


@pytest.fixture(scope="module")
def unparsed(dashboard: DashboardProcess) -> str:
    """Replies stop parsing at step 21; texts are measured every fifth step."""
    writer = open_writer(dashboard.root / "unparsed")
    for step in range(LAST + 1):
        is_well = step < COLLAPSE
        values = {
            "rollout/action_valid_frac": 0.95 if is_well else 0.1,
            "rollout/success_rate": 0.6 if is_well else 0.05,
            "text/dependence": 0.8,
        }
        writer.commit_step(
            metrics=[step_metrics("unparsed", step, values)],
            trajectories=[made_trajectory(step, n) for n in range(4)],
            diagnostics=[template_record(step, 0.3 if is_well else 0.58)] if step % 5 == 0 else [],
        )
    writer.close(status="finished")
    return "unparsed"


def measured(page: Any) -> set[str]:
    """The metrics that the table of evidence lists."""
    table = page.locator("table", has=page.get_by_role("columnheader", name="95 % interval"))
    return set(table.first.locator("td:last-child").all_inner_texts()) if table.count() else set()


def test_verdict_and_table_are_those_of_the_chosen_step(
    unparsed: str, dashboard: DashboardProcess, page: Any
) -> None:
    box = page.locator(".st-key-verdict_box")
    visit(page, f"{dashboard.url}/diagnosis?run={unparsed}")
    until(lambda: "Format collapse" in box.inner_text(), "verdict of the newest step", page=page)
    until(lambda: "rollout/action_valid_frac" in measured(page), "its evidence", page=page)
    visit(page, f"{dashboard.url}/diagnosis?run={unparsed}&step=15")
    until(lambda: "after step 15" in box.inner_text(), "verdict of step 15", page=page)
    page.get_by_text(
        "Step 15: 30 % of the reasonings of the first turns share this template."
    ).wait_for()
    assert "Format collapse" not in box.inner_text()
    # A level is claimed of success, and no alarm rests on the valid actions yet.
    until(lambda: measured(page) == {"rollout/success_rate"}, "what is claimed then", page=page)
    box.get_by_role("link", name="Newest verdict").click()
    settle(page)
    until(lambda: "Format collapse" in box.inner_text(), "the newest verdict again", page=page)


def test_the_slider_moves_the_verdict(
    unparsed: str, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/diagnosis?run={unparsed}&step=30")
    box = page.locator(".st-key-verdict_box")
    until(lambda: "after step 30" in box.inner_text(), "verdict of step 30", page=page)
    page.get_by_role("slider", name="Step").press("ArrowLeft")
    until(lambda: "after step 25" in box.inner_text(), "verdict of step 25", page=page)
    page.get_by_text(
        "Step 25: 58 % of the reasonings of the first turns share this template."
    ).wait_for()


@pytest.mark.long
def test_one_share_for_one_template_on_live_diagnosis_and_in_the_report(
    dashboard: DashboardProcess, page: Any, tmp_path: Path
) -> None:
    rows = list(make("template_collapse", 0).table.rows())
    writer = open_writer(dashboard.root / "template")
    for step, values in rows:
        writer.commit_step(
            metrics=[step_metrics("template", step, values)],
            trajectories=[made_trajectory(step, n) for n in range(4)],
            diagnostics=[template_record(step, 0.3 + 0.4 * step / len(rows))],
        )
    writer.close(status="finished")
    visit(page, f"{dashboard.url}/live?run=template")
    share_pattern = re.compile(r"(\d+) % of the reasonings of the first turns share")
    box = page.locator("[class*=st-key-verdict_bar_]")
    (live,) = until(
        lambda: set(share_pattern.findall(box.inner_text())), "share on Live", page=page
    )
    visit(page, f"{dashboard.url}/diagnosis?run=template")
    page.get_by_text(
        f"{live} % of the reasonings of the first turns share this template."
    ).wait_for()
    assert set(share_pattern.findall(text_of(page))) == {live}
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "echoscope", "report", str(dashboard.root / "template")]
    subprocess.run([*command, "-o", str(report)], check=True, capture_output=True)
    reader = page.context.new_page()
    reader.goto(report.as_uri())
    assert set(share_pattern.findall(reader.locator("body").inner_text())) == {live}


def test_links_look_like_links(unparsed: str, dashboard: DashboardProcess, page: Any) -> None:
    visit(page, f"{dashboard.url}/live?run={unparsed}")
    link_text = page.get_by_role("link", name="Why", exact=True).first.locator("p")
    # Asked again: an element that was just drawn anew has no style.
    style = "p => getComputedStyle(p).textDecorationLine"
    until(lambda: link_text.evaluate(style) == "underline", "underlined link", page=page)


def test_evidence_stands_before_the_rest(
    unparsed: str, dashboard: DashboardProcess, page: Any
) -> None:
    """Sentence, charts of its claims and three examples lie on the first screen; tables below."""
    visit(page, f"{dashboard.url}/diagnosis?run={unparsed}")
    box = page.locator(".st-key-verdict_box")
    until(lambda: "Format collapse" in box.inner_text(), "verdict", page=page)
    charts = page.locator(".st-key-proof .main-svg:first-of-type")
    until(lambda: charts.count() == 2, "two charts", page=page)
    texts = page.locator(".st-key-examples .es-reply, .st-key-examples .es-text")
    texts.first.wait_for()
    ends = [part.bounding_box() for part in (box, charts.first, charts.last)]
    assert all(end["y"] + end["height"] <= 900 for end in ends)
    first = texts.first.bounding_box()
    assert first["y"] <= 860
    assert first["y"] < page.get_by_role("slider", name="Step").bounding_box()["y"]
