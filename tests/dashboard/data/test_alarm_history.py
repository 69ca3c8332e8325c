"""Alarms as rows of a table, in words."""

from __future__ import annotations

from alarm_events import alarm_event as event

from echoscope.dashboard.data.alarm_history import alarm_rows
from echoscope.store.query.alarms import histories


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


def test_a_row_says_since_when_and_how_it_ended() -> None:
    events = [event("a", 4, onset_step=2), event("a", 8, is_raised=False, message="it is back")]
    (row,) = alarm_rows(histories(events))
    assert (row["raised"], row["began"], row["cleared"]) == (4, 2, 8)
    assert row["severity"] == "cleared, was warning"
    assert row["what happened"] == "it fell it is back"
