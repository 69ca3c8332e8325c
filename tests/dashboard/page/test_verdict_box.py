"""The verdict on a page: its parts, and the button that does what it advises."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_run import add_steps, make_run, open_writer
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.data import queries
from echoscope.dashboard.data import verdict_cache as judging
from echoscope.dashboard.steer import branching
from echoscope.dashboard.steer.branching import launches
from echoscope.diagnostics.judge.advice.actions import Action
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAck, CommandAction, CommandOutcome
from echoscope.store.steer.commands import new_command
from echoscope.store.steer.rewinds import rewind_settings

OpenPage = Callable[..., AppTest]
TEXT = """Echo trap, starting between steps 1 and 2. The group repeats itself.
Evidence: reward std within groups: 0.5 (step 1) -> 0 (step 3).
Likely cause: the learning rate is 0.001.
What to do: Go back to checkpoint 2 and change one setting.
  echoscope ctl runs/tiny branch --checkpoint 2 optim.lr=0.0001
Not checked: drift from the reference (policy/ref_kl is not logged)."""
BRANCH = Action(
    text="Go back to checkpoint 2 and change one setting.",
    command="echoscope ctl runs/tiny branch --checkpoint 2 optim.lr=0.0001",
    verb="branch",
    checkpoint=2,
    settings={"optim.lr": 1e-4},
    why="Smaller steps move the policy less at a time.",
)
SET = replace(BRANCH, verb="set", checkpoint=None, settings={"selection.value": 0.5})
LIVE_KNOBS = {"selection.value": {"type": "number", "exclusiveMinimum": 0, "value": 0.9}}


@pytest.fixture
def root(recorded_root: Path, tmp_path: Path) -> Path:
    """A root of one's own with the recorded run `tiny`: 4 steps, checkpoints of 2 and 4."""
    shutil.copytree(recorded_root / "tiny", tmp_path / "root" / "tiny")
    return tmp_path / "root"


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Action], Verdict]:
    """Has every run judged to be collapsed, with an action as the advice."""
    monkeypatch.setattr(branching, "_launches", [])

    def say(action: Action) -> Verdict:
        verdict = replace(
            judging._nothing_yet(),
            state=RunState.COLLAPSED,
            onset_step=2,
            onset_interval=(1, 2),
            last_step=3,
            confidence="high",
            actions=(action,),
            text=TEXT,
        )
        monkeypatch.setattr(queries, "verdict", lambda run_id, wait_s=0.5: verdict)
        monkeypatch.setattr(queries, "known_verdict", lambda run_id: verdict)
        return verdict

    return say


def texts(page: AppTest) -> str:
    assert not page.exception, page.exception
    kinds = ("text", "caption", "code", "markdown")
    return "\n".join(str(tag.value) for kind in kinds for tag in page.get(kind)).replace("\\", "")


def keys(page: AppTest) -> list[Any]:
    return [button.key for button in page.button]


@pytest.mark.long
def test_advice_to_branch_is_a_button_and_one_confirmation(
    root: Path, open_page: OpenPage, judged: Callable[[Action], Verdict]
) -> None:
    judged(BRANCH)
    page = open_page("live", root, run="tiny")
    button = page.button(key="verdict_apply")
    assert button.label.replace("\\", "") == "Apply: branch from checkpoint 2 with optim.lr=0.0001"
    button.click().run()
    assert launches(root / "tiny") == []
    assert page.selectbox(key="branch_at:tiny").value == 2
    assert page.text_area(key="branch_lines:tiny").value == "optim.lr=0.0001"
    assert page.text_input(key="draft_reason").value == BRANCH.why
    page.button(key="draft_confirm").click().run()
    (started,) = launches(root / "tiny")
    assert started.process.wait(200) == 0
    report = started.report()
    assert report.run_id
    config = open_run(root / report.run_id).info().config
    assert (config["optim"]["lr"], config["branched_from"]["step"]) == (1e-4, 2)


@pytest.mark.parametrize("options", [{"is_read_only": True}, {"may_branch": False}])
def test_no_button_where_a_page_may_not(
    root: Path,
    open_page: OpenPage,
    judged: Callable[[Action], Verdict],
    options: dict[str, bool],
) -> None:
    judged(BRANCH)
    page = open_page("live", root, run="tiny", options=options)
    assert "verdict_apply" not in keys(page)


def test_an_ended_run_has_no_button_that_sets(
    tmp_path: Path, open_page: OpenPage, judged: Callable[[Action], Verdict]
) -> None:
    make_run(tmp_path / "a", live_knobs=LIVE_KNOBS)
    judged(SET)
    for name in ("live", "diagnosis"):
        assert "verdict_apply" not in keys(open_page(name, tmp_path, run="a"))


@pytest.mark.parametrize(("value", "is_offered"), [(0.5, True), (0.9, False)])
def test_a_live_run_is_offered_what_does_not_hold_already(
    tmp_path: Path,
    open_page: OpenPage,
    judged: Callable[[Action], Verdict],
    value: float,
    is_offered: bool,
) -> None:
    writer = open_writer(tmp_path / "a", live_knobs=LIVE_KNOBS)
    add_steps(writer, "a", range(3))
    judged(replace(SET, settings={"selection.value": value}))
    page = open_page("live", tmp_path, run="a")
    assert ("verdict_apply" in keys(page)) is is_offered
    writer.close(status="finished")


def test_evidence_and_advice_come_before_the_rest(
    root: Path, open_page: OpenPage, judged: Callable[[Action], Verdict]
) -> None:
    judged(BRANCH)
    page = open_page("diagnosis", root, run="tiny")
    (box,) = [tag.proto.body for tag in page.get("html") if 'class="es-state"' in tag.proto.body]
    parts = ("Echo trap", "Reward std within groups: 0.5", "Go back to checkpoint 2")
    assert sorted(parts, key=box.index) == list(parts)
    assert "echoscope ctl runs/tiny branch --checkpoint 2" in box


def test_what_a_guard_asks_for_is_agreed_to_by_a_click_and_a_confirmation(
    tmp_path: Path, open_page: OpenPage, judged: Callable[[Action], Verdict]
) -> None:
    """It is what the guard chose, not what the verdict names first."""
    writer = open_writer(tmp_path / "a", live_knobs=LIVE_KNOBS)
    add_steps(writer, "a", range(3))
    order = rewind_settings(1, {"advantage.kind": "grpo"})
    pause = new_command("a", CommandAction.PAUSE, settings=order, issued_by="alarm ECHO_TRAP")
    ack = CommandAck(command_id=pause.command_id, step=3, outcome=CommandOutcome.APPLIED, detail="")
    writer.record_acks([ack], [pause])
    writer.flush()
    judged(BRANCH)
    page = open_page("live", tmp_path, run="a")
    button = page.button(key="verdict_apply")
    label = "Agree: rewind to checkpoint 1 with advantage.kind=grpo"
    assert button.label.replace("\\", "") == label
    button.click().run()
    page.button(key="draft_confirm").click().run()
    (sent,) = [s.command for s in open_run(tmp_path / "a").commands() if s.ack is None]
    assert (sent.action, sent.settings) == (CommandAction.REWIND, order)
    read_only = open_page("live", tmp_path, run="a", options={"is_read_only": True})
    assert "verdict_apply" not in keys(read_only)
    writer.close(status="finished")
