"""The first screen of a run: in every state it says how the run stands, in the same places."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, text_of, until, visit
from held_run import HeldRun
from made_run import CONFIG, add_steps, open_writer

from echoscope.dashboard.charts import theme
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
    command = new_command("paused", CommandAction.PAUSE, issued_by="alarm TEMPLATE_COLLAPSE")
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


PALE = """charts => {
  const light = (color) => {
    const linear = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((s) => s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05;
  };
  const ground = light(getComputedStyle(document.querySelector(".stApp")).backgroundColor);
  return charts.flatMap((chart) => [...chart.parentElement.querySelectorAll("text")])
    .filter((text) => text.textContent)
    .map((text) => [text.textContent, getComputedStyle(text).fill])
    .filter(([, fill]) => fill !== "none")
    .map(([words, fill]) => [words, fill, Math.max(light(fill), ground)
      / Math.min(light(fill), ground)])
    .filter(([, , contrast]) => contrast < 4.5);
}"""
"""Words of charts that are too pale or too dark for the page, with their contrast."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1440, HEIGHT), (390, 844)], ids=["desktop", "phone"])
@pytest.mark.parametrize("state", STATES)
def test_verdict_numbers_and_charts_are_in_sight(
    server: DashboardProcess, page: Any, state: str, size: tuple[int, int], scheme: str
) -> None:
    width, height = size
    page.emulate_media(color_scheme=scheme)
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
    # No tile is marked: an edge in the colour of evidence stood on one that had improved.
    edges = tiles.evaluate_all(
        "tiles => tiles.map((tile) => tile.className + getComputedStyle(tile).border)"
    )
    assert len(set(edges)) == 1
    tile_text = tiles.first.inner_text()
    if state == "starting":
        assert "not measured" in tile_text
    else:
        assert "%" in tile_text
        assert any(verb in tile_text for verb in ("since", "mean", "rose", "fell"))
    if state != "starting":
        count = 6 if width > 1000 else 1
        until(lambda: in_sight(page, height) >= count, f"{count} charts in sight", page=page)
        assert page.locator(CHARTS).evaluate_all(PALE) == []


def in_sight(page: Any, height: int) -> int:
    """Charts that lie wholly within the first pixels of the page."""
    # In one look: between two, a page that is drawn anew may have fewer charts.
    ends = page.locator(CHARTS).evaluate_all(
        "charts => charts.map(chart => chart.getBoundingClientRect().bottom)"
    )
    return sum(1 for end in ends if 0 < end <= height)


def test_the_status_is_whole_and_names_the_alarm_in_words(
    server: DashboardProcess, page: Any
) -> None:
    visit(page, f"{server.url}/live?run=paused")
    badge = page.locator(".es-line-badge").first
    assert badge.inner_text().startswith('paused by the alarm "template collapse" for ')
    assert badge.evaluate("one => one.scrollHeight <= one.clientHeight")
    head = page.locator(".st-key-run_head").bounding_box()
    box = badge.bounding_box()
    assert head["y"] <= box["y"]
    assert box["y"] + box["height"] <= head["y"] + head["height"]
    page.get_by_text('The alarm "template collapse" paused the run').first.wait_for()
    assert "TEMPLATE_COLLAPSE" not in text_of(page)


def test_on_a_phone_the_verdict_unfolds(server: DashboardProcess, page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    visit(page, f"{server.url}/live?run=collapsed")
    headline, facts = page.locator(".es-headline"), page.locator(".es-facts").first
    until(lambda: "collapse" in headline.inner_text(), "a verdict", page=page)
    assert not facts.is_visible()
    assert headline.evaluate("one => one.scrollHeight > one.clientHeight")
    page.get_by_text("All of it").click()
    facts.wait_for()
    assert headline.evaluate("one => one.scrollHeight <= one.clientHeight")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_long_headline_is_whole_and_moves_nothing(server: DashboardProcess, page: Any) -> None:
    visit(page, f"{server.url}/live?run=collapsed")
    headline, tiles = page.locator(".es-headline"), page.locator(".es-tiles")
    until(lambda: "collapse" in headline.inner_text(), "a verdict", page=page)
    top = "one => one.getBoundingClientRect().top"
    before = tiles.evaluate(top)
    headline.evaluate("one => { one.textContent = 'a word '.repeat(43); }")
    assert headline.evaluate("one => one.scrollHeight <= one.clientHeight")
    assert tiles.evaluate(top) - before < 2


def test_every_state_has_the_same_layout(server: DashboardProcess, page: Any) -> None:
    def places(state: str) -> list[float]:
        visit(page, f"{server.url}/live?run={state}")
        page.locator(".es-tile").first.wait_for()
        until(lambda: page.locator(CHARTS).count() >= 3, "charts", page=page)
        tops = [page.locator(".es-tiles"), page.locator(CHARTS).first]
        return [round(top.bounding_box()["y"]) for top in tops]

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
            position = f"{step} / 160"
            until(
                lambda position=position: position in page.locator(".es-tiles").inner_text(),
                "the step in its tile",
                page=page,
            )
    page.wait_for_timeout(2_000)
    assert page.evaluate("window.shifts") < 0.02
    writer.close(status="finished")


def is_at_rest(page: Any) -> bool:
    before = page.evaluate("window.shifts")
    page.wait_for_timeout(2_000)
    return bool(page.evaluate("window.shifts") == before)


ALL_SHIFTS = """
window.shifts = 0, window.moved = [];
new PerformanceObserver((list) => {
  for (const { value, sources } of list.getEntries()) {
    window.shifts += value;
    window.moved.push([value, ...sources.map(({ node }) => node?.parentElement?.className)]);
  }
}).observe({ type: "layout-shift" });
"""


PLACES = """
window.places = new Set();
const look = () => {
  for (const button of document.querySelectorAll("button"))
    if (button.offsetParent && button.textContent.trim() === "Checkpoint")
      places.add(Math.round(button.getBoundingClientRect().x));
  requestAnimationFrame(look);
};
look();
"""

TWO_IN_HOLD = """() => {
  const hold = document.querySelector(".st-key-steering_hold");
  const second = hold.appendChild(hold.firstElementChild.cloneNode(true));
  const height = hold.getBoundingClientRect().height;
  second.remove();
  return height;
}"""


@pytest.mark.long
def test_commands_move_nothing(
    tmp_path: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    """Pause, undo, evaluate, and opening the panel: even what moves right after a click counts."""
    run = HeldRun(tmp_path / "runs" / "steered")
    run.advance(12)
    visit(page, f"{serve(tmp_path / 'runs').url}/live?run=steered")
    until(lambda: page.locator(CHARTS).count() >= 1, "a chart", page=page)
    page.get_by_text("The run is being judged").wait_for(state="detached")
    page.evaluate(ALL_SHIFTS)
    until(lambda: is_at_rest(page), "the end of the drawing", page=page)
    page.evaluate("window.shifts = 0, window.moved = []")
    page.evaluate(PLACES)
    assert page.evaluate(TWO_IN_HOLD) == 40  # as while Resume takes over from Pause
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_text("The run pauses when the current step ends.").wait_for()
    run.answer()
    page.get_by_text("Paused after step 11 by you.").wait_for()
    page.get_by_role("button", name="Undo", exact=True).click()
    page.get_by_text("The run goes on now.").wait_for()
    run.answer()
    page.get_by_text("Resumed after step 11 by you.").wait_for()
    page.get_by_role("button", name="Evaluate", exact=True).click()
    page.get_by_text("The run evaluates with its next step.").wait_for()
    run.answer()
    page.get_by_text("Evaluation asked for after step 11 by you.").wait_for()
    assert page.evaluate("places.size") == 1, page.evaluate("[...places]")
    page.get_by_text("Panel", exact=True).click()
    page.get_by_text("Live settings").wait_for()
    page.wait_for_timeout(1_000)
    assert page.evaluate("window.shifts") < 0.02, page.evaluate("window.moved")
    run.close()


TOLD = """
window.told = [];
window.Notification = class {
  static permission = "default";
  static async requestPermission() { return (Notification.permission = "granted"); }
  constructor(title, { body }) { window.told.push([title, body]); }
  addEventListener() {}
};
"""
ICON = "atob(document.querySelector(\"link[rel~='icon']\").href.split(',')[1])"


def test_an_alarm_is_in_the_tab_and_told_to_who_wants_to_hear_of_it(
    tmp_path: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    run = HeldRun(tmp_path / "runs" / "rung")
    run.advance(3)
    page.add_init_script(TOLD)
    visit(page, f"{serve(tmp_path / 'runs').url}/live?run=rung")
    until(lambda: page.title() == "Live - rung - Echoscope", "the title", page=page)
    assert theme.TONES["red"] not in page.evaluate(ICON)
    bell = page.get_by_role("button", name=re.compile("when an alarm is raised"))
    bell.click()
    until(lambda: bell.get_attribute("aria-pressed") == "true", "the bell", page=page)
    run.raise_alarm()
    until(lambda: page.evaluate("told") == [["Alarm: Echo trap", "rung"]], "a message", page=page)
    until(lambda: page.title().startswith("(Echo trap) Live"), "the alarm in the title", page=page)
    assert theme.TONES["red"] in page.evaluate(ICON)
    run.close()
