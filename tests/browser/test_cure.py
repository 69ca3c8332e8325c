"""From a run that collapsed to its promoted successor, all in the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, until, visit
from collapsed_bandit import collapsed_bandit

from echoscope.store.reader import open_run
from echoscope.store.steer.cures import read_cure

PATIENCE_S = 400.0


@pytest.mark.timeout(900)
def test_a_collapsed_run_is_cured_by_two_clicks(
    serve: Callable[..., DashboardProcess], page: Any, tmp_path: Path
) -> None:
    lost = collapsed_bandit(tmp_path / "root" / "lost")
    dashboard = serve(lost.parent)
    visit(page, f"{dashboard.url}/diagnosis?run=lost")
    page.get_by_role("link", name="Cure").click()
    button = page.get_by_role("button", name="Compare these treatments")
    button.wait_for()
    steps = page.get_by_role("spinbutton", name="Steps of each branch")
    steps.fill("4")
    steps.press("Tab")
    button.click()
    page.get_by_text(re.compile("compares treatments now")).wait_for()
    choice = page.get_by_role("button", name=re.compile("^Go on with 1"))
    until(lambda: choice.count() > 0, "branch to go on with", page=page, patience_s=PATIENCE_S)
    arm = page.locator(".st-key-cure_arm_1")
    page.set_viewport_size({"width": 390, "height": 844})
    assert "learning rate" in arm.inner_text()  # why it is tried, in full
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    choice.click()
    page.get_by_text("successor", exact=True).wait_for(timeout=1e3 * PATIENCE_S)
    cure = read_cure(lost)
    assert cure is not None
    assert cure.chosen == cure.arms[0].run_id
    after = lost.with_name(cure.chosen)
    until(
        lambda: open_run(after).info().status == "finished",
        "end of the successor",
        page=page,
        patience_s=PATIENCE_S,
    )
    assert open_run(lost).info().attempt == 1
