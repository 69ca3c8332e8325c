"""The alarms of a run as a history: each with its beginning, its end, and what was done. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import plotly.graph_objects as go

from echoscope.store.annotations import AlarmNote
from echoscope.store.reader import CommandState
from echoscope.store.records import Alarm, AlarmState

from ..charts.charts import figure_text
from ..charts.theme import SEVERITIES

RANK: Mapping[str, int] = {"critical": 0, "warning": 1, "info": 2}


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
        found, key=lambda one: (not one.is_open, RANK.get(one.severity, 3), -one.raised.step)
    )


def timeline(found: Sequence[AlarmHistory], last_step: int) -> go.Figure:
    """A bar for every alarm from the onset (thin) over the raising to the clearing."""
    rows = sorted(found, key=lambda one: (one.raised.step, one.raised.rule))
    figure = go.Figure()
    for severity, color in SEVERITIES.items():
        part = [(row, one) for row, one in enumerate(rows) if one.severity == severity]
        if not part:
            continue
        places = [row for row, _ in part]
        onsets = [one.raised.onset_step for _, one in part]
        starts = [one.raised.step for _, one in part]
        ends = [last_step if one.is_open else one.cleared_step for _, one in part]
        begun = [s if o is None else min(o, s) for o, s in zip(onsets, starts, strict=True)]
        figure.add_bar(
            y=places,
            base=begun,
            x=[s - b for s, b in zip(starts, begun, strict=True)],
            orientation="h",
            marker_color=color,
            opacity=0.3,
            width=0.25,
            hoverinfo="skip",
            showlegend=False,
        )
        figure.add_bar(
            y=places,
            base=starts,
            x=[max((e or s) - s, 0.5) for s, e in zip(starts, ends, strict=True)],
            orientation="h",
            marker_color=color,
            width=0.6,
            name=severity,
            customdata=[figure_text(one.latest.message) for _, one in part],
            hovertemplate="raised after step %{base}<br>%{customdata}<extra></extra>",
        )
    figure.update_layout(
        height=110 + 26 * len(rows),
        margin={"l": 10, "r": 10, "t": 30, "b": 10},
        barmode="overlay",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        xaxis={"title": "step", "range": [0, max(last_step, 1) * 1.02]},
        yaxis={
            "tickvals": list(range(len(rows))),
            "ticktext": [figure_text(one.raised.rule).replace("_", " ").lower() for one in rows],
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
            "automargin": True,
        },
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
    )
    return figure
