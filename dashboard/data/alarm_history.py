"""The alarms of a run as a history: each with its beginning, its end, and what was done. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from echoscope.store.reader import CommandState
from echoscope.store.records import SEVERITY_RANK, Alarm, AlarmState
from echoscope.store.steer.annotations import AlarmNote


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmHistory:
    """One alarm from its raising to its clearing."""

    raised: Alarm
    """As it was raised first."""
    latest: Alarm
    """As it was raised last: a warning may have become critical."""
    cleared_step: int | None
    ending: str = ""
    """Why it was cleared, in words."""
    done: tuple[CommandState, ...] = ()
    """What it did by itself."""
    note: AlarmNote = field(default_factory=AlarmNote)

    @property
    def is_open(self) -> bool:
        return self.cleared_step is None

    @property
    def severity(self) -> str:
        return self.latest.severity.value

    @property
    def severity_words(self) -> str:
        """How severe it is, or was: `critical`, `cleared, was critical`."""
        return self.severity if self.is_open else f"cleared, was {self.severity}"

    def standing(self, now: float) -> str:
        """`open`, `acknowledged`, `snoozed` or `cleared`."""
        if not self.is_open:
            return "cleared"
        if self.note.is_snoozed(now):
            return "snoozed"
        return "acknowledged" if self.note.is_acknowledged else "open"


def histories(
    events: Iterable[Alarm],
    commands: Sequence[CommandState] = (),
    notes: Mapping[str, AlarmNote] | None = None,
) -> list[AlarmHistory]:
    """Alarms in the order of attention: open ones first, then by severity, the newest first."""
    by_alarm: dict[str, list[Alarm]] = {}
    for event in sorted(events, key=lambda one: one.step):
        by_alarm.setdefault(event.alarm_id, []).append(event)
    found = []
    for alarm_id, some in by_alarm.items():
        raised = [one for one in some if one.state is AlarmState.RAISED]
        if not raised:
            continue
        last = some[-1]
        found.append(
            AlarmHistory(
                raised=raised[0],
                latest=raised[-1],
                cleared_step=last.step if last.state is AlarmState.CLEARED else None,
                ending=last.message if last.state is AlarmState.CLEARED else "",
                done=tuple(
                    state
                    for state in commands
                    if state.command.command_id.startswith(f"alarm-{alarm_id}-")
                ),
                note=(notes or {}).get(alarm_id, AlarmNote()),
            )
        )
    return sorted(
        found, key=lambda one: (not one.is_open, -SEVERITY_RANK[one.severity], -one.raised.step)
    )
