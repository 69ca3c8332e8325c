"""A training run tells people: of its end, and of a collapse by one message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from listening import Listener
from mailboxes import webhook

from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.reader import open_run
from echoscope.store.records import AlarmSeverity, AlarmState

TARGET = "diagnostics.notify.targets=[webhook:ECHOSCOPE_TEST_HOOK]"
LINK = "diagnostics.notify.dashboard_url=http://127.0.0.1:8501"


def test_the_end_of_a_run(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook() as box:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        config = make_config(TARGET, LINK, "diagnostics.notify.at_end=true", "steps=1")
        assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    (body,) = box.bodies
    assert (body["run"], body["occasion"]) == ("run", "end")
    assert body["title"].startswith("Echoscope: run: finished, ")
    assert body["link"] == "http://127.0.0.1:8501/diagnosis?run=run"


def test_a_run_whose_people_cannot_be_told_trains_and_says_so(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener()
    with webhook() as box:
        box.statuses = [403]
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        config = make_config(TARGET, "diagnostics.notify.at_end=true", "steps=1")
        assert start(config, tmp_path / "run", listener) == "finished"
    assert [text for text in listener.messages if text.startswith("could not tell webhook")]


SOONER = (
    "loss.entropy_coef=1.5",
    "steps=12",
    "eval.every=3",
    "envs.eval.0.groups=48",
    "diagnostics.information.every=0",
)
"""The recipe collapses after some 30 steps. Fifteen times its bonus does the same within ten."""


@pytest.mark.slow
def test_a_collapse_recipe_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    with webhook() as box:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        config = load_config("collapse-entropy", overrides=[TARGET, LINK, *SOONER])
        start(config, path, SilentEvents())
    raised = [
        alarm
        for alarm in open_run(path).alarms()
        if alarm.severity is AlarmSeverity.CRITICAL and alarm.state is AlarmState.RAISED
    ]
    assert len(raised) > 1
    (body,) = box.bodies
    assert body["state"] in ("collapsing", "collapsed")
    assert body["step"] == min(alarm.step for alarm in raised)
    assert body["evidence"]
    assert body["link"].endswith("/diagnosis?run=run")
