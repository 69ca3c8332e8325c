"""The alarms of a run as a history: each with its beginning, its end, and what was done. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from echoscope.diagnostics.judge.rules.alarm_texts import RULE_TEXTS
from echoscope.store.reader import CommandState
from echoscope.store.records import (
    SEVERITY_RANK,
    Alarm,
    AlarmSeverity,
    AlarmState,
    severity_course,
    severity_words,
)

from ..charts.marks import command_words, outcome_words
from ..words import NONE

MAX_ROWS = 100


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
                done=tuple(each for each in commands if each.command.command_id.startswith(start)),
            )
        )
    return sorted(
        alarms,
        key=lambda alarm: (not alarm.is_open, -SEVERITY_RANK[alarm.severity], -alarm.raised.step),
    )


def alarm_rows(alarms: Sequence[AlarmHistory]) -> list[dict[str, object]]:
    """Alarms as rows of a table: column -> hostile text or a number.

    A rule of somebody else's is called by its own name.
    """
    titles = {rule: text.title for rule, text in RULE_TEXTS.items()}
    return [
        {
            "alarm": titles.get(alarm.latest.rule, alarm.latest.rule),
            "severity": "cleared, was " * (not alarm.is_open) + severity_words(alarm.course),
            "raised": alarm.raised.step,
            "began": NONE if alarm.raised.onset_step is None else alarm.raised.onset_step,
            "cleared": "open" if alarm.is_open else alarm.cleared_step,
            "what happened": f"{alarm.latest.message} {alarm.ending}".strip(),
            "done by the alarm": "; ".join(
                f"{command_words(state)} ({outcome_words(state)})" for state in alarm.done
            )
            or NONE,
            "rule": alarm.latest.rule,
        }
        for alarm in alarms[:MAX_ROWS]
    ]
