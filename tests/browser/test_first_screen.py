"""The first screen of a run: in every state it says how the run stands, in the same places."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, until, visit
from made_run import CONFIG, add_steps, open_writer

from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.store.records import CommandAck, CommandAction, CommandOutcome
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

HEIGHT = 900
STATES = ("starting", "healthy", "collapsed", "paused", "crashed")
CHARTS = "[class*=st-key-chart_] .main-svg:first-of-type"
SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


def course(kind: str) -> list[Mapping[str, float]]:
    """The metrics of a synthetic run, step by step."""
    table = make(kind, 1).table
    rows = [row for _, row in table.rows()]
    return [{key: value for key, value in row.items() if math.isfinite(value)} for row in rows]


def written(path: Path, rows: list[Mapping[str, float]]) -> RunWriter:
    writer = open_writer(path, config={**CONFIG, "steps": 160})
    add_steps(writer, path.name, range(len(rows)), lambda step: rows[step])
    return writer


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One run in each of `STATES`."""
    folder = tmp_path_factory.mktemp("states")
    healthy, collapsed = course("healthy"), course("template_collapse")
    open_runs = [written(folder / "starting", []), written(folder / "paused", collapsed[:60])]
    command = new_command("paused", CommandAction.PAUSE, issued_by="kim")
    post(folder / "paused", command)
    ack = CommandAck(command_id=command.command_id, step=60, outcome=CommandOutcome.APPLIED)
    open_runs[1].record_acks([ack], [command])
    open_runs[1].flush()
    written(folder / "healthy", healthy).close(status="finished")
    written(folder / "collapsed", collapsed).close(status="finished")
    written(folder / "crashed", healthy[:40])._lock.release()  # as when a process dies
    yield folder
    for writer in open_runs:
        writer.close(status="stopped")


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    process = DashboardProcess(root, tmp_path_factory.mktemp("states_log") / "log")
    yield process
    process.close()


@pytest.mark.parametrize("size", [(1440, HEIGHT), (390, 844)], ids=["desktop", "phone"])
@pytest.mark.parametrize("state", STATES)
def test_verdict_numbers_and_charts_are_in_sight(
    server: DashboardProcess, page: Any, state: str, size: tuple[int, int]
) -> None:
    width, height = size
    page.set_viewport_size({"width": width, "height": height})
    visit(page, f"{server.url}/live?run={state}")
    page.locator(".es-tile").first.wait_for()
    until(lambda: page.locator(".es-headline").inner_text() != "", "a verdict", page=page)
    tiles = page.locator(".es-tile")
    # With its first verdict an ended run is drawn once more.
    bar = until(lambda: page.locator(".es-headline").bounding_box(), "the bar", page=page)
    assert bar["y"] + bar["height"] < height
    until(lambda: tiles.count() == 6, "six tiles", page=page)
    first = until(lambda: tiles.first.bounding_box(), "a tile", page=page)
    assert first["y"] + first["height"] < height
    words = tiles.first.inner_text()
    if state == "starting":
        assert "not measured" in words
    else:
        assert "%" in words
        assert any(verb in words for verb in ("since", "mean", "rose", "fell"))
    if width > 1000 and state != "starting":
        until(lambda: in_sight(page, height) >= 3, "three charts in sight", page=page)


def in_sight(page: Any, height: int) -> int:
    """Charts that lie wholly within the first pixels of the page."""
    # In one look: between two, a page that is drawn anew may have fewer charts.
    ends = page.locator(CHARTS).evaluate_all(
        "charts => charts.map(chart => chart.getBoundingClientRect().bottom)"
    )
    return sum(1 for end in ends if 0 < end <= height)


def test_every_state_has_the_same_layout(server: DashboardProcess, page: Any) -> None:
    def places(state: str) -> list[float]:
        visit(page, f"{server.url}/live?run={state}")
        page.locator(".es-tile").first.wait_for()
        until(lambda: page.locator(CHARTS).count() >= 3, "charts", page=page)
        tops = [page.locator(".es-tiles"), page.locator(CHARTS).first]
        return [round(one.bounding_box()["y"]) for one in tops]

    tops = {state: places(state) for state in STATES if state != "starting"}
    assert len(set(map(tuple, tops.values()))) == 1, tops


def test_nothing_moves_by_itself_over_thirty_live_steps(
    tmp_path: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    """The score of the browser, as web vitals count it."""
    rows = course("template_collapse")
    writer = written(tmp_path / "runs" / "live", rows[:55])
    visit(page, f"{serve(tmp_path / 'runs').url}/live?run=live")
    until(lambda: in_sight(page, HEIGHT) >= 3, "three charts", page=page)
    page.wait_for_timeout(1_000)
    page.evaluate(SHIFTS)
    page.evaluate("window.shifts = 0")
    for step in range(55, 85):
        add_steps(writer, "live", range(step, step + 1), lambda step: rows[step])
        if step % 5 == 4:
            shown = f"{step} / 160"
            until(
                lambda shown=shown: shown in page.locator(".es-tiles").inner_text(),
                "the step in its tile",
                page=page,
            )
    page.wait_for_timeout(2_000)
    assert page.evaluate("window.shifts") < 0.02
    writer.close(status="finished")
