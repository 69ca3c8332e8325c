"""Line charts over a run: curves and marks in, a plotly Figure out. Pure: no store, no widgets.

axis = step_axis(steps, "tokens")
figure = line_chart([curve], axis, marks, LineOptions(smooth=0.6), title="Policy entropy")
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

from ..data.curves import (
    Axis,
    Curve,
    Zoom,
    clipped_range,
    downsample,
    full_range,
    smoothed,
    steady_fence,
)
from ..escaping import visible
from . import theme
from .marks import MARK_AXIS, Mark, Trace, mark_traces, scatter

_MARKED_BELOW = 60
"""A curve with fewer points than this shows each of them."""
_FEW_STEPS = 8
"""Up to which plotly would put ticks between steps."""
_BAND_OPACITY = 0.16
_LEGEND_ROW = 20
EACH_STEP = "each step"
"""Name of the faint curve behind the level that a verdict reads."""
_NARROWEST = 270
"""Pixels between the axes of a chart on a telephone."""
_MARK_LAYOUT = MARK_AXIS.replace("y", "yaxis")
_HOVER_WIDTH = 36
"""Characters a line of what hovering shows, so that it fits beside the cursor."""
_LEAST_NATS = 1e-4
"""Divergences below it are rounding errors: a chart does not blow them up to its height."""
_ARROWS = "An arrow marks values outside the axis; double-click to show them."
_GRID = "rgba(128,128,128,0.18)"
_LINE = "rgba(128,128,128,0.45)"


def figure_text(text: str, *, width: int = _HOVER_WIDTH, limit: int = 400) -> str:
    """Foreign text for a figure: its few HTML tags, links and templates taken out of action.

    What is unseen is named in brackets, lines are broken at `width` characters, and what is longer
    than `limit` is cut.
    """
    words = visible(text[: limit + 1].replace("\n", " ").replace("\t", " "), None)
    if len(text) > limit:
        words = words[:limit] + "..."
    lines = textwrap.wrap(words, width) or [""]
    safe = [x.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for x in lines]
    return "<br>".join(line.replace("%{", "% {").replace("$", "&#36;") for line in safe)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """How a chart is drawn."""

    smooth: float = 0.0
    """Weight of the moving average, 0 to 0.99; the raw curve stays visible behind it."""
    log_y: bool = False
    clip: bool = False
    """Outliers do not set the range of the y axis."""
    is_steady: bool = False
    """Early outliers do not set it either; an arrow at the edge stands for them."""
    max_points: int = 1_200
    height: int = 246
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
    missing: str = "",
) -> dict[str, Any]:
    """Curves over one axis with their intervals, gaps and marks: `data` and `layout` of a figure.

    `missing` is said instead where no curve has a value. All texts may be foreign.
    """
    options = options or LineOptions()
    drawn = [one for one in curves if np.isfinite(one.values).any()]
    has_left = any(not one.is_right for one in drawn)
    left = [one for one in drawn if not (one.is_right and has_left)]
    right = [one for one in drawn if one.is_right and has_left]
    traces = [
        trace
        for one in drawn
        for trace in _curve_traces(one, axis, options, yaxis="y2" if one in right else "y")
    ]
    for trace in [trace for trace in traces if trace.get("name") == EACH_STEP][1:]:
        trace["showlegend"] = False
    axes = _y_axes(left, right, axis, options)
    for side, yaxis in ((left, "y"), (right, "y2")):
        limits = _steady_range(side, axis, options)
        if limits is not None:
            axes[yaxis.replace("y", "yaxis")]["range"] = limits
            beyond = [_beyond(one, axis, limits, yaxis) for one in side]
            traces += beyond
            help = f"{help} {_ARROWS}"
    named = drawn if options.has_legend else []
    layout = _layout(axis, options) | axes | _legend(named)
    if axis.kind == "step" and not options.zoom:
        layout["xaxis"] |= _whole_steps(drawn)
    notes = []
    if title:
        words = f"<b>{figure_text(title, width=200, limit=120)}</b>{_unit_words(left, right)}"
        keys = ", ".join(one.key for one in drawn)
        about = figure_text(f"{help} [{keys}]" if keys else help)
        notes.append(_title(words, about, num_rows=_legend_rows(named)))
    if drawn:
        traces += mark_traces(marks, axis.at, figure_text)
    else:
        notes.append(_nothing(missing or "Nothing measured yet."))
        # A shaded stretch would stand anywhere: there is no axis.
        layout |= {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "shapes": []}
    return {"data": traces, "layout": layout | {"annotations": notes}}


def _curve_traces(one: Curve, axis: Axis, options: LineOptions, *, yaxis: str) -> list[Trace]:
    if one.is_sparse:
        return [_points(one, axis, options, yaxis)]
    level = one.level if options.smooth == 0 else None
    shown = smoothed(one.values, options.smooth) if level is None else level
    is_smoothed = level is not None or options.smooth > 0
    traces = []
    if one.low is not None and one.high is not None:
        traces.append(_band(one, (one.low, one.high), axis, options, yaxis))
    name = figure_text(one.name, width=200, limit=80)
    if is_smoothed:
        raw = downsample(one.values, options.max_points)
        traces.append(
            scatter(
                x=axis.at(one.steps[raw]),
                y=_drawable(one.values[raw], options),
                name=EACH_STEP,
                mode="lines",
                opacity=theme.RAW_OPACITY,
                line={"color": one.color, "width": 1},
                hoverinfo="skip",
                showlegend=level is not None,
                legendgroup=EACH_STEP,
                legendrank=2000,  # the last of its legend
                yaxis=yaxis,
            )
        )
    at = downsample(shown, options.max_points)
    few = len(at) <= _MARKED_BELOW
    traces.append(
        scatter(
            **_told(one, at, axis, name, is_smoothed=is_smoothed),
            y=_drawable(shown[at], options),
            mode="lines+markers" if few else "lines",
            marker={"size": 4, "color": one.color},
            line={"color": one.color, "width": 2, "dash": "dot" if yaxis == "y2" else one.dash},
            connectgaps=False,
            yaxis=yaxis,
        )
    )
    return traces


def _points(one: Curve, axis: Axis, options: LineOptions, yaxis: str) -> Trace:
    """A sparse curve: a dot with its interval where it was measured, and nothing in between."""
    at = np.flatnonzero(np.isfinite(one.values))
    name = figure_text(one.name, width=200, limit=80)
    whiskers: dict[str, Any] = {}
    if one.low is not None and one.high is not None:
        ends = {"array": one.high[at] - one.values[at], "arrayminus": one.values[at] - one.low[at]}
        style = {"color": one.color, "thickness": 1, "width": 2}
        whiskers = {"error_y": {"type": "data", "symmetric": False, **ends, **style}}
    return scatter(
        **_told(one, at, axis, name, is_smoothed=False),
        y=_drawable(one.values[at], options),
        mode="markers",
        marker={"size": 6, "color": one.color},
        line={"color": one.color},
        yaxis=yaxis,
        **whiskers,
    )


def _drawable(values: FloatArray64, options: LineOptions) -> FloatArray64:
    """On a log axis what is not positive is a gap, and so is what is not finite anywhere."""
    good = np.isfinite(values) & ((values > 0) | (not options.log_y))
    return np.where(good, values, np.nan)


def _told(
    one: Curve, at: NDArray[np.intp], axis: Axis, name: str, *, is_smoothed: bool
) -> dict[str, Any]:
    """Where points of a curve stand, and what hovering says of each.

    `customdata` is (N, 4): step, value before smoothing, interval.
    """
    nothing = np.full(len(at), np.nan)
    ends = [nothing if end is None else end[at] for end in (one.low, one.high)]
    steps = one.steps[at]
    return {
        "x": axis.at(steps),
        "customdata": np.column_stack([steps.astype(np.float64), one.values[at], *ends]),
        "text": axis.clock(steps),
        "hovertemplate": _hover_template(one, name, is_smoothed=is_smoothed),
        "name": name,
    }


def _hover_template(one: Curve, name: str, *, is_smoothed: bool) -> str:
    """One short line a curve: the box covers little of its chart. The title's help has the keys."""
    style, unit = (".1%", "") if one.unit == SHARE else (".4~g", f" {figure_text(one.unit)}")
    text = f"{name} <b>%{{y:{style}}}</b>{unit}"
    if one.low is not None:
        text += f" (%{{customdata[2]:{style}}} to %{{customdata[3]:{style}}})"
    if is_smoothed:
        text += f", raw %{{customdata[1]:{style}}}"
    if one.is_sparse:  # the nearest point may be another step's than the others'
        text += ", step %{customdata[0]:d}"
    return f"{text}, %{{text}}<extra></extra>"


def _band(
    one: Curve,
    interval: tuple[FloatArray64, FloatArray64],
    axis: Axis,
    options: LineOptions,
    yaxis: str,
) -> Trace:
    """The interval as filled polygons, one for each stretch without a gap."""
    thinned = [downsample(end, options.max_points // 2) for end in interval]
    edges = np.union1d(*thinned)
    low, high = (_drawable(end[edges], options) for end in interval)
    x = axis.at(one.steps[edges])
    good = np.isfinite(low) & np.isfinite(high)
    xs: list[FloatArray64] = []
    ys: list[FloatArray64] = []
    ends = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]]).astype(np.int8)))
    for start, stop in ends.reshape(-1, 2).tolist():
        part = slice(start, stop)
        xs += [x[part], x[part][::-1], np.array([np.nan])]
        ys += [low[part], high[part][::-1], np.array([np.nan])]
    empty = np.empty(0)
    return scatter(
        x=np.concatenate(xs) if xs else empty,
        y=np.concatenate(ys) if ys else empty,
        fill="toself",
        fillcolor=one.color,
        opacity=_BAND_OPACITY,
        mode="lines",
        line={"color": one.color, "width": 0},
        hoverinfo="skip",
        showlegend=False,
        yaxis=yaxis,
        name=f"{figure_text(one.name, width=200, limit=80)}, 95 % interval",
    )


def _y_axis(curves: Sequence[Curve], axis: Axis, options: LineOptions) -> dict[str, Any]:
    units = list(dict.fromkeys(_axis_unit(one) for one in curves if one.unit))
    out: dict[str, Any] = {
        "type": "log" if options.log_y else "linear",
        "gridcolor": _GRID,
        "zeroline": False,
        "automargin": True,
        "tickmode": "auto",
        "nticks": 6,
        "title": {"text": ""},
    }
    if units == [SHARE] and not options.log_y:
        out["tickformat"] = ".0%"
    known = _in_sight(curves, axis, options)
    largest = np.abs(known[np.isfinite(known)]).max(initial=0.0)
    out["exponentformat"] = "none" if 1e-3 <= largest < 1e5 else "power"
    if options.clip:
        limits = clipped_range(known, log_y=options.log_y)
    else:
        limits = full_range(known, log_y=options.log_y) if options.zoom else None
    steady = known[np.isfinite(known)]
    is_flat = len(steady) > 0 and float(np.ptp(steady)) == 0
    if limits is None and units == [SHARE] and not options.log_y and is_flat:
        limits = (-0.05, 1.05)  # plotly would go up to 200 %
    if limits is None and not options.log_y and largest < _LEAST_NATS and _is_divergence(curves):
        limits = (-_LEAST_NATS, _LEAST_NATS)
    if limits is not None:
        out["range"] = limits
    return out


def _steady_range(
    curves: Sequence[Curve], axis: Axis, options: LineOptions
) -> tuple[float, float] | None:
    """The range of an axis that leaves early outliers out; None where nothing is left out."""
    if not options.is_steady or options.zoom or options.clip or options.log_y or not curves:
        return None
    steps = np.concatenate([one.steps for one in curves])
    values = np.concatenate([one.values for one in curves])
    fence = steady_fence(values[np.argsort(steps, kind="stable")])
    if fence is None:
        return None
    known = _in_sight(curves, axis, options)
    return full_range(known[(known >= fence[0]) & (known <= fence[1])], log_y=False)


def _beyond(one: Curve, axis: Axis, limits: tuple[float, float], yaxis: str) -> Trace:
    """What lies above and below the axis, in words at the edge where its outermost value stands."""
    low, high = limits
    form = "{:.0%}" if one.unit == SHARE else "{:.3g}"
    inset = 0.04 * (high - low)
    found = []
    for is_out, outermost, arrow, edge in (
        (one.values > high, np.nanargmax, "\u2191", high - inset),
        (one.values < low, np.nanargmin, "\u2193", low + inset),
    ):
        number = int(is_out.sum())
        if number:
            place = int(outermost(one.values))
            value = form.format(one.values[place])
            words = value if number == 1 else f"{number} values, outermost {value}"
            found.append((one.steps[place], edge, f"{arrow} {words}"))
    return scatter(
        x=axis.at([step for step, _, _ in found]),
        y=np.array([edge for _, edge, _ in found]),
        text=[words for _, _, words in found],
        mode="text",
        textposition="middle right",
        textfont={"color": one.color, "size": 11},
        hoverinfo="skip",
        showlegend=False,
        yaxis=yaxis,
    )


def _axis_unit(one: Curve) -> str:
    """A difference of two shares stands on the axis of shares."""
    return SHARE if one.unit == POINTS else one.unit


def _is_divergence(curves: Sequence[Curve]) -> bool:
    return bool(curves) and all(one.key.endswith("_kl") for one in curves)


def _in_sight(curves: Sequence[Curve], axis: Axis, options: LineOptions) -> FloatArray64:
    """All values and ends of intervals that lie within the zoom."""
    parts = [np.empty(0)]
    for one in curves:
        low, high = options.zoom or (-np.inf, np.inf)
        at = axis.at(one.steps)
        inside = (at >= low) & (at <= high)
        parts += [part[inside] for part in (one.values, one.low, one.high) if part is not None]
    return np.concatenate(parts)


def _y_axes(
    left: Sequence[Curve], right: Sequence[Curve], axis: Axis, options: LineOptions
) -> dict[str, Any]:
    marks = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    out: dict[str, Any] = {"yaxis": _y_axis(left, axis, options), _MARK_LAYOUT: marks}
    if right:
        beside = {"overlaying": "y", "side": "right", "showgrid": False}
        out["yaxis2"] = _y_axis(right, axis, options) | beside
        for name, side in (("yaxis", left), ("yaxis2", right)):
            if len(side) == 1:  # its numbers have the curve's colour
                out[name]["tickfont"] = {"color": side[0].color}
    return out


def _onset(axis: Axis, steps: tuple[int, int]) -> dict[str, Any]:
    """A shaded stretch behind the curves, at least a line wide."""
    low, high = axis.at(np.array(steps)).tolist()
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": low,
        "x1": high,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "fillcolor": theme.SEVERITIES["critical"],
        "opacity": 0.14,
        "line": {"width": 1, "color": theme.SEVERITIES["critical"]},
        "label": {"text": "began", "textposition": "bottom left", "font": {"size": 10}},
    }


def _layout(axis: Axis, options: LineOptions) -> dict[str, Any]:
    return {
        "shapes": [] if options.onset is None else [_onset(axis, options.onset)],
        "height": options.height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "modebar": {"bgcolor": "rgba(0,0,0,0)"},
        "hoverlabel": {"font": {"size": 11}},
        "xaxis": {
            "title": {"text": axis.title, "standoff": 4},
            "gridcolor": _GRID,
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
    steps = np.concatenate([np.empty(0, np.int64), *(one.steps for one in drawn)])
    is_short = len(steps) > 0 and int(np.ptp(steps)) <= _FEW_STEPS
    return {"tick0": 0, "dtick": 1} if is_short else {}


def _legend(curves: Sequence[Curve]) -> dict[str, Any]:
    """A legend between title and curves where there are several, and room for both."""
    return {
        "margin": {"l": 8, "r": 8, "t": 36 + _LEGEND_ROW * _legend_rows(curves), "b": 8},
        "showlegend": _has_legend(curves),
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


def _has_legend(curves: Sequence[Curve]) -> bool:
    """A single curve needs one where it is not called as its metric is: it is a part of a chart."""
    return len(curves) > 1 or any(one.name != metric(one.key).name for one in curves)


def _legend_rows(curves: Sequence[Curve]) -> int:
    """How many rows a legend takes in the narrowest chart: plotly breaks it, and tells nobody.

    Where not all names fit in one row, each gets the room of the widest, unless some are a group of
    their own: then a row takes as many as fit.
    """
    if not _has_legend(curves):
        return 0
    is_grouped = any(one.level is not None for one in curves)
    names = [one.name for one in curves] + ([EACH_STEP] if is_grouped else [])
    widths = [48 + 6 * min(len(name), 80) for name in names]
    if sum(widths) <= _NARROWEST:
        return 1
    if not is_grouped:
        return math.ceil(len(widths) / max(1, _NARROWEST // max(widths)))
    rows, used = 1, 0
    for width in widths:
        if used and used + width > _NARROWEST:
            rows, used = rows + 1, 0
        used += width
    return rows


def _title(words: str, about: str, *, num_rows: int) -> dict[str, Any]:
    """At the left above the legend; hovering explains it."""
    return {
        "text": words,
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


def _nothing(words: str) -> dict[str, Any]:
    """In the middle of an empty chart."""
    return {
        "text": figure_text(words),
        "x": 0.5,
        "y": 0.5,
        "xref": "paper",
        "yref": "paper",
        "showarrow": False,
        "font": {"color": theme.COMMAND_MARK, "size": 13},
    }


def _unit_words(left: Sequence[Curve], right: Sequence[Curve]) -> str:
    """The units behind a title: `nats per token`, or `share, right: reward`."""
    sides = [
        list(dict.fromkeys(one.unit for one in side if one.unit not in ("", SHARE, POINTS)))
        for side in (left, right)
    ]
    here, there = (" / ".join(units) for units in sides)
    words = (
        here
        if here == there
        else ", ".join(filter(None, (here, f"right: {there}" if there else "")))
    )
    return f'  <span style="font-size:11px">{figure_text(words, limit=80)}</span>' if words else ""
