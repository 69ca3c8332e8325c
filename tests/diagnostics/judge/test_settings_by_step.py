"""A stored run is judged again by the settings that its own alarms had, step by step."""

from __future__ import annotations

from typing import Any

from run_infos import run_info

from echoscope.diagnostics.config import AlarmConfig
from echoscope.diagnostics.judge.settings_by_step import AlarmSettings
from echoscope.diagnostics.judge.settings_by_step import settings_over as alarm_settings_over
from echoscope.store.reader import CommandState
from echoscope.store.records import Command, CommandAck, CommandAction, CommandOutcome
from echoscope.store.steer.settings import settings_over as live_settings_over

START = {"diagnostics": {"alarms": {"warmup_steps": 5, "thresholds": {"spread": 0.5}}}}


def settings_over(config: dict[str, Any], states: list[CommandState]) -> AlarmSettings:
    """Of a run with this configuration that was steered like this."""
    info = run_info(config=config)
    return alarm_settings_over(config, live_settings_over(info, states))


def said(
    step: int | None, outcome: CommandOutcome = CommandOutcome.APPLIED, **settings: Any
) -> CommandState:
    """A SET of alarm settings, answered at a step; None while it waits."""
    command = Command(
        command_id="c",
        run_id="r",
        issued_at=0.0,
        issued_by="kim",
        action=CommandAction.SET,
        settings={f"diagnostics.alarms.{key}": value for key, value in settings.items()},
    )
    ack = None if step is None else CommandAck(command_id="c", step=step, outcome=outcome)
    return CommandState(command=command, ack=ack)


def test_a_change_holds_from_the_step_that_answered_it_and_adds_to_what_was_set() -> None:
    found = settings_over(START, [said(10, thresholds={"entropy_up": 1.0})])
    assert found.at(9) == AlarmConfig(warmup_steps=5, thresholds={"spread": 0.5})
    both = {"spread": 0.5, "entropy_up": 1.0}
    assert found.at(10) == AlarmConfig(warmup_steps=5, thresholds=both)
    assert found.at(1_000) == found.at(10)


def test_what_waits_was_refused_or_is_about_something_else_changes_nothing() -> None:
    other = said(3)
    states = [
        said(None, thresholds={"entropy_up": 1.0}),
        said(4, CommandOutcome.REJECTED, thresholds={"entropy_up": 1.0}),
        other,
    ]
    assert settings_over(START, states).at(9) == settings_over(START, []).at(9)


def test_a_run_of_another_program_has_the_defaults() -> None:
    for config in ({}, {"diagnostics": None}, {"diagnostics": {"alarms": 3}}):
        assert settings_over(config, []).at(0) == AlarmConfig()
