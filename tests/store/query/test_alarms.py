"""Alarm events folded into histories: order, standing, what was done."""

from __future__ import annotations

from alarm_events import alarm_event as event

from echoscope.store.query.alarms import attention, histories, open_alarms, raised_now
from echoscope.store.reader import CommandState
from echoscope.store.records import Command, CommandAck, CommandAction, CommandOutcome


def test_what_is_raised_last_is_open_and_notes_ask_for_nothing() -> None:
    events = [
        event("gone", 1, "critical"),
        event("note", 2, "info"),
        event("grew", 3),
        event("gone", 4, "critical", is_raised=False),
        event("late", 5, "critical"),
        event("grew", 6, "critical"),
    ]
    raised = raised_now(events)
    assert [(alarm.alarm_id, alarm.step) for alarm in raised] == [
        ("note", 2),
        ("grew", 6),
        ("late", 5),
    ]
    assert [alarm.alarm_id for alarm in open_alarms(events)] == ["grew", "late"]
    assert [alarm.alarm_id for alarm in sorted(raised, key=attention)] == ["grew", "late", "note"]


def test_open_alarms_come_first_then_the_serious_then_the_new() -> None:
    events = [
        event("gone", 1, "critical"),
        event("gone", 5, "critical", is_raised=False),
        event("old", 2),
        event("new", 7),
        event("worst", 3, "critical"),
    ]
    alarms = histories(events)
    assert [history.raised.alarm_id for history in alarms] == ["worst", "new", "old", "gone"]
    assert [history.cleared_step for history in alarms] == [None, None, None, 5]


def test_a_warning_that_becomes_critical_is_one_alarm() -> None:
    (history,) = histories([event("a", 2), event("a", 9, "critical")])
    assert (history.raised.step, history.latest.step, history.severity) == (2, 9, "critical")


def test_an_alarm_raised_again_is_open_again() -> None:
    (history,) = histories([event("a", 2), event("a", 4, is_raised=False), event("a", 8)])
    assert history.is_open


def test_a_clearing_without_a_raising_is_left_out() -> None:
    assert histories([event("a", 2, is_raised=False)]) == []


def test_what_it_did_by_itself_is_with_it() -> None:
    def state(command_id: str) -> CommandState:
        command = Command(
            command_id=command_id,
            run_id="r",
            issued_at=0.0,
            issued_by="alarm A",
            action=CommandAction.PAUSE,
        )
        ack = CommandAck(command_id=command_id, step=3, outcome=CommandOutcome.APPLIED)
        return CommandState(command=command, ack=ack, attempt=1)

    alarms = histories([event("a", 2), event("ab", 2)], [state("alarm-a-2"), state("x")])
    done = {history.raised.alarm_id: len(history.done) for history in alarms}
    assert done == {"a": 1, "ab": 0}
