"""A live training run in the browser: it moves, it can be steered, and the journal has it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, choose, draw_chart, table_rows, until, visit
from held_run import HeldRun, set_heard
from trainer_process import TrainerProcess, train

from echoscope.store.reader import CommandState, open_run
from echoscope.store.records import CommandAction, CommandOutcome
from echoscope.store.steer.commands import new_command, post

STEP = re.compile(r"step (\d+) of")
CHART = ".st-key-chart_success"
Train = Callable[[str], tuple[Path, TrainerProcess]]


@pytest.fixture(scope="module")
def begin(
    make_config: Callable[..., Any],
    dashboard: DashboardProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Train]:
    """`begin("name")`: a run under the shared root that trains until somebody stops it."""
    overrides = ("steps=100000", "selection.strategy=top_p", "selection.value=0.9", "seed=3")
    config = make_config(*overrides).model_dump_json()
    begun: list[TrainerProcess] = []

    def start(name: str) -> tuple[Path, TrainerProcess]:
        run, output = dashboard.root / name, tmp_path_factory.mktemp("trainer") / "log"
        begun.append(TrainerProcess(output, train, run, config))
        until(lambda: (run / "run.json").exists() and open_run(run).info().last_step >= 2, "step")
        return run, begun[-1]

    yield start
    for process in begun:
        process.kill()


@pytest.fixture(scope="module")
def long_run(begin: Train) -> Path:
    return begin("live")[0]


@pytest.fixture
def live_run(long_run: Path) -> Iterator[Path]:
    """One such run for many tests. It rests between them."""
    steer(long_run, CommandAction.RESUME)
    yield long_run
    steer(long_run, CommandAction.PAUSE)


def steer(run: Path, action: CommandAction) -> None:
    """Send a command as a shell would, and wait for the answer."""
    post(run, new_command(run.name, action, issued_by="the tests"))
    until(lambda: open_run(run).commands()[-1].ack, f"answer to {action.value}")


def step_shown(page: Any) -> int:
    """The step counter of the Live page."""
    match = STEP.search(page.locator(".es-line-badge").first.inner_text())
    return int(match[1]) if match else -1


def wait_for_steps(run: Path, count: int) -> None:
    """Until the trainer has acknowledged so many more."""
    before = open_run(run).info().last_step
    until(lambda: open_run(run).info().last_step >= before + count, f"{count} more steps")


def answered(run: Path, action: str) -> CommandState | None:
    """The command of that kind, once the trainer has answered it."""
    acknowledged = [
        s for s in open_run(run).commands() if s.command.action.value == action and s.ack
    ]
    return acknowledged[-1] if acknowledged else None


def confirm(page: Any, button: str, why: str) -> None:
    """Press a button that asks first, wait for its question, give a reason, and confirm."""
    page.get_by_role("button", name=button, exact=True).click()
    sure = page.get_by_role("button", name=f"Confirm: {button.lower()}", exact=True)
    sure.wait_for()
    page.get_by_label("Who", exact=True).fill("kim")
    page.get_by_label("Why", exact=True).fill(why)
    page.get_by_label("Why", exact=True).press("Tab")
    sure.click()


def test_the_counter_follows_what_was_acknowledged(
    live_run: Path, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/live?run=live")
    acknowledged = open_run(live_run).info().last_step
    until(lambda: step_shown(page) >= acknowledged + 1, "step on the page")


PLOT = f"{CHART} .js-plotly-plot"
RANGE = f"document.querySelector('{PLOT}')._fullLayout.xaxis.range"
MARK = f"document.querySelector('{PLOT} .main-svg')"


def plot_area(page: Any) -> tuple[float, float]:
    """Of the first chart, once it is drawn: its left end, and the middle from top to bottom."""
    area = page.locator(f"{PLOT} .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    return box["x"], box["y"] + box["height"] / 2


def test_a_chart_keeps_its_element_and_its_zoom_when_a_step_comes(
    live_run: Path, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/live?run=live")
    draw_chart(page, CHART)
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


POINTS = f"document.querySelector('{PLOT}').data.find((one) => one.text).x"
SIZE = f"({POINTS}.length ?? atob({POINTS}.bdata).length / 8)"


def test_charts_and_counter_go_on_without_the_page_being_drawn(
    live_run: Path, dashboard: DashboardProcess, page: Any
) -> None:
    sent: list[bytes] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(data)))
    visit(page, f"{dashboard.url}/live?run=live")
    page.get_by_text("The run is being judged").wait_for(state="detached")
    draw_chart(page, CHART)
    num_sent, steps, points = len(sent), step_shown(page), page.evaluate(SIZE)
    until(lambda: step_shown(page) >= steps + 20, "twenty steps", page=page)
    page.locator(CHART).scroll_into_view_if_needed()  # alarms push it out of sight
    until(lambda: page.evaluate(SIZE) > points, "a longer curve", page=page)
    assert len(sent) - num_sent < 10  # a verdict, an alarm: not once a step


@pytest.mark.long
def test_a_hidden_tab_fetches_nothing_and_one_that_comes_back_asks_at_once(
    live_run: Path, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/live?run=live")
    draw_chart(page, CHART)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    turn = (
        "is => { Object.defineProperty(document, 'hidden', {get: () => is, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.evaluate(turn, True)
    page.wait_for_load_state("networkidle")  # what was on its way
    asked.clear()
    wait_for_steps(live_run, 20)
    # It looks for alarms a few times a minute.
    assert [url for url in asked if "/api/" in url and "/pulse" not in url] == []
    assert len(asked) < 10
    before = step_shown(page)
    page.evaluate(turn, False)
    until(lambda: any("/pulse" in url for url in asked), "a question", page=page)
    until(lambda: step_shown(page) > before, "a later step", page=page)


def test_read_only_offers_nothing_to_press(
    live_run: Path, read_only: DashboardProcess, page: Any
) -> None:
    visit(page, f"{read_only.url}/live?run=live&panel=true")
    page.get_by_text("read-only").first.wait_for()
    assert page.get_by_role("button", name="Stop", exact=True).count() == 0


PAGES_OF_A_RUN = ("live", "diagnosis", "replay", "sql")


def test_a_paused_run_is_called_paused_everywhere_and_the_command_is_shown_at_once(
    live_run: Path, dashboard: DashboardProcess, page: Any
) -> None:
    """Kim pauses in a shell; somebody else looks at the page Live, and then at all others."""
    visit(page, f"{dashboard.url}/live?run=live&panel=true")
    post(live_run, new_command("live", CommandAction.PAUSE, issued_by="kim", reason="lunch"))
    line = page.get_by_text(re.compile(r"^kim: pause \(after step \d+, paused\)$"))
    line.wait_for()
    page.get_by_role("button", name="Resume", exact=True).wait_for()
    held = open_run(live_run).info().last_step
    assert f"(after step {held}," in line.inner_text()
    badge = page.get_by_text(re.compile(rf"^paused by kim for \d+ \w+, step {held} of 100000$"))
    for name in PAGES_OF_A_RUN:
        visit(page, f"{dashboard.url}/{name}?run=live")
        badge.wait_for()
    visit(page, f"{dashboard.url}/?filter=^live$")
    cell = re.compile(r"paused by kim for \d+ \w+")

    def is_listed() -> bool:
        return any(cell.fullmatch(text) for row in table_rows(page) for text in row)

    until(is_listed, "its row", page=page)
    rows = page.request.get(f"{dashboard.url}/api/runs").json()["runs"]
    assert [row["status"] for row in rows if row["run_id"] == "live"] == ["paused"]
    command = [sys.executable, "-m", "echoscope", "runs", "list", str(dashboard.root)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"paused by kim for \d+ \w+", listed)


def test_a_crashed_trainer_is_told_from_a_silent_one(
    begin: Train, hold: Callable[..., HeldRun], dashboard: DashboardProcess, page: Any
) -> None:
    """Both have not been heard of for ten minutes. Only one of them still has its process."""
    silent = hold("no-news-silent")
    silent.advance(3)
    silent.fall_silent(600)
    crashed, trainer = begin("no-news-crashed")
    trainer.kill()
    set_heard(crashed, 600)
    visit(page, f"{dashboard.url}/?filter=^no-news")

    def status_of(run: Path) -> list[str]:
        return next((row for row in table_rows(page) if run.name in row), [])

    until(lambda: "stale, no news for 10 min" in status_of(silent.path), "silence", page=page)
    until(lambda: "crashed" in status_of(crashed), "crash", page=page)
    visit(page, f"{dashboard.url}/live?run={silent.path.name}")
    page.get_by_text("stale, no news for 10 min, step 2 of 100").first.wait_for()
    visit(page, f"{dashboard.url}/live?run={crashed.name}&panel=true")
    page.get_by_text(re.compile(r"^crashed, step \d+ of 100000$")).wait_for()
    page.get_by_text("Run crashed. It takes no more commands.").wait_for()
    assert page.get_by_role("button", name="Stop", exact=True).count() == 0


def test_a_run_is_steered_and_stopped(begin: Train, dashboard: DashboardProcess, page: Any) -> None:
    run, process = begin("steered")
    visit(page, f"{dashboard.url}/live?run=steered&panel=true")

    page.get_by_text("Live settings").click()
    choose(page, "Settings to change", "selection.value:")
    field = page.get_by_role("textbox", name="selection.value", exact=True)
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

    page.get_by_role("button", name="Pause", exact=True).click()
    until(lambda: answered(run, "pause"), "pause")
    page.get_by_role("button", name="Resume", exact=True).wait_for()
    held = open_run(run).info().last_step
    page.get_by_text(f"Paused after step {held} by you.").wait_for()
    page.get_by_role("button", name="Undo", exact=True).click()
    until(lambda: open_run(run).info().last_step > held, "step after the pause")

    page.get_by_role("button", name="Stop", exact=True).wait_for()
    confirm(page, "Stop", "enough")
    process.join()
    reader = open_run(run)
    assert reader.info().status == "stopped"
    assert reader.checkpoints()[-1].step == reader.info().last_step
    page.get_by_text("It takes no more commands").wait_for()
