"""Figures of own panels: a metric or a chart of several runs, or the answer to a query. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from echoscope.store.records import FloatArray64

from ..data.curves import Axis, Curve
from . import theme
from .charts import LineOptions, figure_text, line_spec
from .curated import Chart

MAX_CURVES = 24
_DASHES = ("solid", "dot", "dash", "dashdot")
"""Columns of a query that several runs answered, whose colour says the run."""
_FENCE = 3.0
"""Spreads of the middle half beyond which a value is an outlier (Tukey's outer fence)."""


def panel_spec(
    curves: Sequence[Curve], axis: Axis, options: LineOptions, *, title: str, help: str, clips: bool
) -> dict[str, Any]:
    """Curves of several runs on one axis, on which their steps are positions already."""
    spec = line_spec(curves[:MAX_CURVES], axis, options=options, title=title, help=help)
    return clipped(spec, curves, log_y=options.log_y) if clips else spec


def clipped(spec: dict[str, Any], curves: Sequence[Curve], *, log_y: bool) -> dict[str, Any]:
    """The figure with a scale that leaves outliers out, which its title counts."""
    values = np.concatenate([np.empty(0), *(curve.values for curve in curves)])
    limits, num_outside = without_outliers(values, log_y=log_y)
    if limits is None:
        return spec
    layout = {**spec["layout"]}
    layout["yaxis"] = {**layout["yaxis"], "range": list(limits)}
    heading, *rest = layout["annotations"]
    words = f'  <span style="font-size:11px">{num_outside} outside</span>'
    layout["annotations"] = [{**heading, "text": heading["text"] + words}, *rest]
    return {**spec, "layout": layout}


def without_outliers(
    values: FloatArray64, *, log_y: bool = False
) -> tuple[tuple[float, float] | None, int]:
    """A range that holds all values but outliers, in logarithms of ten where `log_y`.

    Returns:
        The range, None where nothing lies outside of it, and how many values do.
    """
    finite = values[np.isfinite(values)]
    if log_y:
        finite = np.log10(finite[finite > 0])
    if len(finite) < 5:
        return None, 0
    low, high = np.quantile(finite, (0.25, 0.75))
    fence = _FENCE * (high - low)
    inside = finite[(finite >= low - fence) & (finite <= high + fence)]
    num_outside = len(finite) - len(inside)
    if not num_outside or inside.min() == inside.max():
        return None, 0
    around = 0.05 * float(np.ptp(inside))
    return (float(inside.min()) - around, float(inside.max()) + around), num_outside


def placed(drawn: Curve, axis: Axis, *, color: str, name: str) -> Curve:
    """A curve of one of several runs: on the common axis, in the colour of its run."""
    positions: Any = axis.at(drawn.steps)
    return replace(drawn, steps=positions, color=color, name=name)


def answer_spec(
    answers: Mapping[str, pd.DataFrame], *, height: int, log_y: bool, title: str
) -> dict[str, Any] | None:
    """Lines over the first column of an answer, if all columns are numbers; None otherwise.

    Args:
        answers: run -> the answer of the same query.
    """
    columns = [list(frame.columns) for frame in answers.values() if len(frame)]
    if not columns or len(columns[0]) < 2 or any(other != columns[0] for other in columns):
        return None
    frames = {run: frame for run, frame in answers.items() if len(frame)}
    if not all(
        pd.api.types.is_numeric_dtype(frame[name]) for frame in frames.values() for name in frame
    ):
        return None
    first, *others = columns[0]
    is_of_one = len(frames) == 1
    data = []
    for at_run, (run, frame) in enumerate(frames.items()):
        for at_column, name in enumerate(others):
            words = name if is_of_one else run if len(others) == 1 else f"{run}: {name}"
            label = figure_text(words, width=200, limit=80)
            color = theme.SERIES[(at_column if is_of_one else at_run) % len(theme.SERIES)]
            dash = "solid" if is_of_one else _DASHES[at_column % len(_DASHES)]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(frame) <= 60 else "lines",
                    "x": frame[first].to_numpy(np.float64, na_value=np.nan),
                    "y": frame[name].to_numpy(np.float64, na_value=np.nan),
                    "name": label,
                    "line": {"color": color, "width": 2, "dash": dash},
                    "marker": {"size": 4, "color": color},
                    "hovertemplate": f"{label} <b>%{{y:.4~g}}</b><extra></extra>",
                }
            )
    data = data[:MAX_CURVES]
    has_legend = is_of_one and len(data) > 1  # of several runs the page has one
    heading = {
        "text": f"<b>{figure_text(title, width=200, limit=120)}</b>",
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 6 + 20 * has_legend,
        "showarrow": False,
        "font": {"size": 14},
    }
    layout = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 36 + 20 * has_legend, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "xaxis": {
            "title": {"text": figure_text(first, limit=60), "standoff": 4},
            "automargin": True,
        },
        "yaxis": {"type": "log" if log_y else "linear", "automargin": True},
        "showlegend": has_legend,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 10.5}},
        "annotations": [heading],
    }
    return {"data": data, "layout": layout}


def titled(chart: Chart, title: str) -> Chart:
    """The chart under another title."""
    return replace(chart, title=title)
