"""A recorded run tells people of a collapse once, and goes on where they cannot be told."""

from __future__ import annotations

import csv
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from costs import HANG_S
from mailboxes import webhook

from echoscope.diagnostics.bench.harness import SMALL_RUNS
from echoscope.diagnostics.notify import notifier
from echoscope.diagnostics.notify.sending import sender
from echoscope.recorder.recorder import Recorder
from echoscope.store.reader import open_run
from echoscope.store.records import AlarmSeverity, AlarmState

HOOK = "webhook:ECHOSCOPE_TEST_HOOK"


def steps_of(recipe: str) -> Iterator[tuple[int, dict[str, float]]]:
    """The numbers of a training, step by step, as CollapseBench judges them."""
    with (SMALL_RUNS / recipe / "seed0.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield int(row.pop("step")), {key: float(value) for key, value in row.items() if value}


def record(recipe: str, path: Path, **notify: Any) -> list[str]:
    """Record the numbers of a training of `recipe`; what the recorder said."""
    messages: list[str] = []
    with Recorder(
        path, notify={"targets": [HOOK], **notify}, on_message=messages.append
    ) as recorder:
        for step, values in steps_of(recipe):
            recorder.step(step, values)
    assert recorder.num_lost == 0
    return messages


def raised(path: Path) -> list[int]:
    """The steps of the critical alarms."""
    return [
        alarm.step
        for alarm in open_run(path).alarms()
        if alarm.severity is AlarmSeverity.CRITICAL and alarm.state is AlarmState.RAISED
    ]


@pytest.mark.parametrize(
    ("recipe", "num_alarms"),
    [
        ("collapse-echo-trap", 2),
        ("collapse-entropy", 4),
        ("collapse-format", 6),
        ("collapse-template", 2),
    ],
)
def test_a_recipe_that_collapsed_is_one_message(
    recipe: str, num_alarms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook() as box:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        record(recipe, tmp_path / "run")
    (body,) = box.bodies
    steps = raised(tmp_path / "run")
    assert len(steps) == num_alarms
    assert body["step"] == steps[0]
    assert body["state"] in ("collapsing", "collapsed")
    assert body["evidence"]


def test_a_healthy_recipe_is_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as box:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", box.url)
        record("healthy-frozen-lake", tmp_path / "run")
    assert box.bodies == []


@contextmanager
def failing(kind: str) -> Iterator[str]:
    """The address of a webhook that does not work."""
    if kind == "refuses":
        with socket.socket() as taken:  # bound, and never listening
            taken.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{taken.getsockname()[1]}/secret"
    else:
        with webhook() as box:
            box.statuses = [500]
            if kind == "hangs":
                box.is_open.clear()
            yield box.url


WHY = {
    "refuses": "cannot be reached: ConnectError (4 attempts)",
    "answers 500": "answered 500: no [31m such <hook> (4 attempts)",
    "hangs": "cannot be reached: no answer in time (4 attempts)",
}


@pytest.mark.parametrize("kind", WHY)
def test_a_webhook_that_fails_costs_no_step_and_is_said(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeout_s = 0.2 if kind == "hangs" else HANG_S
    with failing(kind) as url:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", url)
        monkeypatch.setattr(notifier, "sender", partial(sender, timeout_s=timeout_s))
        messages = record("collapse-entropy", tmp_path / "run")
    assert f"could not tell {HOOK}: {WHY[kind]}" in messages
    assert open_run(tmp_path / "run").info().status == "finished"
    rows = open_run(tmp_path / "run").sql("SELECT DISTINCT step FROM metrics").to_pylist()
    assert len(rows) == len(list(steps_of("collapse-entropy")))


def test_a_run_ends_while_a_webhook_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "END_S", 0.05)
    with failing("hangs") as url:
        monkeypatch.setenv("ECHOSCOPE_TEST_HOOK", url)
        messages = record("collapse-entropy", tmp_path / "run")
    assert messages[-1] == f"a message to {HOOK} is not sent: the run has ended"
    assert open_run(tmp_path / "run").info().status == "finished"
