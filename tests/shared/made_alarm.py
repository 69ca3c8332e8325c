"""Alarms for tests: a test says what it is about, and the rest has plain values."""

from __future__ import annotations

from typing import Any

from echoscope.store.records import Alarm, AlarmSeverity, AlarmState


def make_alarm(**fields: Any) -> Alarm:
    """A warning that is raised at step 1; `fields` replace single values."""
    plain: dict[str, Any] = {
        "alarm_id": "a",
        "rule": "ECHO_TRAP",
        "severity": AlarmSeverity.WARNING,
        "state": AlarmState.RAISED,
        "step": 1,
        "onset_step": None,
        "metric": "m",
        "value": 0.0,
        "baseline": None,
        "threshold": 0.5,
        "window": 1,
        "message": "it fell",
    }
    return Alarm(**(plain | fields))
