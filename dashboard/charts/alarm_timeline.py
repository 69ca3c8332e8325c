"""The alarms of a run as bars over its steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from ..data.alarm_history import AlarmHistory
from .charts import figure_text
from .theme import SEVERITIES


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
