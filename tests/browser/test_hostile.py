"""Hostile text in every field that is shown: it stays text, and nothing of it acts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from alarm_events import alarm_event
from browsing import DashboardProcess, Watch, until, visit
from made_evaluation import make_evaluation
from made_run import CONFIG, add_steps, made_trajectory, open_writer, step_metrics

from echoscope.dashboard.page import links
from echoscope.dashboard.report.report import make_report
from echoscope.store.records import (
    CommandAck,
    CommandAction,
    CommandOutcome,
    DiagnosticRecord,
    SettingsRecord,
)
from echoscope.store.steer.commands import new_command
from echoscope.store.steer.episode_notes import AddLabel, SetEpisodeNote, note_episodes

SCRIPT = "<script>window.hurt=1</script>"
HANDLER = '<img id=hurt src="http://evil.example/a.png" onerror="window.hurt=1">'
MARKDOWN = "![x](http://evil.example/b.png) [click](javascript:window.hurt=1) :material/bolt:"
ODD = "\u202eright to left\u202c \x00\x1b[31m \u200b\ufeff $E=mc^2$ `code` **bold** # title"
HOSTILE = f"{SCRIPT}{HANDLER}{MARKDOWN}{ODD}</think><svg onload=window.hurt=1>"
NAME = "<img src=x onerror=window.hurt=1> **b** ![x](http:evil)"
EPISODE = "t00000003-00001"
ALARM = alarm_event(
    "a1",
    12,
    "critical",
    rule=HOSTILE[:200],
    onset_step=3,
    metric=f"x/{NAME}",
    threshold=0.5,
    message=HOSTILE,
    advice=HOSTILE,
)
ALL_DRAWN = """
  [...document.querySelectorAll(".echoscope-figure")].every(
    (chart) => chart.querySelector(".main-svg") || chart.offsetWidth === 0)
"""


ONE_MEGABYTE = HOSTILE + "x" * 1_000_000
IS_ALIVE = """
  window.hurt !== undefined || document.querySelector(
    "#hurt, img[src*=evil], img[src='x'], a[href^=javascript], [onerror], [onload]") !== null
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run whose every text is hostile: of models, worlds, people, alarms and file names."""
    folder = tmp_path / "runs"
    config = CONFIG | {"name": HOSTILE, "note": {HOSTILE[:60]: HOSTILE}, "base": f"/x/{HOSTILE}"}
    run = folder / NAME
    writer = open_writer(run, config=config, name=HOSTILE, tags=[HOSTILE[:200]])
    keys = {"policy/entropy": 0.5, "rollout/success_rate": 0.5, f"x/{NAME}": 0.5}
    add_steps(writer, NAME, range(1, 12), lambda step: keys, text=HOSTILE)
    template = {"text": HOSTILE, "match_frac": 0.9, "coverage": 0.5, "fillers": [[HOSTILE]]}
    writer.commit_step(
        metrics=[step_metrics(NAME, 12, keys)],
        trajectories=[made_trajectory(12, n, ONE_MEGABYTE) for n in range(2)],
        alarms=[ALARM],
        diagnostics=[
            DiagnosticRecord(step=12, kind="text", payload=json.dumps({"template": template}))
        ],
    )
    command = new_command(
        NAME, CommandAction.SET, settings={"a.b": HOSTILE}, issued_by=HOSTILE, reason=HOSTILE
    )
    ack = CommandAck(
        command_id=command.command_id, step=5, outcome=CommandOutcome.APPLIED, detail=HOSTILE
    )
    writer.record_acks([ack], [command], SettingsRecord(step=5, values={"a.b": HOSTILE}))
    writer.close(status="finished")
    noted = {"author": NAME, "at": 0.0, "attempt": 1, "episode": EPISODE}
    note_episodes(run, AddLabel(label=NAME, **noted), SetEpisodeNote(note=HOSTILE, **noted))
    for number in range(2):
        make_evaluation(folder / f"{NAME} {number}", {HOSTILE[:200]: ["10", "11"]}, who=HOSTILE)
    return folder


@pytest.fixture
def hostile(root: Path, serve: Callable[..., DashboardProcess]) -> str:
    return serve(root).url


def test_no_page_gives_life_to_it(hostile: str, page: Any) -> None:
    page.set_viewport_size({"width": 1440, "height": 6000})
    for name in links.PAGES:
        path = "" if name == "runs" else name
        runs = f"run={quote(NAME)}&runs={quote(f'{NAME},{NAME} 0')}"
        visit(page, f"{hostile}/{path}?{runs}&trajectory={EPISODE}&step=12&q={SCRIPT}")
        until(lambda: page.evaluate(ALL_DRAWN), f"charts of {name}", page=page)
        assert page.evaluate(IS_ALIVE) is False, name
        assert page.locator("[data-testid=stException]").count() == 0, name


def test_no_report_gives_life_to_it(root: Path, browser: Any, tmp_path: Path) -> None:
    """Opened from the disk, where no server adds a policy of its own."""
    file = tmp_path / "report.html"
    file.write_text(make_report(root / NAME), encoding="utf-8")
    assert file.stat().st_size < 2_000_000
    context, watch = browser.new_context(), Watch()
    page = context.new_page()
    watch.on(page)
    page.goto(file.as_uri())
    assert page.evaluate(IS_ALIVE) is False
    assert SCRIPT in page.locator("body").inner_text()
    assert (watch.errors, watch.requests[1:]) == ([], [])  # the file, and nothing else
    context.close()


def test_it_is_shown_as_the_text_it_is(hostile: str, page: Any) -> None:
    visit(page, f"{hostile}/replay?run={quote(NAME)}&trajectory={EPISODE}&step=3")
    main = page.locator("[data-testid=stMain]")
    until(lambda: "<script>window.hurt=1</script>" in main.inner_text(), "the text", page=page)
