"""A live training run in the browser: it moves, it can be steered, and the journal has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, until, visit
from trainer_process import TrainerProcess, train

from echoscope.store.reader import CommandState, open_run
from echoscope.store.records import CommandOutcome

STEP = re.compile(r"step (\d+) of")
Serve = Callable[..., DashboardProcess]


@pytest.fixture
def live_run(make_config: Callable[..., Any], tmp_path: Path) -> Iterator[tuple[Path, Any]]:
    """A run that trains until somebody stops it."""
    run = tmp_path / "runs" / "live"
    run.parent.mkdir()
    config = make_config(
        "steps=100000", "selection.strategy=top_p", "selection.value=0.9", "seed=3"
    )
    process = TrainerProcess(tmp_path / "trainer.log", train, run, config.model_dump_json())
    until(lambda: (run / "run.json").exists() and open_run(run).info().last_step >= 2, "step")
    yield run, process
    process.kill()


def step_shown(page: Any) -> int:
    """The step counter of the Live page."""
    found = STEP.search(page.locator(".es-line-bar").first.inner_text())
    return int(found[1]) if found else -1


def answered(run: Path, action: str) -> CommandState | None:
    """The command of that kind, once the trainer has answered it."""
    found = [s for s in open_run(run).commands() if s.command.action.value == action and s.ack]
    return found[-1] if found else None


def confirm(page: Any, button: str, why: str) -> None:
    """Press a button of the panel, wait for its question, give a reason, and confirm."""
    page.get_by_role("button", name=button, exact=True).click()
    sure = page.get_by_role("button", name=f"Confirm: {button.lower()}", exact=True)
    sure.wait_for()
    page.get_by_label("Who", exact=True).fill("kim")
    page.get_by_label("Why", exact=True).fill(why)
    page.get_by_label("Why", exact=True).press("Tab")
    sure.click()


def test_the_counter_follows_what_was_acknowledged(live_run: Any, serve: Serve, page: Any) -> None:
    run, _ = live_run
    visit(page, f"{serve(run.parent).url}/live?run=live")
    acknowledged = open_run(run).info().last_step
    until(lambda: step_shown(page) >= acknowledged + 1, "step on the page")


CHART = ".st-key-chart_success .js-plotly-plot"
RANGE = f"document.querySelector('{CHART}')._fullLayout.xaxis.range"
MARK = f"document.querySelector('{CHART} .main-svg')"


def plot_area(page: Any) -> tuple[float, float]:
    """Of the first chart, once it is drawn: its left end, and the middle from top to bottom."""
    area = page.locator(f"{CHART} .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    return box["x"], box["y"] + box["height"] / 2


def test_a_chart_keeps_its_element_and_its_zoom_when_a_step_comes(
    live_run: Any, serve: Serve, page: Any
) -> None:
    run, _ = live_run
    visit(page, f"{serve(run.parent).url}/live?run=live")
    page.locator(".st-key-chart_success").scroll_into_view_if_needed()
    page.locator(f"{CHART} .main-svg").first.wait_for()
    page.evaluate(f"{MARK}.isMine = true")
    left, middle = plot_area(page)
    page.mouse.move(left + 40, middle)
    page.mouse.down()
    page.mouse.move(left + 160, middle, steps=5)
    page.mouse.up()
    until(lambda: "zoom=" in page.evaluate("location.href"), "zoom in the address", page=page)
    low, high = page.evaluate(RANGE)
    before = step_shown(page)
    until(lambda: step_shown(page) >= before + 2, "two more steps", page=page)
    assert page.evaluate(f"{MARK}.isMine") is True
    assert page.evaluate(RANGE) == pytest.approx([low, high], rel=1e-3)
    left, middle = plot_area(page)
    page.mouse.dblclick(left + 40, middle)
    until(lambda: "zoom=" not in page.evaluate("location.href"), "end of the zoom", page=page)


POINTS = f"document.querySelector('{CHART}').data.find((one) => one.text).x"
SIZE = f"({POINTS}.length ?? atob({POINTS}.bdata).length / 8)"


def test_charts_and_counter_go_on_without_the_page_being_drawn(
    live_run: Any, serve: Serve, page: Any
) -> None:
    run, _ = live_run
    sent: list[bytes] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(data)))
    visit(page, f"{serve(run.parent).url}/live?run=live")
    page.locator(".st-key-chart_success").scroll_into_view_if_needed()
    page.locator(f"{CHART} .main-svg").first.wait_for()
    page.wait_for_timeout(3_000)  # until the verdict has been worked out
    num_sent, steps, points = len(sent), step_shown(page), page.evaluate(SIZE)
    until(lambda: step_shown(page) >= steps + 20, "twenty steps", page=page)
    page.locator(CHART).scroll_into_view_if_needed()  # alarms push it out of sight
    until(lambda: page.evaluate(SIZE) > points, "a longer curve", page=page)
    assert len(sent) - num_sent < 10  # a verdict, an alarm: not once a step


def test_a_hidden_tab_asks_nothing_and_one_that_comes_back_asks_at_once(
    live_run: Any, serve: Serve, page: Any
) -> None:
    run, _ = live_run
    visit(page, f"{serve(run.parent).url}/live?run=live")
    page.locator(".st-key-chart_success").scroll_into_view_if_needed()
    page.locator(f"{CHART} .main-svg").first.wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    turn = (
        "is => { Object.defineProperty(document, 'hidden', {get: () => is, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.evaluate(turn, True)
    page.wait_for_timeout(500)  # what was on its way
    asked.clear()
    page.wait_for_timeout(3_000)
    assert [url for url in asked if "/api/" in url] == []
    before = step_shown(page)
    page.evaluate(turn, False)
    until(lambda: any("/pulse" in url for url in asked), "a question", page=page)
    until(lambda: step_shown(page) > before, "a later step", page=page)


def test_a_run_is_steered_and_stopped(live_run: Any, serve: Serve, page: Any) -> None:
    run, process = live_run
    visit(page, f"{serve(run.parent).url}/live?run=live")

    page.get_by_text("Live settings").click()
    field = page.get_by_label("value", exact=True).first
    field.fill("0.5")
    field.press("Tab")
    page.get_by_role("button", name="Review and send").click()
    page.get_by_label("Who", exact=True).fill("kim")
    page.get_by_label("Why", exact=True).fill("keep fewer")
    page.get_by_label("Why", exact=True).press("Tab")
    page.get_by_role("button", name=re.compile("^Confirm")).click()
    page.get_by_text(re.compile(r"kim: set selection\.value = 0\.5")).first.wait_for()
    state = until(lambda: answered(run, "set"), "answer to the change")
    assert state.command.settings == {"selection.value": 0.5}
    assert (state.command.issued_by, state.command.reason) == ("kim", "keep fewer")
    assert state.ack is not None
    assert state.ack.outcome is CommandOutcome.APPLIED
    page.get_by_text("applied", exact=True).first.wait_for()

    confirm(page, "Pause", "lunch")
    until(lambda: answered(run, "pause"), "pause")
    page.get_by_role("button", name="Resume", exact=True).wait_for()
    held = open_run(run).info().last_step
    assert open_run(run).info().last_step == held
    confirm(page, "Resume", "back")
    until(lambda: open_run(run).info().last_step > held, "step after the pause")

    page.get_by_role("button", name="Stop", exact=True).wait_for()
    confirm(page, "Stop", "enough")
    process.join()
    reader = open_run(run)
    assert reader.info().status == "stopped"
    assert reader.checkpoints()[-1].step == reader.info().last_step
    page.get_by_text("there is nothing to steer").wait_for()


def test_read_only_offers_nothing_to_press(live_run: Any, serve: Serve, page: Any) -> None:
    run, _ = live_run
    visit(page, f"{serve(run.parent, '--read-only').url}/live?run=live")
    page.get_by_text("read-only").first.wait_for()
    assert page.get_by_role("button", name="Stop", exact=True).count() == 0
