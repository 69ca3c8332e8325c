"""Steering, as the command line and the dashboard share it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from run_infos import run_info

from echoscope.store.reader import CommandState, RunInfo, open_run
from echoscope.store.records import (
    Command,
    CommandAck,
    CommandAction,
    CommandOutcome,
    SettingsRecord,
)
from echoscope.store.steer.commands import Mailbox
from echoscope.store.steer.settings import live_settings
from echoscope.store.steer.steering import (
    SteeringError,
    check_settings,
    obeyed_actions,
    os_user,
    prepare,
    same_waiting,
    send,
    setting_warnings,
    standing,
    why_not_steered,
)
from echoscope.store.writer import RunWriter

KNOBS: dict[str, Any] = {
    "steps": {"type": "integer", "minimum": 1, "value": 100},
    "optim.lr": {"type": "number", "exclusiveMinimum": 0, "value": 0.1},
    "sampling.top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "value": 1.0},
    "selection.eps": {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "value": 0.01},
    "selection.strategy": {"type": "string", "enum": ["none", "top_p"], "value": "none"},
    "selection.include_zero": {"type": "boolean", "value": False},
    "limit": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "value": None},
    "actions": {
        "type": "object",
        "propertyNames": {"enum": ["ECHO_TRAP", "KL_DRIFT"]},
        "additionalProperties": {"enum": ["notify", "stop"], "type": "string"},
        "value": {},
    },
    "note": {"type": "string", "value": ""},
    "anything": {"value": 1},
}


def info(**changes: Any) -> RunInfo:
    return run_info(**({"config": {"steps": 100}, "live_knobs": KNOBS} | changes))


def asked(
    action: str,
    outcome: CommandOutcome | None = CommandOutcome.APPLIED,
    *,
    attempt: int = 1,
    expires_at: float | None = None,
    **settings: Any,
) -> CommandState:
    command = Command(
        command_id="c",
        run_id="r",
        issued_at=1.0,
        issued_by="ann",
        action=CommandAction(action),
        settings={key.replace("__", "."): value for key, value in settings.items()},
        expires_at=expires_at,
    )
    if outcome is None:
        return CommandState(command=command, ack=None)
    ack = CommandAck(command_id="c", step=6, outcome=outcome)
    return CommandState(command=command, ack=ack, attempt=attempt)


# Where steering has brought a run


def test_a_run_that_nobody_steered() -> None:
    now = standing(info(), [], {})
    assert (now.steps, now.is_paused, now.is_stopping, now.waiting) == (100, False, False, ())


def test_pause_holds_until_resume() -> None:
    assert standing(info(), [asked("pause")], {}).is_paused
    assert not standing(info(), [asked("pause"), asked("resume")], {}).is_paused


def test_what_was_not_applied_changes_nothing() -> None:
    refused = asked("pause", CommandOutcome.REJECTED)
    waiting = asked("pause", None)
    assert not standing(info(), [refused, waiting], {}).is_paused
    assert standing(info(), [refused, waiting], {}).waiting == (waiting.command,)


def test_a_resumed_run_is_neither_paused_nor_stopping_by_an_earlier_attempt() -> None:
    now = standing(info(attempt=2), [asked("pause"), asked("stop")], {})
    assert (now.is_paused, now.is_stopping) == (False, False)


def test_a_run_that_ended_is_not_paused() -> None:
    now = standing(info(status="stopped"), [asked("pause"), asked("stop")], {})
    assert (now.is_paused, now.is_stopping) == (False, False)


@pytest.mark.parametrize("outcome", [None, CommandOutcome.APPLIED])
@pytest.mark.parametrize("action", ["stop", "stop_now"])
def test_a_stop_is_pending_until_the_run_has_ended(
    action: str, outcome: CommandOutcome | None
) -> None:
    assert standing(info(), [asked(action, outcome)], {}).is_stopping
    assert not standing(info(), [asked(action, CommandOutcome.EXPIRED)], {}).is_stopping


def test_settings_in_force_are_the_first_ones_and_those_that_the_trainer_wrote_last(
    tmp_path: Path,
) -> None:
    writer = RunWriter.create(tmp_path / "r", run_id="r", config={}, live_knobs=KNOBS)
    initial = live_settings(open_run(tmp_path / "r"))
    assert (initial.now["steps"], initial.at(9)["optim.lr"]) == (100, 0.1)
    for step, lr in ((3, 0.2), (3, 0.3), (7, 0.4)):
        settings = SettingsRecord(step=step, values={"steps": 50, "optim.lr": lr})
        writer.record_acks((), settings=settings)
    writer.close(status="finished")
    in_force = live_settings(open_run(tmp_path / "r"))
    assert [in_force.at(step)["optim.lr"] for step in (2, 3, 6, 7)] == [0.1, 0.3, 0.3, 0.4]
    assert standing(info(), [], in_force.now).steps == 50


# What is refused before it is sent


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("optim.lrr", 1.0, "'optim.lrr' is not a setting that can change during the run; did you"),
        ("optim.lr", 0.0, "optim.lr is 0.0, but must be more than 0"),
        ("optim.lr", "fast", "optim.lr is 'fast', but must be a number"),
        ("optim.lr", True, "optim.lr is True, but must be a number"),
        ("optim.lr", math.inf, "must be finite"),
        ("optim.lr", math.nan, "must be finite"),
        ("sampling.top_p", 1.5, "must be at most 1"),
        ("selection.eps", 1.0, "must be less than 1"),
        ("selection.eps", -0.1, "must be at least 0"),
        ("steps", 2.5, "must be a whole number"),
        ("steps", 7.0, "must be a whole number without a decimal point"),
        ("selection.strategy", "best", "must be one of none, top_p"),
        ("selection.include_zero", 1, "must be true or false"),
        ("limit", 0, "limit is 0, but must be at least 1 or must be null"),
        ("actions", {"ECHO_TRP": "stop"}, "did you mean 'ECHO_TRAP'?"),
        ("actions", {"ECHO_TRAP": "explode"}, "ECHO_TRAP must be one of notify, stop"),
        ("actions", 3, "must be a mapping"),
        ("note", 3, "must be text"),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(SteeringError) as refused:
        check_settings(KNOBS, {"steps": 3, key: value})
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", 7),
        ("optim.lr", 1e-9),
        ("sampling.top_p", 1),
        ("selection.strategy", "top_p"),
        ("selection.include_zero", True),
        ("limit", None),
        ("limit", 3),
        ("actions", {"KL_DRIFT": "stop"}),
        ("note", "x"),
        ("anything", [1, 2]),
    ],
)
def test_a_right_value_passes(key: str, value: Any) -> None:
    check_settings(KNOBS, {key: value})


CLIPS = {"a": {"type": "number", "names": ["both", "low"]}, "b": {"names": ["both", "high"]}}


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"both": 1}, {"a": 1, "b": 1}),
        ({"low": 2, "both": 1}, {"a": 2, "b": 1}),
        ({"b": 3, "low": 2}, {"a": 2, "b": 3}),
    ],
)
def test_a_setting_may_have_names_of_its_trainer(
    given: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert check_settings(CLIPS, given) == settings


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"low": "x"}, "low is 'x', but must be a number"),
        ({"a": 1, "low": 2}, "a and low are one setting; give one of them"),
        ({"lwo": 1}, "'lwo' is not a setting that can change during the run; did you mean 'low'?"),
    ],
)
def test_a_name_of_the_trainer_is_repeated_in_what_is_refused(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SteeringError, match=f"^{re.escape(sentence)}$"):
        check_settings(CLIPS, given)


def test_a_setting_that_the_trainer_moves_can_be_set_to_what_was_set_last() -> None:
    knobs = {"optim.lr": {"type": "number", "moves": True}}
    assert not setting_warnings(info(live_knobs=knobs), {"optim.lr": 0.1}, {"optim.lr": 0.1})


def test_nothing_to_set_is_refused() -> None:
    with pytest.raises(SteeringError, match="nothing to set"):
        check_settings(KNOBS, {})


# What would change nothing, or end the run


NEEDS_A_STRATEGY = {"when": {"selection.strategy": ["none"]}, "why": "the strategy is none."}
ONLY_TOP_P = {"unless": {"selection.strategy": ["top_p"]}, "why": "not {selection.strategy}."}
OF_DISABLED = {"keys_in": "alarms.disabled", "why": "they are silent."}


@pytest.mark.parametrize(
    ("rules", "changes", "sentence"),
    [
        ([], {"steps": 5}, "steps=5 ends the run at once: step 5 is finished already. To go on, s"),
        ([], {"steps": 3}, "steps=3 ends the run at once"),
        ([], {"steps": 100}, "steps is 100 already: nothing changes."),
        ([NEEDS_A_STRATEGY], {"selection.eps": 0.1}, "=0.1 has no effect: the strategy is none."),
        ([NEEDS_A_STRATEGY], {"selection.eps": 0.1, "selection.strategy": "top_p"}, None),
        ([ONLY_TOP_P], {"selection.eps": 0.1, "selection.strategy": "min_p"}, ": not min_p."),
        ([ONLY_TOP_P], {"selection.eps": 0.1, "selection.strategy": "top_p"}, None),
        ([OF_DISABLED], {"selection.eps": {"KL_DRIFT": 1, "B": 2}}, "for KL_DRIFT: they are s"),
        ([OF_DISABLED], {"selection.eps": {"B": 2}}, None),
    ],
)
def test_a_setting_without_effect_is_told_before_it_is_sent(
    rules: list[dict[str, Any]], changes: dict[str, Any], sentence: str | None
) -> None:
    current = {key: schema["value"] for key, schema in KNOBS.items()}
    knobs = KNOBS | {"selection.eps": {**KNOBS["selection.eps"], "inert": rules}}
    run = info(config={"alarms": {"disabled": ["KL_DRIFT"]}}, live_knobs=knobs)
    warnings = setting_warnings(run, current, changes)
    assert len(warnings) == (sentence is not None)
    assert all(sentence in warning for warning in warnings)


def test_a_setting_with_an_effect_is_sent_without_a_word() -> None:
    current = {key: schema["value"] for key, schema in KNOBS.items()}
    changes = {"selection.strategy": "top_p", "selection.value": 0.5, "steps": 6, "optim.lr": 0.2}
    assert setting_warnings(info(), current, changes) == []


# Sending


def test_what_is_prepared_and_sent_arrives_once(run_path: Path, writer: RunWriter) -> None:
    stored = info(run_id=writer.run_id)
    command = prepare(
        stored,
        CommandAction.SET,
        settings={"optim.lr": 0.5},
        issued_by="ann",
        reason=" too slow ",
    )
    send(run_path, command)
    (arrived,) = Mailbox(run_path).drain()
    assert (arrived.settings, arrived.issued_by) == ({"optim.lr": 0.5}, "ann")
    assert arrived.reason == "too slow"


@pytest.mark.parametrize("status", ["finished", "stopped", "crashed"])
def test_a_run_that_ended_is_refused_in_words(status: str) -> None:
    with pytest.raises(SteeringError, match=f"the run is {status}"):
        prepare(info(status=status), CommandAction.PAUSE)


def test_texts_have_limits() -> None:
    with pytest.raises(SteeringError, match="the reason has 2001 characters, at most 2000"):
        prepare(info(), CommandAction.PAUSE, reason="x" * 2001)
    with pytest.raises(SteeringError, match="the author has 101 characters"):
        prepare(info(), CommandAction.PAUSE, issued_by="x" * 101)


def test_what_the_disk_refuses_is_said(tmp_path: Path) -> None:
    with pytest.raises(SteeringError, match="the command was not sent"):
        send(tmp_path / "gone", prepare(info(), CommandAction.PAUSE))


def test_the_same_wish_that_still_waits_is_found() -> None:
    command = prepare(info(), CommandAction.SET, settings={"steps": 3})
    waiting = asked("set", None, steps=3)
    assert same_waiting([waiting], command) is waiting.command
    assert same_waiting([asked("set", None, steps=4)], command) is None
    assert same_waiting([asked("set", steps=3)], command) is None
    assert same_waiting([asked("set", None, expires_at=2.0, steps=3)], command) is None


def test_somebody_is_at_the_keyboard() -> None:
    assert os_user()


def test_what_another_trainer_obeys_is_in_the_runs_own_record() -> None:
    assert obeyed_actions({}) == tuple(CommandAction)
    assert obeyed_actions({"watched": {"path": "x"}}) == ()
    recorded = {"recorded": True, "controls": ["pause", "resume", "stop", "no-such-action"]}
    assert [action.value for action in obeyed_actions(recorded)] == ["pause", "resume", "stop"]
    assert CommandAction.EVALUATE not in obeyed_actions({"recorded": True})
    assert why_not_steered(recorded) == ""
    assert "verl" in why_not_steered({"imported": {"trainer": "verl"}})
    evaluation = {"evaluation": {"who": "tiny"}}
    assert "is an evaluation" in why_not_steered(evaluation)
    assert obeyed_actions(evaluation) == ()
    assert "cannot send commands" in why_not_steered({"watched": {"trainer": "TRL"}})
