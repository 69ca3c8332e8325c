"""A stored run is judged again by the settings that its own alarms had, step by step."""

from __future__ import annotations

from typing import Any

from echoscope.diagnostics.config import AlarmConfig
from echoscope.diagnostics.judge.lineage import settings_over
from echoscope.store.steer.settings import LiveSettings

START = {"diagnostics": {"alarms": {"warmup_steps": 5, "thresholds": {"spread": 0.5}}}}


def changed(step: int, **settings: Any) -> LiveSettings:
    """The settings of a run that a trainer changed at a step."""
    return LiveSettings(initial={}, changes=((step, settings),))


def test_a_change_holds_from_the_step_that_answered_it() -> None:
    both = {"spread": 0.5, "entropy_up": 1.0}
    found = settings_over(START, changed(10, **{"diagnostics.alarms.thresholds": both}))
    assert found.at(9) == AlarmConfig(warmup_steps=5, thresholds={"spread": 0.5})
    assert found.at(10) == AlarmConfig(warmup_steps=5, thresholds=both)
    assert found.at(1_000) == found.at(10)


def test_a_change_of_something_else_changes_nothing() -> None:
    never = settings_over(START, LiveSettings(initial={}))
    assert settings_over(START, changed(3, **{"optim.lr": 0.1})).at(9) == never.at(9)


def test_a_run_of_another_program_has_the_defaults() -> None:
    for config in ({}, {"diagnostics": None}, {"diagnostics": {"alarms": 3}}):
        assert settings_over(config, LiveSettings(initial={})).at(0) == AlarmConfig()
