"""Figures of several runs: groups as bands, a sweep, and panels that people made. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from plotly.colors import sample_colorscale

from echoscope.diagnostics.catalogue import metric
from echoscope.store.records import FloatArray64

from ..data.comparing.groups import in_order
from ..data.comparing.sweep import Importance
from ..data.curves import AS_STEPS, Curve, full_range
from ..words import value_words
from . import theme
from .charts import NOTHING, LineOptions, line_spec
from .parts import CLEAR, Spec, figure_text, note, scatter, whiskers

PALETTE = (
    *theme.SERIES[:6],
    "#c62828",
    "#6a3d9a",
    "#7a8b00",
    "#00838f",
    "#e07b00",
    "#7a7a7a",
    "#ad1457",
    "#4e7d2d",
    "#9575cd",
    "#a1664a",
    "#6706f9",
    "#fa38e7",
    "#14b814",
    "#0647e0",
    "#f91fa2",
    "#f90606",
    "#b26afb",
    "#42588a",
    "#fb876a",
)
"""Of runs and of groups, in their order, as many as a page of the table has lines. The later ones
are as far as can be from those before them."""
_FEW_CURVES = 8
"""Curves up to which hovering lists all of them at a step."""
HEIGHT = 270


def colors(
    groups: Sequence[str], drawn: Sequence[str], palette: Sequence[str] = theme.SERIES
) -> dict[str, str]:
    """A colour for each group that is shown: its own, unless another one has it already.

    Args:
        groups: ids of all groups, so that one keeps its colour while others come and go.
        drawn: ids of those that are drawn, at most as many as there are colours.
    """
    out: dict[str, str] = {}
    for group in drawn:
        first = groups.index(group)
        turns = (palette[(first + n) % len(palette)] for n in range(len(palette)))
        out[group] = next(color for color in turns if color not in out.values())
    return out


_NAME_CHARS, _VALUE_CHARS = 30, 18
_SWEEP_HEIGHT = 330
_SPREAD = 0.05
"""Of the height of an axis: runs of one value pass it side by side."""
_LOW_TO_HIGH = (theme.SERIES[0], theme.SERIES[1])
_TICKS = 5
"""Of the metric's axis."""


def sweep_spec(
    settings: Mapping[str, Sequence[str]],
    values: Sequence[float],
    runs: Sequence[str],
    key: str,
    *,
    row_chars: int = 110,
) -> Spec:
    """A line for each run through its settings to its value: parallel coordinates.

    Plotly's own need WebGL, which a browser may lack, and do not say which run a line is.

    Args:
        settings: setting -> its value in each run, in words; evenly spaced, in order.
        values: the metric of each run, finite.
        row_chars: of the titles of all axes side by side; a title breaks its lines before that.
    """
    numbers = np.asarray(values, np.float64)
    low, high = float(numbers.min()), float(numbers.max())
    share_N = (numbers - low) / (high - low) if high > low else np.full(len(numbers), 0.5)
    columns = [_places(of) for of in settings.values()]
    heights_NA = np.column_stack([*(heights for heights, _ in columns), share_N])
    colors = sample_colorscale(_LOW_TO_HIGH, share_N.tolist())
    ends = [(low + (high - low) * n / (_TICKS - 1), n / (_TICKS - 1)) for n in range(_TICKS)]
    ticks = [of for _, of in columns]
    ticks.append({value_words(key, value): height for value, height in ends})
    titles = [*settings, metric(key).name]
    lines = [
        scatter(
            mode="lines",
            x=[*range(len(titles))],
            y=heights_N,
            line={"color": color, "width": 1.5},
            opacity=0.8,
            name=figure_text(run, limit=80),
            text=figure_text(f"{run}: {value_words(key, value)}"),
            hovertemplate="%{text}<extra></extra>",
        )
        for heights_N, color, run, value in zip(heights_NA, colors, runs, values, strict=True)
    ]
    return {"data": lines, "layout": _sweep_layout(titles, ticks, max(8, row_chars // len(titles)))}


def _places(values: Sequence[str]) -> tuple[FloatArray64, dict[str, float]]:
    """How high each run passes a setting's axis, (N,), and the height of each value."""
    distinct = sorted(set(values), key=in_order)
    ticks = {value: (n + 0.5) / len(distinct) for n, value in enumerate(distinct)}
    heights = np.array([ticks[value] for value in values])
    for value, middle in ticks.items():
        runs_of_value = np.flatnonzero([each == value for each in values])
        heights[runs_of_value] = (
            middle + np.linspace(-_SPREAD, _SPREAD, len(runs_of_value) + 2)[1:-1]
        )
    return heights, ticks


def _sweep_layout(
    titles: Sequence[str], ticks: Sequence[Mapping[str, float]], width: int
) -> dict[str, Any]:
    texts = []
    for n, (title, heights) in enumerate(zip(titles, ticks, strict=True)):
        name = figure_text(title, width=width, limit=_NAME_CHARS)
        texts.append(note(f"<b>{name}</b>", (n, 1.06), "center bottom", size=12))
        is_last = n == len(titles) - 1
        side, away = ("left", 5) if is_last else ("right", -5)
        for value, height in heights.items():
            text = figure_text(value, width=99, limit=_VALUE_CHARS)
            texts.append(note(text, (n, height), f"{side} middle", shift=(away, 0)))
    look = {"type": "line", "line": {"color": theme.LINE, "width": 2}}
    posts = [{"x0": n, "x1": n, "y0": 0, "y1": 1, **look} for n in range(len(titles))]
    hidden = {"visible": False, "fixedrange": True}
    return {
        "height": _SWEEP_HEIGHT,
        "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
        "xaxis": {**hidden, "range": [-0.35, len(titles) - 0.65]},
        "yaxis": {**hidden, "range": [-0.03, 1.28]},
        "shapes": posts,
        "annotations": texts,
        "showlegend": False,
        "hovermode": "closest",
        **CLEAR,
    }


def importance_spec(importances: Sequence[Importance]) -> Spec:
    """A bar for each setting, the most important on top, with what ten repeats spread over."""
    rows = list(importances)[::-1]
    ends = np.array([(of.value, of.low, of.high) for of in rows]).T
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [figure_text(" with ".join(of.settings), width=30, limit=90) for of in rows],
        "x": ends[0],
        "error_x": whiskers(*ends, thickness=1),
        "marker": {"color": [theme.ACCENT if of.is_sure else theme.COMMAND_MARK for of in rows]},
        "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
    }
    layout = {
        "height": max(150, 34 * len(rows) + 90),
        "margin": {"l": 8, "r": 16, "t": 36, "b": 40},
        "xaxis": {"title": {"text": "error added when shuffled (1: the variance between runs)"}},
        "yaxis": {"automargin": True},
        "showlegend": False,
        **CLEAR,
    }
    return {"data": [bars], "layout": layout}


# --- own panels

MAX_CURVES = 24
_DASHES = ("solid", "dot", "dash", "dashdot")
"""Columns of a query that several runs answered, whose colour says the run."""
_FENCE = 3.0
"""Spreads of the middle half beyond which a value is an outlier (Tukey's outer fence)."""


def clipped(spec: Spec, curves: Sequence[Curve], *, log_y: bool) -> Spec:
    """The figure with a scale that leaves outliers out, which its title counts."""
    values = np.concatenate([np.empty(0), *(curve.values for curve in curves)])
    finite = values[np.isfinite(values)]
    if log_y:
        finite = np.log10(finite[finite > 0])
    if len(finite) < 5:
        return spec
    low, high = np.quantile(finite, (0.25, 0.75))
    fence = _FENCE * (high - low)
    inside = finite[(finite >= low - fence) & (finite <= high + fence)]
    limits = full_range(inside, log_y=False)
    if limits is None or len(inside) == len(finite):
        return spec
    layout = {**spec["layout"]}
    layout["yaxis"] = {**layout["yaxis"], "range": list(limits)}
    heading, *rest = layout["annotations"]
    num_outside = len(finite) - len(inside)
    outside_note = f'  <span style="font-size:11px">{num_outside} outside</span>'
    layout["annotations"] = [{**heading, "text": heading["text"] + outside_note}, *rest]
    return {**spec, "layout": layout}


def answer_spec(
    answers: Mapping[str, pd.DataFrame], *, height: int, log_y: bool, title: str
) -> Spec | None:
    """Lines over the first column of an answer, if all columns are numbers; None otherwise.

    Args:
        answers: run -> the answer of the same query.
    """
    frames = {run: frame for run, frame in answers.items() if len(frame)}
    kinds = [kind for frame in frames.values() for kind in frame.dtypes]
    headings = {tuple(map(str, frame)) for frame in frames.values()}
    if len(headings) != 1 or not all(map(pd.api.types.is_numeric_dtype, kinds)):
        return None
    first, *others = headings.pop()
    if not others:
        return None
    is_of_one = len(frames) == 1
    curves = []
    for at_run, (run, frame) in enumerate(frames.items()):
        rows = frame.astype(np.float64).sort_values(first, kind="stable")
        for at_column, name in enumerate(others):
            at_color = at_column if is_of_one else at_run
            curves.append(
                Curve(
                    key=name,
                    name=name if is_of_one else run if len(others) == 1 else f"{run}: {name}",
                    steps=rows[first].to_numpy(),
                    values=rows[name].to_numpy(),
                    color=theme.SERIES[at_color % len(theme.SERIES)],
                    dash="solid" if is_of_one else _DASHES[at_column % len(_DASHES)],
                    is_line=True,
                )
            )
    axis = replace(AS_STEPS, kind="time", title=figure_text(first, limit=60))
    # Of several runs the page has a legend.
    options = LineOptions(height=height, log_y=log_y, has_legend=is_of_one)
    return line_spec(curves[:MAX_CURVES], axis, options=options, title=title)


def curves_spec(
    curves: Sequence[Curve], *, title: str, help: str, height: int, is_complete: bool = True
) -> Spec:
    """Some runs or groups over the steps; the table is their legend.

    Args:
        is_complete: No curve is still to come. Otherwise an empty chart says so.
    """
    options = LineOptions(
        height=height,
        has_legend=False,
        is_crowded=len(curves) > _FEW_CURVES,
        nothing=NOTHING if is_complete else "",
    )
    return line_spec(curves, AS_STEPS, options=options, title=title, help=help)
