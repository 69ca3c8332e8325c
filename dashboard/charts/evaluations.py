"""Figures of the pages Evaluations and Cure: success of several runs beside each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from echoscope.diagnostics.tools.curing import Standing

from ..data.evaluations import APART, Group, Ranked
from .charts import figure_text
from .theme import ACCENT, SERIES, TONES

MAX_DRAWN = 12
"""Evaluations of a group that are drawn: the best."""
_ROW = 26
"""Pixels."""


def success_figure(group: Group) -> dict[str, Any]:
    """A dot with whiskers for each evaluation of a group, the best at the top.

    Open grey dots are lower than the best; filled ones cannot be told apart from it.
    """
    drawn = group.rows[:MAX_DRAWN]
    rates = [row.here.table.success for row in drawn]
    colors = [TONES["gray"] if row.standing == APART else ACCENT for row in drawn]
    trace = {
        "type": "scatter",
        "x": [100 * rate.value if rate.value == rate.value else None for rate in rates],
        "y": list(range(len(drawn))),
        "mode": "markers",
        "marker": {
            "size": 10,
            "color": colors,
            "line": {"width": 2, "color": colors},
            "symbol": ["circle-open" if row.standing == APART else "circle" for row in drawn],
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [100 * _finite(rate.high - rate.value) for rate in rates],
            "arrayminus": [100 * _finite(rate.value - rate.low) for rate in rates],
            "color": TONES["gray"],
            "thickness": 1.5,
            "width": 4,
        },
        "text": [figure_text(f"{row.played.name}: {row.standing}") for row in drawn],
        "hovertemplate": "%{text}<br>success %{x:.1f} %<extra></extra>",
        "showlegend": False,
    }
    layout = {
        "height": _ROW * len(drawn) + 56,
        "margin": {"l": 10, "r": 14, "t": 6, "b": 34},
        "xaxis": {"range": [-2, 102], "ticksuffix": " %", "zeroline": False},
        "yaxis": {
            "range": [len(drawn) - 0.4, -0.6],
            "tickvals": list(range(len(drawn))),
            "ticktext": [_label(n, row) for n, row in enumerate(drawn, 1)],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
        },
    }
    return {"data": [trace], "layout": layout}


def _label(rank: int, row: Ranked) -> str:
    """Place and name. Of a long name its ends are shown: the last letters tell runs apart."""
    name = row.played.run_id
    short = name if len(name) <= 24 else f"{name[:10]}...{name[-11:]}"
    return figure_text(f"{rank}  {short}", width=40)


def _finite(value: float) -> float:
    return value if value == value else 0.0


def cure_figure(stands: Mapping[str, Standing], *, untreated: str, chosen: str) -> dict[str, Any]:
    """Success in percent over the steps since the checkpoint.

    Args:
        stands: label to how that run does; labels may be foreign.
        untreated, chosen: labels: drawn dashed in grey, and wide.
    """
    traces = []
    for number, (label, stand) in enumerate(stands.items()):
        is_untreated = label == untreated
        color = TONES["gray"] if is_untreated else SERIES[(number - 1) % len(SERIES)]
        traces.append(
            {
                "type": "scatter",
                "x": list(stand.steps),
                "y": [100 * rate if rate == rate else None for rate in stand.success],
                "mode": "lines+markers" if len(stand.steps) < 40 else "lines",
                "name": figure_text(label, width=60, limit=60),
                "line": {
                    "color": color,
                    "width": 4 if label == chosen else 2,
                    "dash": "dash" if is_untreated else "solid",
                },
                "hovertemplate": "step %{x}: %{y:.1f} %",
            }
        )
    layout = {
        "height": 360,
        "margin": {"l": 50, "r": 14, "t": 10, "b": 40},
        "xaxis": {"title": {"text": "step"}, "zeroline": False},
        "yaxis": {"range": [-2, 102], "ticksuffix": " %", "zeroline": False},
        "legend": {"orientation": "h", "y": -0.22},
        "hovermode": "x unified",
    }
    return {"data": traces, "layout": layout}
