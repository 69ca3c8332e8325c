"""The figure of the page Evaluations: success with its interval, one row an evaluation. Pure."""

from __future__ import annotations

from typing import Any

from ..data.evaluations import APART, Group, Ranked
from .charts import figure_text
from .theme import ACCENT, TONES

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
