"""Alarm events folded into histories: order, standing, what was done."""

from __future__ import annotations

from echoscope.dashboard.data.alarm_history import alarm_rows
from echoscope.store.query.alarms import histories
from echoscope.store.reader import CommandState
from echoscope.store.records import (
    Alarm,
    AlarmSeverity,
    AlarmState,
    Command,
    CommandAck,
    CommandAction,
    CommandOutcome,
)


def event(
    alarm_id: str, step: int, severity: str = "warning", *, is_raised: bool = True, **more: object
) -> Alarm:
    fields = {
        "alarm_id": alarm_id,
        "rule": alarm_id.upper(),
        "severity": AlarmSeverity(severity),
        "state": AlarmState.RAISED if is_raised else AlarmState.CLEARED,
        "step": step,
        "onset_step": None,
        "metric": "m",
        "value": 0.0,
        "baseline": None,
        "threshold": 1.0,
        "window": 1,
        "message": "it fell",
    }
    return Alarm(**(fields | more))  # type: ignore[arg-type]


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


def test_a_row_says_when_a_warning_became_critical() -> None:
    """ "critical, raised 20" was said of a warning that became critical at step 34."""
    events = [event("a", 20), event("a", 34, "critical")]
    (row,) = alarm_rows(histories(events))
    assert (row["raised"], row["severity"]) == (20, "warning at step 20, critical since step 34")
    events += [event("a", 60), event("a", 70, is_raised=False)]
    (row,) = alarm_rows(histories(events))
    assert row["severity"] == (
        "cleared, was warning at step 20, critical at step 34, warning since step 60"
    )
    (row,) = alarm_rows(histories([event("a", 34, "critical")]))
    assert (row["raised"], row["severity"]) == (34, "critical")


def test_an_alarm_raised_again_is_open_again() -> None:
    (history,) = histories([event("a", 2), event("a", 4, is_raised=False), event("a", 8)])
    assert history.is_open


def test_a_row_says_since_when_and_how_it_ended() -> None:
    events = [event("a", 4, onset_step=2), event("a", 8, is_raised=False, message="it is back")]
    (row,) = alarm_rows(histories(events))
    assert (row["raised"], row["began"], row["cleared"]) == (4, 2, 8)
    assert row["severity"] == "cleared, was warning"
    assert row["what happened"] == "it fell it is back"


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
