"""Figures of the pages Evaluations and Cure: success of several runs beside each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from echoscope.diagnostics.tools.curing import Standing
from echoscope.text.amounts import percent

from ..data.evaluations import APART, Group, Ranked
from .charts import figure_text
from .theme import ACCENT, AXIS_PX, LABEL_PX, SERIES, TITLE_PX, TITLE_ROW_PX, TONES

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


def cure_colors(labels: Sequence[str]) -> dict[str, str]:
    """Label -> its colour; the first one is the untreated run."""
    return dict(zip(labels, (TONES["gray"], *SERIES), strict=False))


def cure_figure(
    stands: Mapping[str, Standing], *, untreated: str, chosen: str, holds: float
) -> dict[str, Any]:
    """Success in percent over the steps since the checkpoint.

    Args:
        stands: label to how that run does, the untreated one first; labels may be foreign.
        untreated, chosen: labels: drawn dashed in grey, and wide.
        holds: the share from which on a treatment holds; NaN for none.
    """
    last = max(
        (max(stand.steps, default=0) for label, stand in stands.items() if label != untreated),
        default=0,
    )
    colors = cure_colors([*stands])
    traces, ends = [], []
    for label, stand in stands.items():
        # What the untreated run did long after the others ended would press them together.
        steps = [step for step in stand.steps if not last or step <= last]
        rates = [100 * rate if rate == rate else None for rate in stand.success[: len(steps)]]
        name = figure_text(label, width=60, limit=60)
        traces.append(
            {
                "type": "scatter",
                "x": steps,
                "y": rates,
                "mode": "lines+markers" if len(steps) < 40 else "lines",
                "name": name,
                "line": {
                    "color": colors[label],
                    "width": 4 if label == chosen else 2,
                    "dash": "dash" if label == untreated else "solid",
                },
                "hovertemplate": "step %{x}: %{y:.1f} %",
            }
        )
    title = {
        "text": "<b>Success on the fixed tasks</b>",
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "xshift": -AXIS_PX,
        "yshift": 10,
        "showarrow": False,
        "font": {"size": TITLE_PX},
    }
    level = 100 * holds
    if holds == holds:
        ends = [
            {
                "text": f"holds from {percent(holds)} on",
                "x": 1,
                "xref": "paper",
                "xanchor": "right",
                "y": level,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": LABEL_PX, "color": TONES["green"]},
            }
        ]
    border = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": level,
        "y1": level,
        "line": {"color": TONES["green"], "width": 1, "dash": "dot"},
    }
    layout = {
        "height": 320,
        "margin": {"l": AXIS_PX, "r": 14, "t": TITLE_ROW_PX + 8, "b": 44},
        "xaxis": {"title": {"text": "step", "standoff": 14}, "zeroline": False},
        "yaxis": {"range": [-2, 102], "ticksuffix": " %", "zeroline": False},
        "showlegend": False,
        "hovermode": "x unified",
        "annotations": [title, *ends],
        "shapes": [border] * bool(ends),
    }
    return {"data": traces, "layout": layout}
