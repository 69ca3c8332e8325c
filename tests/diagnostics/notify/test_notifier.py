"""One collapse is one message, and nobody who is told keeps the trainer waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from costs import HANG_S
from mailboxes import Mailbox, webhook

from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.config import NotifyConfig
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.diagnostics.notify import notifier as notifier_file
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.store.records import AlarmSeverity, AlarmState

HOOK = "webhook:HOOK"


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    monkeypatch.setattr(notifier_file, "WAITS_S", (0.01, 0.01))
    with webhook() as served:
        monkeypatch.setenv("HOOK", served.url)
        yield served


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(
    kind: str, box: Mailbox, *, step_s: float = 1.0, status: str = "finished", **settings: Any
) -> tuple[list[str], int]:
    """Judge a synthetic run and tell of it; what could not be told, and the alarms raised."""
    news: list[str] = []
    clock, diagnosis, num_raised = Clock(), Diagnosis(run_id="run-1"), 0
    targets = settings.pop("targets", (HOOK,))
    notifier = Notifier(
        NotifyConfig(targets=targets, **settings),
        run="run-1",
        on_message=news.append,
        clock=clock,
    )
    for step, values in make(kind, 0).table.rows():
        clock.now += step_s
        alarms = diagnosis.observe(step, values)
        num_raised += sum(
            alarm.state is AlarmState.RAISED and alarm.severity is AlarmSeverity.CRITICAL
            for alarm in alarms
        )
        notifier.observe(alarms, diagnosis.verdict)
    notifier.close(status, diagnosis.verdict)
    return news, num_raised


def test_a_collapse_of_many_alarms_is_one_message(box: Mailbox) -> None:
    news, num_raised = watch("entropy_explosion", box)
    assert num_raised > 1
    assert len(box.bodies) == 1
    assert news == []
    assert box.bodies[0]["occasion"] == "alarm"
    assert box.bodies[0]["evidence"]


def test_what_is_raised_later_is_told_together(box: Mailbox) -> None:
    """One step is an hour here: every step may have its message."""
    _, num_raised = watch("entropy_explosion", box, step_s=3600)
    assert 1 < len(box.bodies) <= num_raised
    assert sum(len(body["alarms"]) for body in box.bodies) == num_raised


def test_a_healthy_run_tells_nobody(box: Mailbox) -> None:
    watch("healthy", box)
    assert box.bodies == []


def test_the_end_is_told_on_request(box: Mailbox) -> None:
    watch("healthy", box, at_end=True, status="stopped")
    (body,) = box.bodies
    assert body["occasion"] == "end"
    assert body["title"].startswith("Echoscope: run-1: stopped, healthy at step ")


def test_warnings_are_told_on_request(box: Mailbox) -> None:
    watch("entropy_explosion", box, severity="warning")
    assert box.bodies[0]["step"] < make("entropy_explosion", 0).table.steps[-1]
    first = box.bodies[0]["alarms"][0]
    assert first.startswith("warning ")


def test_a_failure_is_tried_again(box: Mailbox) -> None:
    box.statuses = [500, 500, 200]
    news, _ = watch("entropy_explosion", box)
    assert len(box.bodies) == 3
    assert news == []


@pytest.mark.long
def test_a_message_that_cannot_be_sent_is_said(box: Mailbox) -> None:
    box.statuses = [500]
    news, _ = watch("entropy_explosion", box)
    assert news == ["could not tell webhook:HOOK: answered 500: no [31m such <hook> (3 attempts)"]


def test_a_target_that_hangs_holds_up_nobody(box: Mailbox, tmp_path: Any) -> None:
    """Neither the caller, who returns at once, nor the other target."""
    told = tmp_path / "told"
    command = f'command:cat > "{told}"'
    box.is_open.clear()
    news: list[str] = []
    diagnosis = Diagnosis(run_id="run-1")
    config = NotifyConfig(targets=(HOOK, command))
    notifier = Notifier(config, run="run-1", on_message=news.append)
    for step, values in make("entropy_explosion", 0).table.rows():
        notifier.observe(diagnosis.observe(step, values), diagnosis.verdict)
    assert box.bodies == []  # the whole run has been judged meanwhile
    deadline = time.monotonic() + HANG_S
    while not told.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told.exists()
    assert box.bodies == []  # it still hangs
    box.is_open.set()
    notifier.close("finished", diagnosis.verdict)
    assert len(box.bodies) == 1


def test_without_targets_nothing_is_judged_for_a_message() -> None:
    def never() -> Any:
        raise AssertionError

    diagnosis = Diagnosis()
    notifier = Notifier(NotifyConfig(), run="r", on_message=print)
    for step, values in make("entropy_explosion", 0).table.rows():
        notifier.observe(diagnosis.observe(step, values), never)
    notifier.close("finished", never)
