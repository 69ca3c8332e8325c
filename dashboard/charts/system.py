"""Figures of the page System: bars of what a step's seconds were spent on. Pure."""

from __future__ import annotations

from typing import Any

from ..data.progress import REST, Shares
from . import theme
from .charts import figure_text

_HEIGHT = 132
_LEAST_WORDS = 0.06
"""Of the bar: a part that is smaller is told by hovering alone."""


def phases_spec(shares: Shares) -> dict[str, Any]:
    """One bar: the phases of a step, in order."""
    data = [
        _part(name, seconds, shares.total, color)
        for (name, seconds), color in zip(shares.seconds.items(), theme.SERIES, strict=False)
    ]
    for trace in data:
        if trace["name"] == REST:
            trace["marker"] = {"color": theme.COMMAND_MARK}
    title = f"Phases of a step: {shares.total:.3g} s"
    return {"data": data, "layout": _layout(title, shares, is_stacked=True)}


def waits_spec(shares: Shares) -> dict[str, Any]:
    """A bar for each who waits: its share of the collection."""
    names = list(shares.seconds)
    values = [100 * shares.seconds[name] / shares.total for name in names]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": values,
        "text": [f"{value:.3g} %" for value in values],
        "marker": {"color": theme.ACCENT},
        "hovertemplate": "%{y}: %{x:.3g} %<extra></extra>",
    }
    title = f"Waiting, of {shares.total:.3g} s of collection"
    return {"data": [bars], "layout": _layout(title, shares, is_stacked=False)}


def _part(name: str, seconds: float, total: float, color: str) -> dict[str, Any]:
    share = seconds / total
    return {
        "type": "bar",
        "orientation": "h",
        "x": [100 * share],
        "y": [""],
        "name": name,
        "marker": {"color": color},
        "text": [f"{share:.0%}" if share >= _LEAST_WORDS else ""],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": "white"},
        "hovertemplate": f"{figure_text(name)}: {seconds:.3g} s, {share:.1%}<extra></extra>",
    }


def _layout(title: str, shares: Shares, *, is_stacked: bool) -> dict[str, Any]:
    steps = f"mean of steps {shares.first_step} to {shares.last_step}"
    heading = {
        "text": f'<b>{title}</b>  <span style="font-size:11px">{steps}</span>',
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 26 if is_stacked else 6,
        "showarrow": False,
        "font": {"size": 14},
    }
    return {
        "height": _HEIGHT,
        "barmode": "stack",
        "margin": {"l": 8, "r": 8, "t": 58 if is_stacked else 34, "b": 8},
        "xaxis": {"range": [0, 100], "ticksuffix": " %", "automargin": True, "nticks": 6},
        "yaxis": {"automargin": True, "ticks": ""},
        "showlegend": is_stacked,
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1,
            "yanchor": "bottom",
            "font": {"size": 11},
        },
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "annotations": [heading],
    }
