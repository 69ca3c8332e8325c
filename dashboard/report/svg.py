"""A figure of plotly as a picture without a script: SVG that stands in a page as it is. Pure.

It draws what our figures are made of: lines, bands, dots with whiskers, bars, heat maps, shapes and
notes. Words have the colour of the page, so that one picture is right on light and on dark. What
hovering tells on the dashboard is the `<title>` of a dot.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly.colors import sample_colorscale

from ..charts.theme import ACCENT, GRID
from ..escaping import attribute

WIDTH, HEIGHT = 440, 260
"""Of a picture in its own pixels: on a telephone it is shown at about this size."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 46, 36
_MOST_TITLES = 400
"""Dots of one trace that tell what they are."""
_CHAR = 5.6
_CIRCLE = '<circle cx="{x}" cy="{y}" r="{r}" {style}>{title}</circle>'
_DASHES = {"dot": ' stroke-dasharray="2 3"', "dash": ' stroke-dasharray="6 3"'}
_SHAPES: Mapping[str, Sequence[tuple[float, float]]] = {
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "triangle-up": ((0, -1.2), (1.2, 0.9), (-1.2, 0.9)),
    "star-triangle-up": ((0, -1.2), (1.2, 0.9), (-1.2, 0.9)),
    "triangle-down": ((0, 1.2), (1.2, -0.9), (-1.2, -0.9)),
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
}
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values of an axis to pixels; one in logarithms says its range and its ticks."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, values: Any) -> Floats:
        numbers = np.asarray(values, np.float64)
        if self.is_log:
            numbers = np.log10(np.where(numbers > 0, numbers, np.nan))
        share = (numbers - self.low) / (self.high - self.low or 1.0)
        return self.start + share * (self.end - self.start)


def picture(spec: Mapping[str, Any], alt: str) -> str:
    """One figure as an `<svg>`; its title, its legend and its notes stand in it.

    Args:
        alt: The figure in words. Hostile, as every text of the figure may be.
    """
    traces, layout = list(spec["data"]), spec["layout"]
    height = min(float(layout.get("height", HEIGHT)), 420.0)
    bottom = height - _BOTTOM
    legend = _legend_places([trace for trace in traces if _has_legend(trace, layout)])
    has_head = bool(legend) or any(note.get("yref") == "paper" for note in _notes(layout))
    top = (_TOP + 16 * max((row for _, row, _ in legend), default=0)) if has_head else 12
    bars = [trace for trace in traces if trace.get("type") == "bar"]
    categories = list(dict.fromkeys(str(name) for trace in bars for name in trace["x"]))
    drawn = [trace for trace in traces if trace.get("yaxis", "y") == "y"]
    x = _scale(drawn, layout, "x", (_LEFT, WIDTH - _RIGHT), categories)
    y = _scale(drawn, layout, "y", (bottom, top), categories)
    marks = _Scale(0.0, 1.0, bottom, top)
    parts = [*_shapes(layout, x, y, top, bottom), *_axes(layout, x, y, top, bottom, categories)]
    for trace in traces:
        kind = trace.get("type", "scatter")
        if kind == "heatmap":
            parts += _heatmap(trace, x, y)
        elif kind == "bar":
            parts += _bars(trace, bars, x, y, categories)
        else:
            parts += _scatter(trace, x, y if trace.get("yaxis", "y") == "y" else marks)
    parts += _annotations(layout, x, y, top)
    parts += _legend(legend, top)
    return (
        f'<svg class="picture" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{attribute(alt, 600)}">{"".join(parts)}</svg>'
    )


def _array(values: Any) -> Floats:
    """The numbers of a trace; what is none is NaN."""
    given = [] if values is None else values
    return np.array([np.nan if value is None else value for value in given], np.float64)


def _list(values: Any, size: int) -> list[Any]:
    """One entry for each point, of a property that may be the same for all."""
    is_many = isinstance(values, list | tuple | np.ndarray)
    return list(values) if is_many else [values] * size


def _words(text: Any) -> str:
    """Plotly's text, which is escaped already, without its tags."""
    return html.escape(html.unescape(re.sub(r"<[^>]*>", " ", str(text))).strip(), quote=True)


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _scale(
    traces: Sequence[Mapping[str, Any]],
    layout: Mapping[str, Any],
    name: str,
    ends: tuple[float, float],
    categories: Sequence[str],
) -> _Scale:
    axis = layout.get(f"{name}axis") or {}
    if axis.get("range") is not None:
        low, high = map(float, axis["range"])
        return _Scale(low, high, *ends, axis.get("type") == "log")
    if name == "x" and categories:
        return _Scale(-0.5, len(categories) - 0.5, *ends)
    parts = [np.empty(0)]
    for trace in traces:
        values = _array(trace.get(name))
        parts.append(values)
        error = trace.get(f"error_{name}")
        if error:
            parts += [values + _array(error["array"]), values - _array(error["arrayminus"])]
        if trace.get("type") == "bar" and name == "y":
            parts.append(np.zeros(1))
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    if not len(values):
        return _Scale(0.0, 1.0, *ends)
    low, high = float(values.min()), float(values.max())
    if axis.get("rangemode") == "tozero":
        low = min(low, 0.0)
    around = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
    return _Scale(low - around, high + around, *ends)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two ends, at most about `most`.

    >>> _ticks(0.0, 1.0, 6), _ticks(-0.5, 37.5, 6)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 10.0, 20.0, 30.0])
    """
    rough = (high - low) / most
    if not rough > 0 or not math.isfinite(rough):
        return []
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * n for n in (1, 2, 5, 10) if size * n >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, int(high / step + 1e-9) + 1)]


def _axes(
    layout: Mapping[str, Any],
    x: _Scale,
    y: _Scale,
    top: float,
    bottom: float,
    categories: Sequence[str],
) -> Iterator[str]:
    for name, scale, most in (("x", x, 7), ("y", y, 5)):
        axis = layout.get(f"{name}axis") or {}
        if axis.get("visible") is False or axis.get("showticklabels") is False:
            continue
        has_grid = axis.get("showgrid") is not False
        for value, text in _labels(axis, scale, most, categories if name == "x" else ()):
            position = float(scale(value))
            if not scale.start - 1 <= position <= scale.end + 1 and name == "x":
                continue
            tick = _number(position)
            if name == "x":
                line = f'x1="{tick}" x2="{tick}" y1="{_number(top)}" y2="{_number(bottom)}"'
                spot = f'x="{tick}" y="{_number(bottom + 14)}" text-anchor="middle"'
            else:
                line = f'x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{tick}" y2="{tick}"'
                spot = f'x="{_LEFT - 6}" y="{_number(position + 3.5)}" text-anchor="end"'
            yield f'<line {line} stroke="{GRID}"/>' if has_grid else ""
            yield f"<text {spot}>{_words(text)}</text>"
    axis = layout.get("xaxis") or {}
    about = axis.get("title", {}).get("text")
    if about and axis.get("visible") is not False:
        middle = _number((_LEFT + WIDTH - _RIGHT) / 2)
        spot = f'x="{middle}" y="{_number(bottom + _BOTTOM - 6)}" text-anchor="middle"'
        yield f'<text {spot} opacity=".75">{_words(about)}</text>'


def _labels(
    axis: Mapping[str, Any], scale: _Scale, most: int, categories: Sequence[str]
) -> list[tuple[float, str]]:
    if categories:
        return [(float(index), name) for index, name in enumerate(categories)]
    if axis.get("tickvals") is not None:
        given = zip(axis["tickvals"], axis["ticktext"], strict=True)
        return [(float(value), str(text)) for value, text in given]
    values = _ticks(scale.low, scale.high, most)
    if str(axis.get("tickformat")).endswith("%"):
        return [(value, f"{100 * value:.3g}%") for value in values]
    return [(value, f"{value:.4g}") for value in values]


def _scatter(trace: Mapping[str, Any], x: _Scale, y: _Scale) -> Iterator[str]:
    values = _array(trace.get("x")), _array(trace.get("y"))
    px, py = x(values[0]), y(values[1])
    mode, opacity = str(trace.get("mode", "lines")), float(trace.get("opacity") or 1.0)
    style = trace.get("line") or {}
    color = str(style.get("color") or ACCENT)
    if "lines" in mode:
        width = float(style.get("width", 2))
        fill = str(trace.get("fillcolor", color)) if trace.get("fill") == "toself" else "none"
        look = f'fill="{attribute(fill)}" stroke="{attribute(color)}" stroke-width="{width:g}"'
        look += f' opacity="{opacity:g}"{_DASHES.get(str(style.get("dash")), "")}'
        yield f'<path class="line" d="{_path(px, py)}" {look}/>' if len(px) else ""
    yield from _whiskers(trace, x, y)
    if "markers" in mode:
        yield from _markers(trace, px, py, values)


def _path(px: Floats, py: Floats) -> str:
    """Straight lines, with a gap where a point is not there."""
    parts, is_down = [], False
    for across, down in zip(px.tolist(), py.tolist(), strict=True):
        if math.isfinite(across) and math.isfinite(down):
            parts.append(f"{'L' if is_down else 'M'}{_number(across)} {_number(down)}")
            is_down = True
        else:
            is_down = False
    return "".join(parts)


def _whiskers(trace: Mapping[str, Any], x: _Scale, y: _Scale) -> Iterator[str]:
    xs, ys = _array(trace.get("x")), _array(trace.get("y"))
    for name, along, across in (("error_y", ys, xs), ("error_x", xs, ys)):
        error = trace.get(name)
        if not error or not len(along):
            continue
        lows, highs = along - _array(error["arrayminus"]), along + _array(error["array"])
        color, thick = attribute(str(error.get("color") or ACCENT)), error.get("thickness", 1)
        for low, high, level in zip(lows, highs, across, strict=True):
            if not all(map(math.isfinite, (low, high, level))):
                continue
            ends = (low, high) if name == "error_x" else (level, level)
            heights = (level, level) if name == "error_x" else (low, high)
            path = _path(x(ends), y(heights))
            yield f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{thick}"/>'


def _markers(
    trace: Mapping[str, Any], px: Floats, py: Floats, values: tuple[Floats, Floats]
) -> Iterator[str]:
    size = len(px)
    marker = trace.get("marker") or {}
    symbols, sizes = _list(marker.get("symbol", "circle"), size), _list(marker.get("size", 6), size)
    colors = _marker_colors(marker, size)
    width = float((marker.get("line") or {}).get("width", 0) or 0)
    texts = _list(trace.get("text", ""), size)
    for n in range(size):
        if not (math.isfinite(px[n]) and math.isfinite(py[n])) or not sizes[n]:
            continue
        symbol, is_open = str(symbols[n]).removesuffix("-open"), str(symbols[n]).endswith("-open")
        color = attribute(str(colors[n]))
        style = f'fill="none" stroke="{color}"' if is_open else f'fill="{color}"'
        style += f' stroke-width="{max(width, 1.5):g}"' if is_open else ""
        title = (
            f"<title>{_told(trace, values[0][n], values[1][n], texts[n])}</title>"
            if size <= _MOST_TITLES
            else ""
        )
        radius = float(sizes[n]) / 2
        points = _SHAPES.get(symbol)
        if points is None:
            center = {"x": _number(px[n]), "y": _number(py[n]), "r": f"{radius:g}"}
            yield _CIRCLE.format(**center, style=style, title=title)
            continue
        corners = " ".join(
            f"{_number(px[n] + across * radius)},{_number(py[n] + down * radius)}"
            for across, down in points
        )
        yield f'<polygon points="{corners}" {style}>{title}</polygon>'


def _told(trace: Mapping[str, Any], x: float, y: float, text: Any) -> str:
    """What a dot says: its own text, or its name, step and value."""
    if trace.get("hovertemplate", "").startswith("%{text}") and text:
        return _words(text)
    return f"{_words(trace.get('name') or '')} {x:g}: {y:.4g}".strip()


def _marker_colors(marker: Mapping[str, Any], size: int) -> list[Any]:
    colors = _list(marker.get("color", ACCENT), size)
    if not marker.get("colorscale"):
        return colors
    numbers = _array(colors)
    low, span = np.nanmin(numbers), float(np.ptp(numbers)) or 1.0
    shares = (numbers - low) / span
    return [*sample_colorscale(marker["colorscale"], shares.tolist())]


def _heatmap(trace: Mapping[str, Any], x: _Scale, y: _Scale) -> Iterator[str]:
    """One rectangle a cell, of one colour that is as strong as its value."""
    table, color = np.asarray(trace["z"], np.float64), attribute(str(trace["colorscale"][1][1]))
    xs, ys = _array(trace["x"]), _array(trace["y"])
    width = abs(float(np.diff(x(xs)).min())) if len(xs) > 1 else 20.0
    height = abs(float(np.diff(y(ys)).min())) if len(ys) > 1 else 20.0
    rows, columns = np.nonzero(np.isfinite(table))
    left, upper = x(xs) - width / 2, y(ys) - height / 2
    size = f'width="{width * 0.94:.2f}" height="{height * 0.92:.2f}"'
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        corner = f'x="{_number(left[column])}" y="{_number(upper[row])}"'
        yield f'<rect {corner} {size} fill="{color}" opacity="{table[row, column]:.2f}"/>'


def _bars(
    trace: Mapping[str, Any],
    bars: Sequence[Mapping[str, Any]],
    x: _Scale,
    y: _Scale,
    categories: Sequence[str],
) -> Iterator[str]:
    """Bars beside each other, as `barmode` is `group`."""
    names = [other.get("name") for other in bars]
    offset, width = names.index(trace.get("name")), 0.8 / len(names)
    color = attribute(str((trace.get("marker") or {}).get("color", ACCENT)))
    for name, value in zip(trace["x"], _array(trace["y"]).tolist(), strict=True):
        if not math.isfinite(value):
            continue
        left = categories.index(str(name)) - 0.4 + offset * width
        x0, x1 = x([left, left + width * 0.94]).tolist()
        y0, y1 = y([0.0, value]).tolist()
        box = f'x="{_number(x0)}" y="{_number(min(y0, y1))}" width="{_number(x1 - x0)}"'
        title = f"<title>{_words(trace.get('name'))}, {_words(name)}: {value:.3g}</title>"
        yield f'<rect {box} height="{_number(abs(y1 - y0))}" fill="{color}">{title}</rect>'


def _shapes(
    layout: Mapping[str, Any], x: _Scale, y: _Scale, top: float, bottom: float
) -> Iterator[str]:
    for shape in layout.get("shapes") or ():
        left, right = sorted(x([shape["x0"], shape["x1"]]).tolist())
        is_paper = shape.get("yref") == "paper"
        upper, lower = sorted(y([shape["y0"], shape["y1"]]).tolist())
        if is_paper:
            upper, lower = top, bottom
        size = f'width="{_number(max(right - left, 1.5))}" height="{_number(lower - upper)}"'
        look = f'fill="{attribute(str(shape["fillcolor"]))}" opacity="{shape.get("opacity", 1)}"'
        yield f'<rect x="{_number(left)}" y="{_number(upper)}" {size} {look}/>'
        label = (shape.get("label") or {}).get("text")
        if label:
            spot = f'x="{_number(left + 3)}" y="{_number(lower - 4)}"'
            yield f'<text {spot} opacity=".75">{_words(label)}</text>'


def _notes(layout: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return layout.get("annotations") or ()


def _annotations(layout: Mapping[str, Any], x: _Scale, y: _Scale, top: float) -> Iterator[str]:
    anchors = {"left": "start", "right": "end"}
    for note in _notes(layout):
        is_title = note.get("yref") == "paper" and note.get("y") == 1
        across = _LEFT + float(note["x"]) * (WIDTH - _LEFT - _RIGHT)
        if note.get("xref", "x") == "x":
            across = float(x(note["x"]))
        text = _words(note["text"])
        if is_title:
            heading, tag, unit = str(note["text"]).partition("<span")
            text = f'{_words(heading)} <tspan class="unit">{_words(tag + unit)}</tspan>'
            spot = f'x="{_LEFT - 40}" y="14" class="title"'
        else:
            down = (y.start + top) / 2 if note.get("yref") == "paper" else float(y(note["y"]))
            down += {"top": 11, "bottom": -4}.get(str(note.get("yanchor")), 4)
            anchor = anchors.get(str(note.get("xanchor")), "middle")
            across += float(note.get("xshift", 0)) + {"start": 2, "end": -2, "middle": 0}[anchor]
            spot = f'x="{_number(across)}" y="{_number(down)}" text-anchor="{anchor}"'
        yield f"<text {spot}>{text}</text>"


def _has_legend(trace: Mapping[str, Any], layout: Mapping[str, Any]) -> bool:
    is_wanted = layout.get("showlegend", True) is not False
    return is_wanted and trace.get("showlegend", True) is not False and bool(trace.get("name"))


_Place = tuple[float, int, Mapping[str, Any]]


def _legend_places(legend: Sequence[Mapping[str, Any]]) -> list[_Place]:
    """Where each name of a legend stands: across, and in which row."""
    places, across, row = [], float(_LEFT), 0
    for trace in legend:
        width = 22 + _CHAR * len(html.unescape(str(trace["name"])))
        if across > _LEFT and across + width > WIDTH:
            across, row = float(_LEFT), row + 1
        places.append((across, row, trace))
        across += width
    return places


def _legend(places: Sequence[_Place], top: float) -> Iterator[str]:
    last_row = max((row for _, row, _ in places), default=0)
    for across, row, trace in places:
        of_line = (trace.get("line") or {}).get("color")
        color = of_line or _marker_colors(trace.get("marker") or {}, 1)[0]
        down = top - 8 - 16 * (last_row - row)
        box = f'x="{_number(across)}" y="{_number(down - 7)}" width="10" height="4"'
        yield f'<rect {box} fill="{attribute(str(color))}"/>'
        yield f'<text x="{_number(across + 14)}" y="{_number(down)}">{_words(trace["name"])}</text>'
