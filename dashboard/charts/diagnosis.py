"""Figures of the Diagnosis page: pure, from tables to plotly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..data.diagnosis import GROUP_KINDS, FamilyInformation, RegimePath
from .theme import ACCENT, OUTCOMES, REGIMES, SERIES

HEIGHT = 340
_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
"""Grows upwards: plotly makes room for as many rows as a narrow chart needs, above the curves."""
_QUIET = "rgba(127,127,127,0.35)"
_WORDS = {
    "diverse": "diverse reasoning",
    "compressed": "compressed",
    "template_collapse": "template collapse",
    "low_entropy_collapse": "low-entropy collapse",
    "undetermined": "undetermined",
}
_SYMBOLS = {
    "diverse": "circle",
    "compressed": "square",
    "template_collapse": "triangle-down",
    "low_entropy_collapse": "diamond",
    "undetermined": "circle-open",
}
_KINDS = {
    "hopeless": ("all fail", OUTCOMES["hopeless"]),
    "constant": ("no spread", "#8a8a8a"),
    "mixed": ("mixed", OUTCOMES["mixed"]),
    "solved": ("all succeed", OUTCOMES["solved"]),
}


_CORNERS = (
    ("low_entropy_collapse", "left", "bottom"),
    ("template_collapse", "right", "bottom"),
    ("compressed", "left", "top"),
    ("diverse", "right", "top"),
)
"""Where in the plane of H(Z|X) and dependence each regime lies."""


_SILENT = {"hoverinfo": "skip", "showlegend": False}


def _laid_out(figure: go.Figure, *, height: int = HEIGHT, **layout: Any) -> go.Figure:
    margin = {"l": 10, "r": 10, "t": 10, "b": 10}
    return figure.update_layout(height=height, margin=margin, legend=_LEGEND, **layout)


def regime_plane(path: RegimePath, *, selected: int | None = None) -> go.Figure:
    """The run's way over the plane: H(Z|X) to the right, dependence on the prompt upwards."""
    points = path.points
    right = 1.15 * max(points["entropy_high"].max(), 2.2 * path.entropy_border)
    top = max(1.0, 1.05 * points["dependence_high"].max())
    figure = go.Figure()
    _quadrants(figure, path, right, top)
    figure.add_scatter(
        x=points["entropy"],
        y=points["dependence"],
        mode="lines",
        line={"color": _QUIET, "width": 1.5},
        **_SILENT,
    )
    current = points.iloc[-1] if selected is None else _row_at(points, selected)
    figure.add_scatter(
        x=points["entropy"],
        y=points["dependence"],
        mode="markers",
        marker={
            "size": 9,
            "symbol": [_SYMBOLS.get(name, "circle") for name in points["regime"]],
            "color": points["step"],
            "colorscale": "Cividis",
            "colorbar": {"title": "step", "thickness": 10, "len": 0.9},
            "line": {"width": 1, "color": "rgba(150,150,150,0.95)"},
        },
        customdata=np.stack([points["step"], [_WORDS[r] for r in points["regime"]]], axis=1),
        hovertemplate="step %{customdata[0]}: %{customdata[1]}<br>H(Z|X) %{x:.3g} nats per token"
        "<br>dependence %{y:.2f}<extra></extra>",
        showlegend=False,
    )
    figure.add_scatter(
        x=[current["entropy"]],
        y=[current["dependence"]],
        mode="markers",
        marker={"size": 15, "symbol": "circle-open", "line": {"width": 2.5}, "color": ACCENT},
        error_x=_bars(current, "entropy"),
        error_y=_bars(current, "dependence"),
        **_SILENT,
    )
    return _laid_out(
        figure,
        height=HEIGHT + 60,
        xaxis={"title": "H(Z|X), nats per token", "range": [0, right], "zeroline": False},
        yaxis={"title": "dependence on the prompt", "range": [-0.06, top], "zeroline": False},
    )


def _row_at(points: pd.DataFrame, step: int) -> pd.Series[float]:
    return points.iloc[int((points["step"] - step).abs().to_numpy().argmin())]


def _bars(row: pd.Series[float], name: str) -> dict[str, object]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, row[f"{name}_high"] - row[name])],
        "arrayminus": [max(0.0, row[name] - row[f"{name}_low"])],
        "color": ACCENT,
        "thickness": 1.2,
    }


def _quadrants(figure: go.Figure, path: RegimePath, right: float, top: float) -> None:
    x, y = path.entropy_border, path.dependence_border
    for name, side, edge in _CORNERS:
        x0, x1 = (0.0, x) if side == "left" else (x, right)
        y0, y1 = (-0.06, y) if edge == "bottom" else (y, top)
        shape = {"type": "rect", "x0": x0, "x1": x1, "y0": y0, "y1": y1, "layer": "below"}
        figure.add_shape(shape, fillcolor=REGIMES[name], opacity=0.10, line_width=0)
        figure.add_annotation(
            text=_WORDS[name],
            x=x0 if side == "left" else x1,
            y=y1 if edge == "top" else y0,
            showarrow=False,
            xanchor=side,
            yanchor=edge,
            font={"size": 11},
            opacity=0.75,
        )


def information_curve(
    families: Sequence[FamilyInformation], values: Mapping[str, float]
) -> go.Figure:
    """I(X; first k tokens): where in the reasoning the prompt comes in.

    Args:
        values: `info/...` metrics of the step: how many prompts there were, and after how many
            tokens they can be told apart.
    """
    figure = go.Figure()
    longest = max(
        (float(other_family.curve_k[-1]) for other_family in families if len(other_family.curve_k)),
        default=1.0,
    )
    for color, other_family in zip(SERIES, families, strict=False):
        name = other_family.family.replace("_", " ")
        figure.add_scatter(
            x=other_family.curve_k,
            y=other_family.curve,
            mode="lines+markers",
            name=name,
            line={"color": color, "width": 2},
            hovertemplate="first %{x} tokens: %{y:.3g} nats<extra>%{fullData.name}</extra>",
        )
        num_prompts = values.get(f"info/{other_family.family}/num_prompts", np.nan)
        figure.add_scatter(
            x=[1.0, longest],
            y=[math.log(num_prompts) if num_prompts > 1 else np.nan] * 2,
            mode="lines",
            name=f"ceiling ln N, {name}",
            line={"color": color, "width": 1, "dash": "dot"},
            hovertemplate="ceiling ln N: %{y:.3g} nats<extra>%{fullData.name}</extra>",
            showlegend=False,
        )
        k = values.get(f"info/{other_family.family}/identification_length", np.nan)
        if np.isfinite(k):
            figure.add_scatter(
                x=[k],
                y=[np.interp(k, other_family.curve_k, other_family.curve)],
                mode="markers",
                name=f"identified, {name}",
                marker={"symbol": "diamond-open", "size": 13, "color": color, "line": {"width": 2}},
                hovertemplate=f"told apart after {k:.0f} tokens<extra>%{{fullData.name}}</extra>",
                showlegend=False,
            )
    ticks = 2.0 ** np.arange(int(np.ceil(np.log2(max(longest, 2.0)))) + 1)
    return _laid_out(
        figure,
        xaxis={
            "title": "tokens of the reasoning",
            "type": "log",
            "tickvals": ticks,
            "ticktext": [f"{tick:.0f}" for tick in ticks],
            "range": [-0.05, np.log10(longest * 1.1)],
        },
        yaxis={"title": "I(X; first k tokens), nats", "rangemode": "tozero"},
    )


def group_map(grid: pd.DataFrame) -> go.Figure:
    """Every group of every step: all fail, no spread, mixed (darker: more spread), all succeed."""
    figure = go.Figure()
    steps = np.sort(grid["step"].unique())
    ranks = np.arange(int(grid["rank"].max()) + 1)
    column_of = {step: column for column, step in enumerate(steps.tolist())}
    spreads = grid["reward_std"].fillna(0.0)
    top = float(spreads.max()) or 1.0
    for kind in GROUP_KINDS:
        part = grid[grid["kind"] == kind]
        label, color = _KINDS[kind]
        rows = part["rank"].to_numpy(), part["step"].map(column_of).to_numpy()
        spread = spreads[part.index].to_numpy() / top
        z = np.full((len(ranks), len(steps)), np.nan)
        z[rows] = 0.45 + 0.55 * spread if kind == "mixed" else 1.0
        text = np.full(z.shape, "", dtype=object)
        text[rows] = [
            f"group {index}: {label}, return {_shown(mean)}, reward std {_shown(std)}"
            for index, mean, std in zip(
                part["group_index"], part["return_mean"], part["reward_std"], strict=True
            )
        ]
        figure.add_heatmap(
            z=z,
            x=steps,
            y=ranks,
            text=text,
            zmin=0,
            zmax=1,
            colorscale=[[0, "rgba(127,127,127,0)"], [1, color]],
            showscale=False,
            hovertemplate="step %{x}, %{text}<extra></extra>",
            xgap=1 if len(steps) < 80 else 0,
            ygap=1,
        )
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=label,
            marker={"symbol": "square", "size": 10, "color": color},
        )
    return _laid_out(
        figure,
        xaxis={
            "title": "step",
            "showgrid": False,
            **({"tick0": 0, "dtick": 1} if len(steps) <= 8 else {}),
        },
        yaxis={"title": "groups", "showticklabels": False, "showgrid": False},
    )


def _shown(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.2f}"


def gradient_bars(table: pd.DataFrame) -> go.Figure:
    """Norm of every term's gradient by bucket of reward spread; the signal share on hover."""
    figure = go.Figure()
    terms = table[table["term"] != "total"]
    for color, term in zip(SERIES, terms["term"].unique().tolist(), strict=False):
        part = terms[terms["term"] == term]
        figure.add_bar(
            x=[bucket_words(name) for name in part["bucket"]],
            y=part["norm"],
            name=str(term),
            marker_color=color,
            customdata=part[["signal share", "cosine with the rest", "num_groups"]],
            hovertemplate="%{x}: norm %{y:.3g}<br>signal share %{customdata[0]:.2f}"
            "<br>cosine with the rest %{customdata[1]:.2f}<br>%{customdata[2]:.0f} groups"
            "<extra>%{fullData.name}</extra>",
        )
    return _laid_out(
        figure,
        barmode="group",
        yaxis={"title": "gradient norm", "rangemode": "tozero"},
    )


def bucket_words(name: str) -> str:
    """The bucket in plain words.

    >>> bucket_words("zero"), bucket_words("bucket_2"), bucket_words("all")
    ('no spread', 'spread 2', 'all groups')
    """
    names = {"zero": "no spread", "all": "all groups"}
    return names.get(name, name.replace("bucket_", "spread "))
