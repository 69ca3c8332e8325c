"""The alarms of a run, from their events: which are open, which comes first, how each one went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ..records import SEVERITY_RANK, Alarm, AlarmSeverity, AlarmState

if TYPE_CHECKING:
    from ..reader import CommandState


def raised_now(events: Iterable[Alarm]) -> list[Alarm]:
    """The alarms whose last event raised them, each as it was raised last.

    Args:
        events: in the order of the steps.
    """
    last = {event.alarm_id: event for event in events}
    return [event for event in last.values() if event.state is AlarmState.RAISED]


def open_alarms(events: Iterable[Alarm]) -> list[Alarm]:
    """`raised_now` without notes: one (severity info, such as `CONVERGED`) asks for nothing."""
    return [alarm for alarm in raised_now(events) if alarm.severity is not AlarmSeverity.INFO]


def attention(alarm: Alarm) -> tuple[int, int]:
    """Sorts alarms by who needs a person first: the most serious, then the newest."""
    return -SEVERITY_RANK[alarm.severity], -alarm.step


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmHistory:
    """One alarm from its raising to its clearing."""

    raised: Alarm
    """As it was raised first."""
    latest: Alarm
    """As it was raised last: a warning may have become critical."""
    course: tuple[tuple[AlarmSeverity, int], ...]
    """How serious it was, each with the step since which."""
    cleared_step: int | None
    ending: str
    """Why it was cleared, in words; empty while it is open."""
    done: tuple[CommandState, ...]
    """What it did by itself."""

    @property
    def is_open(self) -> bool:
        return self.cleared_step is None

    @property
    def severity(self) -> str:
        return self.latest.severity.value


def histories(events: Iterable[Alarm], commands: Sequence[CommandState] = ()) -> list[AlarmHistory]:
    """Alarms in the order of attention: open ones first, then by severity, the newest first."""
    by_alarm: dict[str, list[Alarm]] = {}
    for event in sorted(events, key=lambda event: event.step):
        by_alarm.setdefault(event.alarm_id, []).append(event)
    alarms = []
    for alarm_id, course in by_alarm.items():
        raised = [event for event in course if event.state is AlarmState.RAISED]
        if not raised:
            continue
        is_cleared = course[-1].state is AlarmState.CLEARED
        start = f"alarm-{alarm_id}-"
        alarms.append(
            AlarmHistory(
                raised=raised[0],
                latest=raised[-1],
                course=tuple(severity_course(raised)),
                cleared_step=course[-1].step if is_cleared else None,
                ending=course[-1].message if is_cleared else "",
                done=tuple(
                    alarm for alarm in commands if alarm.command.command_id.startswith(start)
                ),
            )
        )
    return sorted(
        alarms,
        key=lambda alarm: (not alarm.is_open, -SEVERITY_RANK[alarm.severity], -alarm.raised.step),
    )


def severity_course(events: Iterable[Alarm]) -> list[tuple[AlarmSeverity, int]]:
    """How serious one alarm was, each with the step since which: a warning may become critical.

    Args:
        events: those of one alarm.
    """
    raised = [event for event in events if event.state is AlarmState.RAISED]
    raised.sort(key=lambda event: event.step)
    by_severity = groupby(raised, key=lambda event: event.severity)
    return [(severity, next(of_severity).step) for severity, of_severity in by_severity]


def severity_words(course: Sequence[tuple[AlarmSeverity, int]]) -> str:
    """How serious an alarm was, in words; its one severity where it never changed.

    >>> severity_words([(AlarmSeverity.WARNING, 20), (AlarmSeverity.CRITICAL, 34)])
    'warning at step 20, critical since step 34'
    >>> severity_words([(AlarmSeverity.CRITICAL, 34)])
    'critical'
    """
    *earlier, (severity, since) = course
    if not earlier:
        return severity.value
    parts = [f"{before.value} at step {step}" for before, step in earlier]
    return ", ".join([*parts, f"{severity.value} since step {since}"])
