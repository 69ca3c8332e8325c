"""The Live page: what it shows of runs in every condition, and how it steers them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from held_run import HeldRun
from hypothesis import given
from hypothesis import strategies as st
from made_run import make_run, open_writer
from shown_figures import listened_to, shown_figures, shown_lines
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.charts import live as live_charts
from echoscope.dashboard.charts import run_figures
from echoscope.dashboard.charts.curated import charts_of
from echoscope.dashboard.charts.run_figures import Controls
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.curves import AXES, AxisKind
from echoscope.dashboard.steer import steering
from echoscope.store.reader import open_run
from echoscope.store.records import AlarmSeverity, CommandAction, CommandOutcome
from echoscope.store.steer.commands import new_command, post
from echoscope.store.steer.steering import SteeringError, os_user

OpenPage = Callable[..., AppTest]
HOSTILE = "<img src=x onerror=alert(1)> **b** [a](http://evil.example) %{z} \u202e\x1b[31m"


@pytest.fixture
def live_run(tmp_path: Path) -> Iterator[HeldRun]:
    run = HeldRun(tmp_path / "live")
    run.advance(3)
    yield run
    run.close()


@pytest.fixture
def page(live_run: HeldRun, tmp_path: Path, open_page: OpenPage) -> AppTest:
    """The page of `live_run`, as somebody opens it."""
    return open_page("live", tmp_path, run="live")


def shown(page: AppTest) -> str:
    assert not page.exception, page.exception
    kinds = ("text", "markdown", "caption", "code", "info", "warning", "error")
    parts = [str(element.value) for kind in kinds for element in page.get(kind)]
    parts += [element.proto.body for element in page.get("html")]
    return "\n".join(parts + [data["line"]["text"] for data in shown_lines(page).values()])


def specs(page: AppTest) -> dict[str, str]:
    """The figures that a page sends, as JSON, by the id of their element."""
    return {key: figure.text for key, figure in shown_figures(page).items()}


def with_settings(page: AppTest, *keys: str) -> AppTest:
    """The page with its form of live settings open, and some of them chosen."""
    page.session_state["steering_form"] = True
    page.session_state["knobs:live"] = list(keys)
    return page.run()


def press(page: AppTest, key: str) -> AppTest:
    page.button(key=key).click().run()
    shown(page)
    return page


# What is shown


def num_charts(path: Path) -> int:
    """Of the curated charts, those of this run."""
    return len(charts_of(None, open_run(path).metric_keys()))


def test_a_recorded_run_shows_its_curves(recorded_root: Path, open_page: OpenPage) -> None:
    page = open_page("live", recorded_root, run="tiny")
    assert "It takes no more commands" in shown(page)
    figures = "".join(specs(page).values())
    assert len(specs(page)) == num_charts(recorded_root / "tiny")
    for title in ("Policy entropy", "Success", "Return", "Gradient norm"):
        assert title in figures
    assert not page.get("exception")


def test_a_live_run_shows_where_it_is_and_can_be_steered(live_run: HeldRun, page: AppTest) -> None:
    assert "step 2 of 100" in shown(page)
    labels = [button.label for button in page.button]
    assert {"Pause", "Checkpoint", "Evaluate", "Stop"} <= set(labels)


def test_a_live_run_goes_on_by_itself_and_a_finished_one_stays(
    live_run: HeldRun, recorded_root: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    page = open_page("live", tmp_path, run="live")
    queries.verdict("live", wait_s=60.0)  # its line is there once there is a verdict
    page.run()
    heads = [figure.head["source"] for figure in shown_figures(page).values()]
    assert len(heads) == num_charts(tmp_path / "live")
    assert {head["pulse"] for head in heads} == {"/api/runs/live/pulse"}
    asked = {name: line["address"] for name, line in shown_lines(page).items()}
    assert asked == dict.fromkeys(("status", "verdict"), "/api/runs/live/pulse")
    parts = {"verdict", "alarms", "commands", "checkpoints", "keys"}
    assert listened_to(page) == {"status", *parts}
    page = open_page("live", recorded_root, run="tiny")
    queries.verdict("tiny", wait_s=60.0)
    page.run()
    assert {figure.head["source"] for figure in shown_figures(page).values()} == {None}
    assert listened_to(page) == {"status"}  # somebody may resume it


def test_a_new_step_appears_with_the_next_drawing(live_run: HeldRun, page: AppTest) -> None:
    live_run.advance()
    assert "step 3 of 100" in shown(page.run())


@given(
    axis=st.sampled_from(AXES),
    smooth=st.integers(0, 99).map(lambda part: part / 100),
    log_y=st.booleans(),
    zoom=st.none() | st.tuples(st.integers(-9, 9), st.integers(10, 99)),
    name=st.text(),
)
def test_a_chart_and_how_it_is_seen_fit_into_an_address(
    axis: AxisKind,
    smooth: float,
    log_y: bool,
    zoom: tuple[int, int] | None,
    name: str,
) -> None:
    seen = Controls(axis=axis, smooth=smooth, log_y=log_y, zoom=zoom)
    query = dict(parse_qsl(live_charts.to_query(name, seen), keep_blank_values=True))
    assert live_charts.from_query(query) == (name, seen)


@given(st.dictionaries(st.sampled_from(["name", "x", "smooth", "log", "zoom"]), st.text()))
def test_any_address_of_a_chart_is_read(query: dict[str, str]) -> None:
    _, seen = live_charts.from_query(query)
    assert 0 <= seen.smooth <= 0.99
    assert seen.axis in AXES


def test_an_unchanged_run_is_not_drawn_anew(
    live_run: HeldRun, page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = specs(page)
    monkeypatch.setattr(run_figures, "line_spec", None)  # calling it would fail
    shown(page.run())
    assert specs(page) == before


@pytest.mark.long
def test_a_run_that_is_faster_than_the_page_is_still_drawn_to_the_end(
    live_run: HeldRun, tmp_path: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = queries.position

    def moving(run_id: str) -> Any:
        live_run.advance()  # a step with every look: there is always news
        return position(run_id)

    monkeypatch.setattr(queries, "position", moving)
    page = open_page("live", tmp_path, run="live")
    assert len(specs(page)) > 0


def test_a_run_before_its_first_step_says_so(tmp_path: Path, open_page: OpenPage) -> None:
    writer = open_writer(tmp_path / "young")
    page = open_page("live", tmp_path, run="young")
    assert "waiting for its first step" in shown(page)
    writer.close(status="finished")


def test_all_chart_options_come_from_the_address(recorded_root: Path, open_page: OpenPage) -> None:
    page = open_page("live", recorded_root, run="tiny", smooth="0.6", x="tokens", log="true")
    figures = "".join(specs(page).values())
    assert "sampled tokens" in figures
    assert '"type":"log"' in figures
    assert ", raw %{customdata[1]" in figures


def test_a_zoom_in_the_address_is_shown_by_all_charts(
    recorded_root: Path, open_page: OpenPage
) -> None:
    page = open_page("live", recorded_root, run="tiny", zoom="1,2.5")
    assert not page.exception
    ranges = [element.layout["xaxis"].get("range") for element in shown_figures(page).values()]
    assert ranges.count([1.0, 2.5]) > 4
    page = open_page("live", recorded_root, run="tiny", zoom="2,<b>")
    assert "is no range LOW,HIGH" in shown(page)


def test_metrics_are_found_by_a_regular_expression(
    recorded_root: Path, open_page: OpenPage
) -> None:
    page = open_page("live", recorded_root, run="tiny", metrics="^policy/entropy$")
    assert "1 of " in shown(page)
    assert [box.label for box in page.expander if "(1)" in box.label] == [r"Policy (1)"]


def test_a_wrong_regular_expression_is_said_calmly(
    recorded_root: Path, open_page: OpenPage
) -> None:
    page = open_page("live", recorded_root, run="tiny", metrics="(")
    assert "is not a regular expression" in shown(page)
    assert len(specs(page)) == num_charts(recorded_root / "tiny")


def test_a_section_draws_a_page_of_charts_once_it_is_opened(
    tmp_path: Path, open_page: OpenPage
) -> None:
    make_run(tmp_path / "wide", values=lambda step: {f"mine/m{i:03}": i * step for i in range(30)})
    page = open_page("live", tmp_path, run="wide")
    before = len(specs(page))
    page.session_state["section_mine"] = True
    page.run()
    shown(page)
    assert len(specs(page)) - before == 12


# Alarms


def raise_alarm(run: HeldRun, severity: AlarmSeverity = AlarmSeverity.CRITICAL) -> None:
    suggested = new_command(
        "live", CommandAction.SET, settings={"selection.value": 0.5}, reason="ECHO_TRAP"
    )
    run.raise_alarm(
        alarm_id=f"echo-{severity.value}",
        severity=severity,
        message=f"reward std fell {HOSTILE}",
        suggested=suggested,
        evidence=("t00000002-00001",),
    )


def test_an_open_alarm_is_said_with_advice_and_marked_on_the_charts(
    live_run: HeldRun, tmp_path: Path, open_page: OpenPage
) -> None:
    raise_alarm(live_run)
    page = open_page("live", tmp_path, run="live")
    assert "Keep groups with spread" in shown(page).replace("\\", "")
    entropy = next(spec for spec in specs(page).values() if "Policy entropy" in spec)
    assert "critical, raised after step 2" in entropy
    assert "<img" not in entropy


def test_an_alarm_says_when_it_became_critical(
    live_run: HeldRun, tmp_path: Path, open_page: OpenPage
) -> None:
    """ "critical, raised after step 2" was said of a warning of step 1."""
    live_run.raise_alarm(alarm_id="echo", step=1, severity=AlarmSeverity.WARNING)
    live_run.raise_alarm(alarm_id="echo", step=2)
    text = shown(open_page("live", tmp_path, run="live")).replace("\\", "")
    assert "Warning at step 1, critical since step 2, began about step 1." in text


def test_what_an_alarm_suggests_is_one_confirmation_away(
    live_run: HeldRun, tmp_path: Path, open_page: OpenPage
) -> None:
    raise_alarm(live_run)
    page = open_page("live", tmp_path, run="live")
    press(page, "suggest_echo-critical")
    assert live_run.waiting() == []
    assert "selection.value: 0.9 -> 0.5" in shown(page)
    press(page, "draft_confirm")
    (sent,) = live_run.waiting()
    assert (sent.settings, sent.reason) == ({"selection.value": 0.5}, "ECHO_TRAP")


def test_what_holds_already_is_not_offered(
    live_run: HeldRun, tmp_path: Path, open_page: OpenPage
) -> None:
    raise_alarm(live_run)
    set_it = new_command("live", CommandAction.SET, settings={"selection.value": 0.5})
    post(live_run.path, set_it)
    live_run.answer()
    page = open_page("live", tmp_path, run="live")
    assert "suggest_echo-critical" not in [button.key for button in page.button]


# Steering


def test_commands_from_elsewhere_appear_beside_the_buttons(
    live_run: HeldRun, page: AppTest
) -> None:
    """An alarm, a shell and another window: nothing of it was sent from this page."""
    for who, action in (
        ("alarm ECHO_TRAP", CommandAction.PAUSE),
        ("root", CommandAction.CHECKPOINT),
    ):
        post(live_run.path, new_command("live", action, issued_by=who))
    live_run.answer(detail="done")
    post(live_run.path, new_command("live", CommandAction.EVALUATE, issued_by="ann"))
    text = shown(page.run())
    assert 'the alarm "echo trap": pause (after step 2, done)' in text
    assert "root: checkpoint (after step 2, done)" in text
    assert "ann: evaluate (since" in text


def test_a_setting_without_effect_is_told_before_it_is_sent(
    live_run: HeldRun, page: AppTest
) -> None:
    with_settings(page, "selection.value")
    page.text_input(key="knob:live:selection.value:0.9").set_value("0.7").run()
    words = "selection.value=0.7 has no effect: selection.strategy is none"
    assert words in shown(page)
    press(page, "steering_review")
    assert shown(page).count(words) == 2  # in the form, and in the question
    assert live_run.waiting() == []


def test_fewer_steps_than_are_done_is_told_before_it_is_sent(
    live_run: HeldRun, page: AppTest
) -> None:
    with_settings(page, "steps")
    page.text_input(key="knob:live:steps:100").set_value("1").run()
    assert "steps=1 ends the run at once: step 2 is finished already" in shown(page)


def test_a_pause_is_sent_at_one_click_and_taken_back_by_another(
    live_run: HeldRun, page: AppTest
) -> None:
    press(page, "steer_pause")
    (sent,) = live_run.waiting()
    assert (sent.action, sent.issued_by, sent.reason) == ("pause", os_user(), "")
    assert "The run pauses when the current step ends." in shown(page)
    assert re.search(rf"{os_user()}: pause \(since \d+ s, until the next step", shown(page))
    assert live_run.answer(detail="paused") == ["pause"]
    page.run()
    assert "Paused after step 2 by you." in shown(page)
    assert f"paused by {os_user()} for 0 s, step 2 of 100" in shown(page)
    assert "Resume" in [button.label for button in page.button]
    press(page, "steering_undo")
    assert live_run.answer(detail="resumed") == ["resume"]
    page.run()
    assert "Resumed after step 2 by you." in shown(page)
    press(page, "steering_read")
    assert "by you" not in shown(page)


def test_what_cannot_be_taken_back_has_no_undo(live_run: HeldRun, page: AppTest) -> None:
    press(page, "steer_checkpoint")
    live_run.answer()
    page.run()
    assert "Checkpoint written after step 2 by you." in shown(page)
    assert not [b for b in page.button if b.key == "steering_undo"]


def test_cancelling_sends_nothing(live_run: HeldRun, page: AppTest) -> None:
    press(page, "steer_stop")
    press(page, "draft_cancel")
    assert live_run.waiting() == []
    assert not [b for b in page.button if b.key == "draft_confirm"]


def test_a_refusal_says_why(live_run: HeldRun, page: AppTest) -> None:
    press(page, "steer_evaluate")
    live_run.answer(CommandOutcome.REJECTED, "the run has no environments under envs.eval")
    words = "Evaluate was rejected: the run has no environments under envs.eval."
    assert words in shown(page.run())


def test_a_second_stop_offers_stop_now(live_run: HeldRun, page: AppTest) -> None:
    press(page, "steer_stop")
    press(page, "draft_confirm")
    assert "Stop now" in [button.label for button in page.button]
    press(page, "steer_stop_now")
    press(page, "draft_confirm")
    assert [c.action for c in live_run.waiting()] == ["stop", "stop_now"]


def test_the_same_wish_is_sent_once_even_by_two_people(live_run: HeldRun, page: AppTest) -> None:
    post(live_run.path, new_command("live", CommandAction.CHECKPOINT, issued_by="bob"))
    press(page, "steer_checkpoint")
    assert [c.issued_by for c in live_run.waiting()] == ["bob"]
    assert "bob asked for the same" in shown(page)


def test_different_wishes_of_two_people_are_shown_in_order(
    live_run: HeldRun, tmp_path: Path, open_page: OpenPage
) -> None:
    post(live_run.path, new_command("live", CommandAction.PAUSE, issued_by="bob"))
    post(live_run.path, new_command("live", CommandAction.CHECKPOINT, issued_by="cyd"))
    words = shown(open_page("live", tmp_path, run="live"))
    assert words.index("bob: pause") < words.index("cyd: checkpoint")


@pytest.mark.long
def test_settings_are_previewed_checked_and_sent_together(live_run: HeldRun, page: AppTest) -> None:
    with_settings(page, "optim.lr", "selection.strategy")

    def field(key: str) -> Any:
        widgets = [*page.text_input, *page.selectbox]
        return next(element for element in widgets if element.label.replace("\\", "") == key)

    field("optim.lr").set_value("-1").run()
    assert "optim.lr is -1, but must be more than 0" in shown(page)
    assert not [b for b in page.button if b.key == "steering_review"]
    field("optim.lr").set_value("1e-3").run()
    field("selection.strategy").set_value("top_p").run()
    assert "optim.lr: 0.1 -> 0.001" in shown(page)
    assert "selection.strategy: none -> top_p" in shown(page)
    press(page, "steering_review")
    press(page, "draft_confirm")
    (sent,) = live_run.waiting()
    assert sent.settings == {"optim.lr": 0.001, "selection.strategy": "top_p"}
    live_run.answer(detail="optim.lr 0.1 -> 0.001")
    page.run()
    assert field("optim.lr").value == "0.001"
    assert "The values in force" in shown(page)


def test_what_alarms_do_is_set_by_rule(live_run: HeldRun, page: AppTest) -> None:
    with_settings(page, "diagnostics.alarms.actions")
    field = next(element for element in page.text_input if element.label.endswith("actions"))
    field.set_value('{"KL_DRIFT": "stopp"}').run()
    assert "stopp" in shown(page)
    assert not [b for b in page.button if b.key == "steering_review"]
    next(element for element in page.text_input if element.label.endswith("actions")).set_value(
        '{"KL_DRIFT": "stop"}'
    ).run()
    press(page, "steering_review")
    press(page, "draft_confirm")
    (sent,) = live_run.waiting()
    assert sent.settings == {"diagnostics.alarms.actions": {"KL_DRIFT": "stop"}}


def test_a_run_that_ended_meanwhile_refuses_in_words(live_run: HeldRun, page: AppTest) -> None:
    live_run.close()
    page.button(key="steer_pause").click().run()
    assert "It takes no more commands" in shown(page)
    assert open_run(live_run.path).commands() == []


def test_a_read_only_dashboard_offers_nothing(
    live_run: HeldRun, tmp_path: Path, open_page: OpenPage
) -> None:
    page = open_page("live", tmp_path, options={"is_read_only": True}, run="live")
    assert "read-only" in shown(page)
    assert not [b for b in page.button if b.key and b.key.startswith("steer")]


def test_a_draft_cannot_be_sent_to_a_read_only_dashboard(
    live_run: HeldRun, tmp_path: Path, serve_root: Callable[..., None]
) -> None:
    serve_root(tmp_path, is_read_only=True)
    with pytest.raises(SteeringError, match="read-only"):
        steering.send_command("live", CommandAction.STOP, {}, "ann", "")
    assert live_run.waiting() == []


def test_hostile_authors_reasons_and_settings_stay_text(
    live_run: HeldRun, tmp_path: Path, open_page: OpenPage
) -> None:
    command = new_command(
        "live",
        CommandAction.SET,
        settings={HOSTILE: HOSTILE},
        issued_by=HOSTILE,
        reason=HOSTILE * 10,
    )
    post(live_run.path, command)
    page = open_page("live", tmp_path, run="live")
    assert "\u202e" not in shown(page)
    assert "\x1b" not in shown(page)
    live_run.answer(CommandOutcome.REJECTED, HOSTILE)
    shown(page.run())
    assert "<img" not in "".join(specs(page).values())
    (table,) = [frame.value for frame in page.dataframe if "outcome" in frame.value]
    (row,) = table.to_dict("records")
    assert row["outcome"].startswith("rejected after step 2: <img")  # a table reads no HTML
    assert "\u202e" not in row["who"]


def test_following_can_be_paused_by_the_address(
    live_run: HeldRun, tmp_path: Path, open_page: OpenPage
) -> None:
    page = open_page("live", tmp_path, run="live", follow="false")
    shown(page)
    assert page.session_state["follow"] is False
    queries.verdict("live", wait_s=60.0)
    page.run()
    assert listened_to(page) == set()
    assert {line["address"] for line in shown_lines(page).values()} == {None}
    assert {figure.head["source"] for figure in shown_figures(page).values()} == {None}
