"""Events of alarms, by the fields that a test is about."""

from __future__ import annotations

from echoscope.store.records import Alarm, AlarmSeverity, AlarmState


def alarm_event(
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
