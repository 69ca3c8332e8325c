"""Findings of people who used the dashboard for hours, as only a browser can show them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alarm_events import alarm_event
from browsing import DashboardProcess, Watch, visit
from made_run import add_steps, open_writer

from echoscope.dashboard.report.report import make_report
from echoscope.store.records import Alarm

Serve = Callable[..., DashboardProcess]
FIRST_CHART = "[class*='st-key-chart_'] .echoscope-figure"


def alarm(rule: str, severity: str) -> Alarm:
    return alarm_event(
        rule.lower(),
        2,
        severity,
        threshold=0.5,
        message=f"{rule} happened",
        advice="Look at the rollouts.",
    )


RULES = ("ECHO_TRAP", "TEMPLATE_COLLAPSE", "LOW_SUCCESS", "GRADIENT_SPIKE")


def run_with_alarms(path: Path, count: int) -> None:
    writer = open_writer(path)
    add_steps(writer, path.name, range(4))
    if count:
        severities = ("critical", "warning", "critical", "warning")
        alarms = [alarm(*pair) for pair in zip(RULES[:count], severities[:count], strict=True)]
        writer.record_alarms(alarms)
    writer.close(status="finished")


@pytest.mark.long
def test_alarms_do_not_move_the_charts(tmp_path: Path, serve: Serve, page: Any) -> None:
    root = tmp_path / "runs"
    for count in (0, 1, 4):
        run_with_alarms(root / f"with-{count}", count)
    url = serve(root).url
    places = set()
    for count in (0, 1, 4):
        visit(page, f"{url}/live?run=with-{count}")
        page.get_by_text("after step ").first.wait_for()
        page.locator(FIRST_CHART).first.wait_for()
        page.wait_for_timeout(1_000)
        places.add(round(page.locator(FIRST_CHART).first.bounding_box()["y"]))
    assert len(places) == 1


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_fits_and_is_readable_without_a_script(
    recorded_root: Path, tmp_path: Path, browser: Any, width: int, scheme: str
) -> None:
    file = tmp_path / "report.html"
    file.write_text(make_report(recorded_root / "tiny"), encoding="utf-8")
    size = {"width": width, "height": 844}
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page, watch = context.new_page(), Watch()
    watch.on(page)
    page.goto(file.as_uri())
    assert page.locator("svg.picture").count() >= 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    text = page.locator("svg.picture text").first
    ink, paper = (
        [int(part) for part in re.findall(r"\d+", of.evaluate(f"e => getComputedStyle(e).{name}"))]
        for of, name in ((text, "fill"), (page.locator("body"), "backgroundColor"))
    )
    assert (sum(ink[:3]) > sum(paper[:3])) == (scheme == "dark")
    assert abs(sum(ink[:3]) - sum(paper[:3])) > 450
    assert (watch.errors, watch.requests[1:]) == ([], [])  # the file itself, and nothing else
    context.close()
