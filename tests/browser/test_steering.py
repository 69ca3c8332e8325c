"""What stands beside the buttons and on the charts of a live run, before and after a command."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from browsing import DashboardProcess, choose, draw_chart, hover, text_of, until, visit
from held_run import HeldRun
from made_run import add_steps

from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.store.records import CommandAction
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

Hold = Callable[..., HeldRun]
ENTROPY = ".st-key-chart_entropy"
FOUR = (
    'the alarm "echo trap": pause',
    "root: checkpoint",
    "judge: set optim.lr = 0.01",
    "root: resume",
)


def send(run: HeldRun, who: str, action: CommandAction, **settings: Any) -> None:
    keys = {name.replace("__", "."): value for name, value in settings.items()}
    post(run.path, new_command(run.path.name, action, issued_by=who, settings=keys))


def send_four(run: HeldRun) -> None:
    """An alarm pauses; two people write a checkpoint, change a setting and go on."""
    send(run, "alarm ECHO_TRAP", CommandAction.PAUSE)
    send(run, "root", CommandAction.CHECKPOINT)
    send(run, "judge", CommandAction.SET, optim__lr=0.01)
    send(run, "root", CommandAction.RESUME)


def pick_setting(page: Any, key: str) -> Any:
    """Open the live settings and choose one of them; its field."""
    page.get_by_text("Live settings").click()
    choose(page, "Settings to change", f"{key}:")
    field = page.get_by_role("textbox", name=key, exact=True)
    field.wait_for()
    return field


def open_alarms(page: Any) -> None:
    """On the page Live they are folded into one line."""
    page.get_by_text(re.compile("^Open alarms:")).click()
    page.get_by_text("reward std fell").first.wait_for()


def change(page: Any, key: str, value: str) -> None:
    field = pick_setting(page, key)
    field.fill(value)
    field.press("Tab")


def test_hovering_the_mark_of_four_commands_names_all_four(
    hold: Hold, dashboard: DashboardProcess, page: Any
) -> None:
    run = hold("four-commands")
    run.advance(6)
    send_four(run)
    run.answer(detail="done")
    run.advance(4)
    visit(page, f"{dashboard.url}/live?run=four-commands")
    plot = draw_chart(page, ENTROPY)
    square = page.locator(f"{plot} .scatterlayer .point").last
    hover_text = hover(page, plot, square)
    assert [command for command in FOUR if command not in hover_text] == []


def test_commands_from_elsewhere_appear_beside_the_buttons(
    hold: Hold, dashboard: DashboardProcess, page: Any
) -> None:
    """The page is open already, and nothing of it was pressed."""
    run = hold("steered-elsewhere")
    run.advance(6)
    visit(page, f"{dashboard.url}/live?run=steered-elsewhere&panel=true")
    send_four(run)
    page.get_by_text('the alarm "echo trap": pause (since').wait_for()
    run.answer(detail="done")
    for command in FOUR:
        page.get_by_text(f"{command} (after step 5, done)", exact=True).wait_for()


def test_an_alarm_its_pause_and_its_checkpoint_are_all_said_to_be_after_step_5(
    hold: Hold, dashboard: DashboardProcess, page: Any
) -> None:
    """The trainer acknowledged the pause as of step 6, the first that it holds for."""
    run = hold("one-step")
    run.advance(6)
    run.raise_alarm(alarm_id="e1")
    pause = new_command("one-step", CommandAction.PAUSE, issued_by="alarm ECHO_TRAP")
    post(run.path, replace(pause, command_id="alarm-e1-5"))
    run.checkpoint(reason="alarm")
    run.answer(detail="paused")
    visit(page, f"{dashboard.url}/live?run=one-step&panel=true")
    page.get_by_text('paused by the alarm "echo trap" for').first.wait_for()
    page.get_by_text('the alarm "echo trap": pause (after step 5, paused)').wait_for()
    open_alarms(page)
    page.get_by_text("Raised after step 5, began about step 1.").wait_for()
    assert "step 6" not in text_of(page)


def test_a_setting_without_effect_is_told_before_it_is_sent(
    hold: Hold, dashboard: DashboardProcess, page: Any
) -> None:
    run = hold("inert")
    run.advance(3)
    visit(page, f"{dashboard.url}/live?run=inert&panel=true")
    change(page, "selection.value", "0.7")
    told = page.get_by_text("selection.value=0.7 has no effect: selection.strategy is none")
    told.wait_for()
    page.get_by_role("button", name="Review and send").click()
    page.get_by_role("button", name="Confirm: change settings").wait_for()
    until(lambda: told.count() == 2, "the warning in the question, too", page=page)
    assert run.waiting() == []


def test_fewer_steps_than_are_done_is_told_before_it_is_sent(
    hold: Hold, dashboard: DashboardProcess, page: Any
) -> None:
    run = hold("shortened")
    run.advance(38)
    visit(page, f"{dashboard.url}/live?run=shortened&panel=true")
    change(page, "steps", "3")
    page.get_by_text("steps=3 ends the run at once: step 37 is finished already").wait_for()
    assert run.waiting() == []


def test_a_suggestion_is_offered_until_it_holds(
    hold: Hold, dashboard: DashboardProcess, page: Any
) -> None:
    run = hold("suggested")
    run.advance(6)
    wish = {"selection.strategy": "top_p", "selection.value": 0.9}
    run.raise_alarm(suggested=new_command("suggested", CommandAction.SET, settings=wish))
    visit(page, f"{dashboard.url}/live?run=suggested&panel=true")
    open_alarms(page)
    offer = page.get_by_role(
        "button", name="Apply: set selection.strategy = top_p, selection.value = 0.9"
    )
    offer.wait_for()
    send(run, "kim", CommandAction.SET, selection__strategy="top_p")
    run.answer()
    page.get_by_text("kim: set selection.strategy = top_p (after step 5)").wait_for()
    offer.wait_for(state="detached")


TIME_OF_QUESTION = """
window.asked = null;
document.addEventListener("click", () => {
  const from = performance.now();
  const look = () => {
    const buttons = [...document.querySelectorAll("button")];
    if (buttons.some((button) => button.textContent.startsWith("Confirm: start the branch")))
      window.asked = performance.now() - from;
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}, { once: true, capture: true });
"""
MOST_MS = 5_000
"""Half a second on a machine that does nothing else; ten times that on one that runs tests."""


def test_the_question_behind_apply_is_there_at_once(dashboard: DashboardProcess, page: Any) -> None:
    """A trained run whose later steps are those of a collapse: it can be branched."""
    path = dashboard.root / "sick"
    shutil.copytree(dashboard.root / "tiny", path)
    rows = [row for _, row in make("low_entropy_collapse", 1).table.rows()]
    values = [{key: v for key, v in row.items() if math.isfinite(v)} for row in rows]
    writer = RunWriter.resume(path, from_step=5)
    steps = range(6, 6 + len(rows))
    add_steps(writer, "tiny", steps, lambda step: values[step - 6], num_trajectories=0)
    writer.close(status="finished")
    visit(page, f"{dashboard.url}/live?run=sick")
    apply = page.get_by_role("button", name=re.compile("^(Apply|Try): branch from"))
    apply.wait_for()
    page.wait_for_timeout(3_000)  # the charts are drawn, and nobody presses sooner
    page.evaluate(TIME_OF_QUESTION)
    apply.click()
    page.get_by_role("button", name="Confirm: start the branch").wait_for()
    took_ms = until(lambda: page.evaluate("window.asked"), "time of the question", page=page)
    assert took_ms < MOST_MS
    page.get_by_role("button", name="Cancel").click()


def test_an_ended_run_is_given_no_command_for_live_ones(
    hold: Hold, dashboard: DashboardProcess, page: Any
) -> None:
    run = hold("ended")
    run.advance(6)
    run.raise_alarm(suggested=new_command("ended", CommandAction.STOP))
    visit(page, f"{dashboard.url}/live?run=ended&panel=true")
    open_alarms(page)
    page.get_by_role("button", name=re.compile("^Apply")).wait_for()
    run.close()
    visit(page, f"{dashboard.url}/live?run=ended&panel=true")
    open_alarms(page)
    assert page.get_by_role("button", name=re.compile("^Apply")).count() == 0


def test_a_young_run_is_told_when_it_will_be_judged(
    hold: Hold, dashboard: DashboardProcess, page: Any
) -> None:
    """One sentence; not a list of all metrics, cut in the middle."""
    run = hold("young")
    run.advance(5)
    visit(page, f"{dashboard.url}/live?run=young")
    sentence = re.compile(r"^Too early to tell: a verdict needs 8 steps, and there are 5\.$")
    page.get_by_text(sentence).first.wait_for()
    assert "more characters" not in text_of(page)


def test_the_form_of_a_branch_prefers_the_last_good_checkpoint(
    hold: Hold, dashboard: DashboardProcess, page: Any
) -> None:
    """The collapse may have begun at step 3: the checkpoint of step 1 is better than the newest."""
    run = hold("branching")
    for _ in range(3):
        run.advance(2)
        run.checkpoint()
    run.raise_alarm(onset_step=3)
    visit(page, f"{dashboard.url}/live?run=branching&panel=true")
    page.get_by_text("Branch from a checkpoint").click()
    chosen = page.get_by_role("combobox", name=re.compile("Checkpoint after step"))
    chosen.wait_for()
    assert chosen.input_value() == "1 (last good)"
