"""Alarm events folded into histories: order, standing, what was done."""

from __future__ import annotations

import numpy as np

from echoscope.dashboard.charts.alarm_timeline import timeline
from echoscope.dashboard.data.alarm_history import AlarmHistory, histories
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
from echoscope.store.steer.annotations import AlarmNote

NOW = 1_000.0


def event(
    alarm_id: str, step: int, severity: str = "warning", *, is_raised: bool = True, **more: object
) -> Alarm:
    known = {
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
    return Alarm(**(known | more))  # type: ignore[arg-type]


def test_open_alarms_come_first_then_the_serious_then_the_new() -> None:
    events = [
        event("gone", 1, "critical"),
        event("gone", 5, "critical", is_raised=False),
        event("old", 2),
        event("new", 7),
        event("worst", 3, "critical"),
    ]
    found = histories(events)
    assert [one.raised.alarm_id for one in found] == ["worst", "new", "old", "gone"]
    assert [one.cleared_step for one in found] == [None, None, None, 5]


def test_a_warning_that_becomes_critical_is_one_alarm() -> None:
    (one,) = histories([event("a", 2), event("a", 9, "critical")])
    assert (one.raised.step, one.latest.step, one.severity) == (2, 9, "critical")


def test_an_alarm_raised_again_is_open_again() -> None:
    (one,) = histories([event("a", 2), event("a", 4, is_raised=False), event("a", 8)])
    assert one.is_open


def test_a_clearing_without_a_raising_is_left_out() -> None:
    assert histories([event("a", 2, is_raised=False)]) == []


def test_people_s_notes_say_how_it_stands() -> None:
    def standing(note: AlarmNote, *, is_open: bool = True) -> str:
        cleared = None if is_open else 9
        raised = event("a", 2)
        return AlarmHistory(raised=raised, latest=raised, cleared_step=cleared, note=note).standing(
            NOW
        )

    seen = AlarmNote(acknowledged_by="kim", acknowledged_at=1.0)
    assert standing(AlarmNote()) == "open"
    assert standing(seen) == "acknowledged"
    assert standing(AlarmNote(snoozed_until=NOW + 1)) == "snoozed"
    assert standing(AlarmNote(snoozed_until=NOW - 1)) == "open"
    assert standing(seen, is_open=False) == "cleared"


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

    found = histories([event("a", 2), event("ab", 2)], [state("alarm-a-2"), state("x")])
    done = {one.raised.alarm_id: len(one.done) for one in found}
    assert done == {"a": 1, "ab": 0}


def test_the_timeline_reaches_from_onset_to_the_end() -> None:
    found = histories([event("a", 10, onset_step=6), event("b", 4), event("b", 8, is_raised=False)])
    before, bars = timeline(found, last_step=20).data
    assert list(before.base) == [4, 6]
    assert list(before.x) == [0, 4]
    assert list(bars.base) == [4, 10]
    assert np.allclose(bars.x, [4, 10])
