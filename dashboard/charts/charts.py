"""Line charts over a run: curves and marks in, a plotly Figure out. Pure: no store, no widgets.

axis = step_axis(steps, "tokens")
figure = line_chart([curve], axis, marks, LineOptions(smooth=0.6), title="Policy entropy")

All curves of a chart share one axis, so they have one unit.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import POINTS, SHARE
from echoscope.store.records import FloatArray64

from ..data.curves import Axis, Curve, Zoom, downsample, full_range, smoothed
from ..escaping import visible
from . import theme
from .marks import MARK_AXIS, Mark, Trace, mark_traces, scatter

HEIGHT = 246
"""Pixels."""
_MARKED_BELOW = 60
"""A curve with fewer points than this shows each of them."""
_FEW_STEPS = 8
"""Up to which plotly would put ticks between steps."""
_BAND_OPACITY = 0.16
_LEGEND_ROW = 20
_NARROWEST = 270
"""Pixels between the edges of a chart on a telephone."""
_HOVER_WIDTH = 36
"""Characters a line of what hovering shows, so that it fits beside the cursor."""
_LEAST_NATS = 1e-4
"""Divergences below it are rounding errors: a chart does not blow them up to its height."""
_NOTHING = "No value was measured."
_LINE = "rgba(128,128,128,0.45)"


def figure_text(text: str, *, width: int = _HOVER_WIDTH, limit: int = 400) -> str:
    """Foreign text for a figure: its few HTML tags, links and templates taken out of action.

    What is unseen is named in brackets, lines are broken at `width` characters, and what is longer
    than `limit` is cut.
    """
    label = visible(text[: limit + 1].replace("\n", " ").replace("\t", " "), None)
    if len(text) > limit:
        label = label[:limit] + "..."
    lines = textwrap.wrap(label, width) or [""]
    safe = [x.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for x in lines]
    return "<br>".join(line.replace("%{", "% {").replace("$", "&#36;") for line in safe)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """How a chart is drawn."""

    smooth: float = 0.0
    """Weight of the moving average, 0 to 0.99; the raw curve stays visible behind it."""
    log_y: bool = False
    max_points: int = 1_200
    height: int = HEIGHT
    zoom: Zoom | None = None
    """The part of the horizontal axis to show; None for all of it."""
    onset: tuple[int, int] | None = None
    """First and last step at which the change that the verdict speaks of may have begun."""
    has_legend: bool = True
    """False where one legend stands above several charts."""


def line_chart(
    curves: Sequence[Curve],
    axis: Axis,
    marks: Sequence[Mark] = (),
    options: LineOptions | None = None,
    **words: str,
) -> go.Figure:
    """What `line_spec` describes, checked by plotly, which takes a while."""
    return go.Figure(line_spec(curves, axis, marks, options, **words))


def line_spec(
    curves: Sequence[Curve],
    axis: Axis,
    marks: Sequence[Mark] = (),
    options: LineOptions | None = None,
    *,
    title: str = "",
    help: str = "",
) -> dict[str, Any]:
    """Curves over one axis with their intervals, gaps and marks: `data` and `layout` of a figure.

    All texts may be foreign.
    """
    options = options or LineOptions()
    drawn = [curve for curve in curves if curve.has_values]
    named = drawn if options.has_legend and _needs_legend(drawn) else []
    traces = [trace for curve in drawn for trace in _curve_traces(curve, axis, options)]
    layout = _layout(axis, options) | _legend(named) | {"yaxis": _y_axis(drawn, axis, options)}
    if axis.kind == "step" and not options.zoom:
        layout["xaxis"] |= _whole_steps(drawn)
    notes = []
    if title:
        heading = f"<b>{figure_text(title, width=200, limit=120)}</b>{_unit_words(drawn)}"
        keys = ", ".join(curve.key for curve in drawn)
        about = figure_text(f"{help} [{keys}]" if keys else help)
        notes.append(_title(heading, about, num_rows=_legend_rows(named)))
    if drawn:
        traces += mark_traces(marks, axis.at, figure_text)
    else:
        notes.append(_nothing())
        # A shaded stretch would stand anywhere: there is no axis.
        layout |= {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "shapes": []}
    return {"data": traces, "layout": layout | {"annotations": notes}}


def _curve_traces(curve: Curve, axis: Axis, options: LineOptions) -> list[Trace]:
    if curve.is_sparse:
        return [_points(curve, axis, options)]
    smoothed_values = smoothed(curve.values, options.smooth)
    is_smoothed = options.smooth > 0
    traces = []
    if curve.low is not None and curve.high is not None:
        traces.append(_band(curve, (curve.low, curve.high), axis, options))
    name = figure_text(curve.name, width=200, limit=80)
    if is_smoothed:
        raw = downsample(curve.values, options.max_points)
        traces.append(
            scatter(
                x=axis.at(curve.steps[raw]),
                y=_drawable(curve.values[raw], options),
                mode="lines",
                opacity=theme.RAW_OPACITY,
                line={"color": curve.color, "width": 1},
                hoverinfo="skip",
                showlegend=False,
            )
        )
    kept_points = downsample(smoothed_values, options.max_points)
    traces.append(
        scatter(
            **_told(curve, kept_points, axis, name, is_smoothed=is_smoothed),
            y=_drawable(smoothed_values[kept_points], options),
            mode="lines+markers" if len(kept_points) <= _MARKED_BELOW else "lines",
            marker={"size": 4, "color": curve.color},
            line={"color": curve.color, "width": 2},
            connectgaps=False,
        )
    )
    return traces


def _points(curve: Curve, axis: Axis, options: LineOptions) -> Trace:
    """A sparse curve: a dot with its interval where it was measured, and nothing in between."""
    finite_points = np.flatnonzero(np.isfinite(curve.values))
    name = figure_text(curve.name, width=200, limit=80)
    whiskers: dict[str, Any] = {}
    if curve.low is not None and curve.high is not None:
        ends = {
            "array": curve.high[finite_points] - curve.values[finite_points],
            "arrayminus": curve.values[finite_points] - curve.low[finite_points],
        }
        style = {"color": curve.color, "thickness": 1, "width": 2}
        whiskers = {"error_y": {"type": "data", "symmetric": False, **ends, **style}}
    return scatter(
        **_told(curve, finite_points, axis, name, is_smoothed=False),
        y=_drawable(curve.values[finite_points], options),
        mode="markers",
        marker={"size": 6, "color": curve.color},
        line={"color": curve.color},
        **whiskers,
    )


def _drawable(values: FloatArray64, options: LineOptions) -> FloatArray64:
    """On a log axis what is not positive is a gap, and so is what is not finite anywhere."""
    good = np.isfinite(values) & ((values > 0) | (not options.log_y))
    return np.where(good, values, np.nan)


def _told(
    curve: Curve, points: NDArray[np.intp], axis: Axis, name: str, *, is_smoothed: bool
) -> dict[str, Any]:
    """Points and what hovering says of each; `customdata` (N, 4): step, raw value, interval."""
    nothing = np.full(len(points), np.nan)
    ends = [nothing if end is None else end[points] for end in (curve.low, curve.high)]
    steps = curve.steps[points]
    return {
        "x": axis.at(steps),
        "customdata": np.column_stack([steps.astype(np.float64), curve.values[points], *ends]),
        "text": axis.clock(steps),
        "hovertemplate": _hover_template(curve, name, is_smoothed=is_smoothed),
        "name": name,
    }


def _hover_template(curve: Curve, name: str, *, is_smoothed: bool) -> str:
    """One short line a curve: the box covers little of its chart. The title's help has the keys."""
    style, unit = (".1%", "") if curve.unit == SHARE else (".4~g", f" {figure_text(curve.unit)}")
    text = f"{name} <b>%{{y:{style}}}</b>{unit}"
    if curve.low is not None:
        text += f" (%{{customdata[2]:{style}}} to %{{customdata[3]:{style}}})"
    if is_smoothed:
        text += f", raw %{{customdata[1]:{style}}}"
    if curve.is_sparse:  # the nearest point may be another step's than the others'
        text += ", step %{customdata[0]:d}"
    return f"{text}, %{{text}}<extra></extra>"


def _band(
    curve: Curve, interval: tuple[FloatArray64, FloatArray64], axis: Axis, options: LineOptions
) -> Trace:
    """The interval as filled polygons, one for each stretch without a gap."""
    edges = np.union1d(*(downsample(end, options.max_points // 2) for end in interval))
    low, high = (_drawable(end[edges], options) for end in interval)
    x = axis.at(curve.steps[edges])
    good = np.isfinite(low) & np.isfinite(high)
    xs, ys = [np.empty(0)], [np.empty(0)]
    ends = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]]).astype(np.int8)))
    for start, stop in ends.reshape(-1, 2).tolist():
        part = slice(start, stop)
        xs += [x[part], x[part][::-1], np.array([np.nan])]
        ys += [low[part], high[part][::-1], np.array([np.nan])]
    return scatter(
        x=np.concatenate(xs),
        y=np.concatenate(ys),
        fill="toself",
        fillcolor=curve.color,
        opacity=_BAND_OPACITY,
        mode="lines",
        line={"color": curve.color, "width": 0},
        hoverinfo="skip",
        showlegend=False,
        name=f"{figure_text(curve.name, width=200, limit=80)}, 95 % interval",
    )


def _y_axis(curves: Sequence[Curve], axis: Axis, options: LineOptions) -> dict[str, Any]:
    # A difference of two shares stands on the axis of shares.
    units = {SHARE if curve.unit == POINTS else curve.unit for curve in curves if curve.unit}
    is_share = units == {SHARE} and not options.log_y
    values = _in_sight(curves, axis, options)
    finite = values[np.isfinite(values)]
    largest = np.abs(finite).max(initial=0.0)
    out: dict[str, Any] = {
        "type": "log" if options.log_y else "linear",
        "gridcolor": theme.GRID,
        "zeroline": False,
        "automargin": True,
        "tickmode": "auto",
        "nticks": 6,
        "title": {"text": ""},
        "exponentformat": "none" if 1e-3 <= largest < 1e5 else "power",
        **({"tickformat": ".0%"} if is_share else {}),
    }
    limits = full_range(finite, log_y=options.log_y) if options.zoom else None
    if limits is None and is_share and len(finite) and float(np.ptp(finite)) == 0:
        limits = (-0.05, 1.05)  # plotly would go up to 200 %
    if limits is None and not options.log_y and largest < _LEAST_NATS and _is_divergence(curves):
        limits = (-_LEAST_NATS, _LEAST_NATS)
    return out if limits is None else {**out, "range": limits}


def _is_divergence(curves: Sequence[Curve]) -> bool:
    return bool(curves) and all(curve.key.endswith("_kl") for curve in curves)


def _in_sight(curves: Sequence[Curve], axis: Axis, options: LineOptions) -> FloatArray64:
    """All values and ends of intervals that lie within the zoom."""
    parts = [np.empty(0)]
    for curve in curves:
        low, high = options.zoom or (-np.inf, np.inf)
        position = axis.at(curve.steps)
        inside = (position >= low) & (position <= high)
        parts += [
            part[inside] for part in (curve.values, curve.low, curve.high) if part is not None
        ]
    return np.concatenate(parts)


def _layout(axis: Axis, options: LineOptions) -> dict[str, Any]:
    signs = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return {
        "shapes": []
        if options.onset is None
        else [theme.onset_shape(*axis.at(np.array(options.onset)).tolist())],
        "height": options.height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "modebar": {"bgcolor": "rgba(0,0,0,0)"},
        "hoverlabel": {"font": {"size": 11}},
        MARK_AXIS.replace("y", "yaxis"): signs,
        "xaxis": {
            "title": {"text": axis.title, "standoff": 4},
            "gridcolor": theme.GRID,
            "linecolor": _LINE,
            "zeroline": False,
            "showspikes": True,
            "spikemode": "across",
            "spikesnap": "cursor",
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": _LINE,
            "automargin": True,
            **({"range": list(options.zoom)} if options.zoom else {}),
        },
    }


def _whole_steps(drawn: Sequence[Curve]) -> dict[str, Any]:
    """Ticks at whole steps where there are few of them."""
    steps = np.concatenate([np.empty(0, np.int64), *(curve.steps for curve in drawn)])
    is_short = len(steps) > 0 and int(np.ptp(steps)) <= _FEW_STEPS
    return {"tick0": 0, "dtick": 1} if is_short else {}


def _needs_legend(curves: Sequence[Curve]) -> bool:
    """A single curve needs one where it is not called as its metric is: it is a part of a chart."""
    return len(curves) > 1 or any(curve.name != metric(curve.key).name for curve in curves)


def _legend(curves: Sequence[Curve]) -> dict[str, Any]:
    """A legend between title and curves, and room for both."""
    return {
        "margin": {"l": 8, "r": 8, "t": 36 + _LEGEND_ROW * _legend_rows(curves), "b": 8},
        "showlegend": bool(curves),
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.0,
            "yanchor": "bottom",
            "itemwidth": 30,
            "font": {"size": 10.5},
            "bgcolor": "rgba(0,0,0,0)",
            "title": {"text": ""},
        },
    }


def _legend_rows(curves: Sequence[Curve]) -> int:
    """How many rows plotly breaks a legend into in the narrowest chart."""
    widths = [48 + 6 * min(len(curve.name), 80) for curve in curves]
    if sum(widths) <= _NARROWEST:
        return min(len(widths), 1)
    return math.ceil(len(widths) / max(1, _NARROWEST // max(widths)))


def _title(heading: str, about: str, *, num_rows: int) -> dict[str, Any]:
    """At the left above the legend; hovering explains it."""
    return {
        "text": heading,
        "hovertext": about,
        "captureevents": True,
        "x": 0,
        "y": 1,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 6 + _LEGEND_ROW * num_rows,
        "showarrow": False,
        "font": {"size": 14},
    }


def _nothing() -> dict[str, Any]:
    """In the middle of an empty chart."""
    return {
        "text": _NOTHING,
        "x": 0.5,
        "y": 0.5,
        "xref": "paper",
        "yref": "paper",
        "showarrow": False,
        "font": {"color": theme.COMMAND_MARK, "size": 13},
    }


def _unit_words(curves: Sequence[Curve]) -> str:
    """The unit behind a title: `nats per token`."""
    units = dict.fromkeys(curve.unit for curve in curves if curve.unit not in ("", SHARE, POINTS))
    unit_text = figure_text(" / ".join(units), limit=80)
    return f'  <span style="font-size:11px">{unit_text}</span>' if units else ""
