"""Line charts over a run: curves and marks in, data and layout out. Pure: no store, no widgets.

axis = step_axis(steps, "tokens")
figure = line_spec([curve], axis, marks, LineOptions(smooth=0.6), title="Policy entropy")

All curves of a chart share one axis, so they have one unit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import POINTS, SHARE
from echoscope.store.records import FloatArray64

from ..data.curves import Axis, Curve, Zoom, full_range, smoothed, thinned, usual_range
from ..words import value_words
from . import theme
from .marks import MARK_AXIS, Mark, mark_traces
from .parts import CLEAR, SILENT, Trace, figure_label, figure_text, note, scatter, whiskers

HEIGHT = theme.CHART_HEIGHT
_MARKED_BELOW = 60
"""A curve with fewer points than this shows each of them."""
_FEW_STEPS = 8
"""Up to which plotly would put ticks between steps."""
_BAND_OPACITY = 0.16
_LEGEND_ROW = 20
_NARROWEST = 270
"""Pixels between the edges of a chart on a telephone."""
_MAX_LABELLED, _MAX_LABEL = 4, 14
"""Curves, and characters of a name, up to which curves are named at their ends."""
_LABEL_HEIGHT, _LABEL_CHAR = 13, 6.6
"""Pixels."""
MAX_POINTS = 600
"""Of a curve in sight that are drawn one by one; a longer one is drawn as half as many means and
the range around each."""
_MAX_OUTLIERS = 20
"""Of one curve, that are marked at the edge of a chart."""
_LEAST_NATS = 1e-4
"""Divergences below it are rounding errors: a chart does not blow them up to its height."""
NOTHING = "No value was measured."


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """How a chart is drawn."""

    smooth: float = 0.0
    """Weight of the moving average, 0 to 0.99; the raw curve stays visible behind it."""
    log_y: bool = False
    height: int = HEIGHT
    zoom: Zoom | None = None
    """The part of the horizontal axis to show; None for all of it."""
    onset: tuple[int, int] | None = None
    """First and last step at which the change that the verdict speaks of may have begun."""
    has_legend: bool = True
    """False where one legend stands above several charts."""
    is_crowded: bool = False
    """Curves have no dots, and hovering names one of them alone, with its step."""
    nothing: str = NOTHING
    """What an empty chart says."""


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
    is_labelled = 0 < len(named) <= _MAX_LABELLED and max(len(c.name) for c in named) <= _MAX_LABEL
    listed = [] if is_labelled else named
    courses = [_course(curve, axis, options) for curve in drawn]
    limits = _limits(drawn, axis, options)
    traces = [trace for course in courses for trace in _traces(course, axis, options)]
    layout = _layout(axis, options) | _legend(listed, named if is_labelled else [])
    layout["yaxis"] = _y_axis(drawn, axis, options, limits)
    if axis.kind == "step" and not options.zoom:
        layout["xaxis"] |= _whole_steps(drawn)
    notes = []
    if axis.kind == "step" and drawn:  # in the corner below the numbers, where it costs no row
        shift = (-theme.SPACE_PX, -theme.SPACE_PX)
        name = note(axis.title, (0, 0), "right top", paper="xy", shift=shift, color=theme.QUIET)
        notes.append(name)
    if title:
        heading = f"<b>{figure_text(title, width=200, limit=120)}</b>{_unit_words(drawn)}"
        keys = ", ".join(curve.key for curve in drawn)
        about = figure_text(f"{help} [{keys}]" if keys else help)
        notes.insert(0, _title(heading, about, num_rows=_legend_rows(listed)))
        layout["meta"] = {"legend": {"row": _LEGEND_ROW, "wide": _legend_widths(listed)}}
    if is_labelled:
        notes += _end_labels(courses, limits, layout, options)
    if drawn:
        if limits is not None and not options.log_y:
            traces += [t for course in courses for t in _outliers(course, limits, axis)]
        traces += mark_traces(marks, axis.at)
    else:
        notes.append(
            note(options.nothing, (0.5, 0.5), paper="xy", size=13, color=theme.COMMAND_MARK)
        )
        # A shaded stretch would stand anywhere: there is no axis.
        layout |= {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "shapes": []}
    return {"data": traces, "layout": layout | {"annotations": notes}}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Course:
    """What of a curve is drawn, P points of it."""

    curve: Curve
    steps: NDArray[np.int64]
    values: FloatArray64
    """(P,), smoothed where that is asked for."""
    raw: FloatArray64 | None = None
    """(P,), to be drawn behind; None where the values are raw or the band shows them."""
    low: FloatArray64 | None = None
    """(P,), the lower end of the band: of the interval, or the lowest of several steps."""
    high: FloatArray64 | None = None
    is_range: bool = False
    """Whether the band is the range of several steps."""

    def extremes(self) -> tuple[FloatArray64, FloatArray64]:
        """The lowest and the highest value at each point, (P,) each."""
        if self.is_range and self.low is not None and self.high is not None:
            return self.low, self.high
        return self.values, self.values


def _course(curve: Curve, axis: Axis, options: LineOptions) -> _Course:
    if curve.is_sparse:
        measured = np.flatnonzero(np.isfinite(curve.values))
        low, high = (None if e is None else e[measured] for e in (curve.low, curve.high))
        values = curve.values[measured]
        return _Course(curve=curve, steps=curve.steps[measured], values=values, low=low, high=high)
    part = _visible_part(curve, axis, options)
    raw, steps = curve.values[part], curve.steps[part]
    values = smoothed(curve.values, options.smooth)[part]
    lowest, highest = (raw if e is None else e[part] for e in (curve.lowest, curve.highest))
    if len(values) > MAX_POINTS:
        places, values, lowest, highest = thinned(values, lowest, highest, MAX_POINTS // 2)
        steps = steps[places]
    elif curve.lowest is None:
        low, high = (None if e is None else e[part] for e in (curve.low, curve.high))
        behind = raw if options.smooth > 0 else None
        return _Course(curve=curve, steps=steps, values=values, raw=behind, low=low, high=high)
    return _Course(curve=curve, steps=steps, values=values, low=lowest, high=highest, is_range=True)


def _visible_part(curve: Curve, axis: Axis, options: LineOptions) -> slice:
    """The points within the zoom, and one on each side, to which lines lead."""
    if options.zoom is None:
        return slice(None)
    positions, (low, high) = axis.at(curve.steps), options.zoom
    first, end = np.searchsorted(positions, low), np.searchsorted(positions, high, side="right")
    return slice(max(0, int(first) - 1), int(end) + 1)


def _traces(course: _Course, axis: Axis, options: LineOptions) -> list[Trace]:
    curve = course.curve
    if curve.is_sparse:
        return [_points(course, axis, options)]
    traces = []
    if course.low is not None and course.high is not None:
        traces.append(_band(course, course.low, course.high, axis, options))
    if course.raw is not None:
        traces.append(
            scatter(
                x=axis.at(course.steps),
                y=_drawable(course.raw, options),
                mode="lines",
                opacity=theme.RAW_OPACITY,
                line={"color": curve.color, "width": 1},
                **SILENT,
            )
        )
    is_short = len(course.steps) <= _MARKED_BELOW
    width = 1.3 if is_short and options.is_crowded else curve.width
    traces.append(
        scatter(
            **_told(course, axis, options),
            y=_drawable(course.values, options),
            mode="lines+markers" if is_short and not options.is_crowded else "lines",
            marker={"size": 4, "color": curve.color},
            line={"color": curve.color, "width": width, "dash": curve.dash},
            connectgaps=False,
        )
    )
    return traces


def _points(course: _Course, axis: Axis, options: LineOptions) -> Trace:
    """A sparse curve: a dot with its interval where it was measured, and nothing in between."""
    color = course.curve.color
    ends: dict[str, Any] = {}
    if course.low is not None and course.high is not None:
        look = {"color": color, "thickness": 1, "width": 2}
        ends = {"error_y": whiskers(course.values, course.low, course.high, **look)}
    return scatter(
        **_told(course, axis, options),
        y=_drawable(course.values, options),
        mode="markers",
        marker={"size": 6, "color": color},
        line={"color": color},
        **ends,
    )


def _drawable(values: FloatArray64, options: LineOptions) -> FloatArray64:
    """On a log axis what is not positive is a gap, and so is what is not finite anywhere."""
    good = np.isfinite(values) & ((values > 0) | (not options.log_y))
    return np.where(good, values, np.nan)


def _told(course: _Course, axis: Axis, options: LineOptions) -> dict[str, Any]:
    """Points and what hovering says of each; `customdata` (P, 4): step, raw value, band."""
    steps = course.steps
    nothing = np.full(len(steps), np.nan)
    ends = [nothing if end is None else end for end in (course.low, course.high)]
    raw = course.values if course.raw is None else course.raw
    notes = course.curve.notes
    texts = axis.clock(steps) if notes is None else [notes[step] for step in steps.tolist()]
    name = figure_label(course.curve.name)
    return {
        "x": axis.at(steps),
        "customdata": np.column_stack([steps.astype(np.float64), raw, *ends]),
        "text": texts,
        "hovertemplate": _hover_template(course, name, options, has_text=any(texts)),
        "name": name,
    }


def _hover_template(course: _Course, name: str, options: LineOptions, *, has_text: bool) -> str:
    """One short line a curve: the box covers little of its chart. The title's help has the keys."""
    curve = course.curve
    style, unit = (".1%", "") if curve.unit == SHARE else (".4~g", f" {figure_text(curve.unit)}")
    text = f"{name} <b>%{{y:{style}}}</b>{unit}"
    if course.low is not None:
        ends = f"%{{customdata[2]:{style}}} to %{{customdata[3]:{style}}}"
        text += f", steps around it {ends}" if course.is_range else f" ({ends})"
    if course.raw is not None:
        text += f", raw %{{customdata[1]:{style}}}"
    if curve.is_sparse or options.is_crowded:  # the nearest point may be of another step
        text += ", step %{customdata[0]:d}"
    return f"{text}{', %{text}' * has_text}<extra></extra>"


def _band(
    course: _Course, low: FloatArray64, high: FloatArray64, axis: Axis, options: LineOptions
) -> Trace:
    """An interval or a range as filled polygons, one for each stretch without a gap."""
    color = course.curve.color
    low, high = _drawable(low, options), _drawable(high, options)
    x = axis.at(course.steps)
    good = np.isfinite(low) & np.isfinite(high)
    xs, ys = [np.empty(0)], [np.empty(0)]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]]).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2).tolist():
        part = slice(start, stop)
        xs += [x[part], x[part][::-1], np.array([np.nan])]
        ys += [low[part], high[part][::-1], np.array([np.nan])]
    return scatter(
        x=np.concatenate(xs),
        y=np.concatenate(ys),
        fill="toself",
        fillcolor=color,
        opacity=_BAND_OPACITY,
        mode="lines",
        line={"color": color, "width": 0},
        name=f"{figure_label(course.curve.name)}, band",
        **SILENT,
    )


def _outliers(course: _Course, limits: tuple[float, float], axis: Axis) -> list[Trace]:
    """Arrows at the edge of a chart where its curve goes on outside, the furthest with its value.

    A double click on the chart shows everything.
    """
    traces = []
    sides = zip(course.extremes(), ("arrow-down", "arrow-up"), (0.03, 0.97), strict=True)
    for number, (values, symbol, height) in enumerate(sides):
        beyond = (limits[0] - values, values - limits[1])[number]
        outside = np.flatnonzero(np.nan_to_num(beyond, nan=-1.0) > 0)
        outside = outside[np.argsort(-beyond[outside], kind="stable")][:_MAX_OUTLIERS]
        if not len(outside):
            continue
        amounts = [value_words(course.curve.key, float(values[i])) for i in outside]
        outlier_steps = course.steps[outside].tolist()
        name = figure_label(course.curve.name)
        traces.append(
            scatter(
                x=axis.at(course.steps[outside]),
                y=np.full(len(outside), height),
                yaxis=MARK_AXIS,
                mode="markers+text",
                marker={"symbol": symbol, "size": 8, "color": course.curve.color},
                text=[amounts[0], *[""] * (len(outside) - 1)],
                textposition="middle right",
                textfont={"size": theme.LABEL_PX, "color": course.curve.color},
                hovertext=[
                    f"{name} {amount} at step {step}: outside of this chart<br>"
                    "Double-click to see all of it"
                    for amount, step in zip(amounts, outlier_steps, strict=True)
                ],
                hovertemplate="%{hovertext}<extra></extra>",
                showlegend=False,
                cliponaxis=False,
                name="outside",
            )
        )
    return traces


def _end_labels(
    courses: Sequence[_Course],
    limits: tuple[float, float] | None,
    layout: Mapping[str, Any],
    options: LineOptions,
) -> list[dict[str, Any]]:
    """The names of curves at their ends, in their colours, none above another."""
    margin = layout["margin"]
    pixels = options.height - margin["t"] - margin["b"]
    low, high = limits or (0.0, 1.0)
    ends = []
    for course in courses:
        drawn_values = _drawable(course.values, options)
        last = drawn_values[np.isfinite(drawn_values)][-1:]
        if len(last):
            end = float(np.log10(last[0]) if options.log_y else last[0])
            end = min(max(end, low), high) if limits else end
            ends.append((end, pixels * (end - low) / (high - low) if limits else 0.0, course))
    ends.sort(key=lambda entry: entry[1])
    heights: list[float] = []
    for _, height, _ in ends:
        heights.append(max(height, heights[-1] + _LABEL_HEIGHT) if heights else height)
    too_high = max(0.0, heights[-1] - pixels) if heights else 0.0
    return [
        note(
            f"<b>{figure_label(course.curve.name)}</b>",
            (1, end),
            "left middle",
            paper="x",
            shift=(theme.SPACE_PX, round(placed - too_high - height)),
            color=course.curve.color,
        )
        for placed, (end, height, course) in zip(heights, ends, strict=True)
    ]


def _limits(
    curves: Sequence[Curve], axis: Axis, options: LineOptions
) -> tuple[float, float] | None:
    """What the y axis shows, in logarithms of ten where it has those; None where that is plotly's
    to say."""
    finite = _in_sight(curves, axis, options)
    if not len(finite):
        return None
    is_share = _is_share(curves, options)
    if is_share and float(np.ptp(finite)) == 0:
        return -0.05, 1.05  # plotly would go up to 200 %
    largest = float(np.abs(finite).max())
    is_divergence = all(curve.key.endswith("_kl") for curve in curves)
    if not options.log_y and largest < _LEAST_NATS and is_divergence:
        return -_LEAST_NATS, _LEAST_NATS
    if not options.log_y and not is_share:
        low, high = usual_range(finite)
        finite = finite[(finite >= low) & (finite <= high)]
    return full_range(finite, log_y=options.log_y)


def _is_share(curves: Sequence[Curve], options: LineOptions) -> bool:
    # A difference of two shares stands on the axis of shares.
    units = {SHARE if curve.unit == POINTS else curve.unit for curve in curves if curve.unit}
    return units == {SHARE} and not options.log_y


def _y_axis(
    curves: Sequence[Curve],
    axis: Axis,
    options: LineOptions,
    limits: tuple[float, float] | None,
) -> dict[str, Any]:
    largest = np.abs(_in_sight(curves, axis, options)).max(initial=0.0)
    return {
        "type": "log" if options.log_y else "linear",
        "gridcolor": theme.GRID,
        "zeroline": False,
        "automargin": False,  # charts below each other begin at the same place
        "tickmode": "auto",
        "tickfont": {"size": theme.LABEL_PX},
        "nticks": 6,
        "title": {"text": ""},
        "exponentformat": "none" if 1e-3 <= largest < 1e5 else "power",
        "separatethousands": True,
        **({"tickformat": ".2~%"} if _is_share(curves, options) else {}),
        **({} if limits is None else {"range": list(limits)}),
    }


def _in_sight(curves: Sequence[Curve], axis: Axis, options: LineOptions) -> FloatArray64:
    """All finite values and ends of intervals that lie within the zoom."""
    parts = [np.empty(0)]
    for curve in curves:
        low, high = options.zoom or (-np.inf, np.inf)
        position = axis.at(curve.steps)
        inside = (position >= low) & (position <= high)
        of_curve = (curve.values, curve.low, curve.high, curve.lowest, curve.highest)
        parts += [part[inside] for part in of_curve if part is not None]
    values = np.concatenate(parts)
    return values[np.isfinite(values)]


def _layout(axis: Axis, options: LineOptions) -> dict[str, Any]:
    signs = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return {
        "shapes": []
        if options.onset is None
        else [theme.onset_shape(*axis.at(np.array(options.onset)).tolist())],
        "height": options.height,
        **CLEAR,
        "hovermode": "closest" if options.is_crowded else "x unified",
        "modebar": {"bgcolor": "rgba(0,0,0,0)"},
        "hoverlabel": {"font": {"size": 11}},
        MARK_AXIS.replace("y", "yaxis"): signs,
        "xaxis": {
            "title": {"text": "" if axis.kind == "step" else axis.title, "standoff": 4},
            "tickfont": {"size": theme.LABEL_PX},
            "gridcolor": theme.GRID,
            "linecolor": theme.LINE,
            "zeroline": False,
            "showspikes": True,
            "spikemode": "across",
            "spikesnap": "cursor",
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": theme.LINE,
            "automargin": axis.kind != "step",
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


def _legend(listed: Sequence[Curve], labelled: Sequence[Curve]) -> dict[str, Any]:
    """A legend between title and curves, or names at the ends of the curves, and room for them."""
    longest = max((len(curve.name) for curve in labelled), default=0)
    return {
        "margin": {
            "l": theme.AXIS_PX,
            "r": theme.SPACE_PX + round(_LABEL_CHAR * longest),
            "t": theme.TITLE_ROW_PX + _LEGEND_ROW * _legend_rows(listed),
            "b": theme.AXIS_ROW_PX,
        },
        "showlegend": bool(listed),
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.0,
            "yanchor": "bottom",
            "itemwidth": 30,
            "font": {"size": theme.LABEL_PX},
            "bgcolor": "rgba(0,0,0,0)",
            "title": {"text": ""},
        },
    }


def _legend_rows(curves: Sequence[Curve]) -> int:
    """How many rows plotly breaks a legend into in the narrowest chart."""
    return len(_legend_widths(curves)) + 1 if curves else 0


def _legend_widths(curves: Sequence[Curve]) -> list[int]:
    """From which width on one row is enough, two rows, and so on: those that the narrowest lacks.

    Names that do not fit into one row stand in columns as wide as the longest.
    """
    widths = [48 + 6 * min(len(curve.name), 80) for curve in curves]
    least = (
        sum(widths) if rows == 1 else math.ceil(len(widths) / rows) * max(widths)
        for rows in range(1, len(widths))
    )
    return list(itertools.takewhile(lambda width: width > _NARROWEST, least))


def _title(heading: str, about: str, *, num_rows: int) -> dict[str, Any]:
    """At the left above the legend; hovering explains it."""
    return note(
        heading,
        (0, 1),
        "left bottom",
        paper="xy",
        shift=(-theme.AXIS_PX, 4 + _LEGEND_ROW * num_rows),
        size=theme.TITLE_PX,
        hovertext=about,
        captureevents=True,
    )


def _unit_words(curves: Sequence[Curve]) -> str:
    """The unit behind a title: `nats per token`."""
    units = dict.fromkeys(curve.unit for curve in curves if curve.unit not in ("", SHARE, POINTS))
    unit_text = figure_text(" / ".join(units), limit=80)
    return f'  <span style="font-size:{theme.LABEL_PX}px">{unit_text}</span>' if units else ""
