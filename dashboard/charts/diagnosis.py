"""Figures of the Diagnosis page: pure, from tables to plotly's data and layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..data.diagnosis import Curves
from .parts import SILENT, Spec, Trace, note, scatter, whiskers
from .theme import ACCENT, OUTCOMES, SERIES

HEIGHT = 340
_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
"""Grows upwards: plotly makes room for as many rows as a narrow chart needs, above the curves."""
_QUIET = "rgba(127,127,127,0.35)"
_REGIMES: Mapping[str, tuple[str, str, str, str]] = {
    "diverse": ("diverse reasoning", "circle", "#009e73", "right top"),
    "compressed": ("compressed", "square", "#56b4e9", "left top"),
    "template_collapse": ("template collapse", "triangle-down", "#d55e00", "right bottom"),
    "low_entropy_collapse": ("low-entropy collapse", "diamond", "#cc79a7", "left bottom"),
    "undetermined": ("undetermined", "circle-open", "", ""),
}
"""Words, symbol, and colour and corner in the plane of H(Z|X) and dependence on the prompt."""
_KINDS = {
    "hopeless": ("all fail", OUTCOMES["hopeless"]),
    "constant": ("no spread", "#8a8a8a"),
    "mixed": ("mixed", OUTCOMES["mixed"]),
    "solved": ("all succeed", OUTCOMES["solved"]),
}


def _laid_out(data: Sequence[Trace], *, height: int = HEIGHT, **layout: Any) -> Spec:
    margin = {"l": 10, "r": 10, "t": 10, "b": 10}
    return {
        "data": [*data],
        "layout": {"height": height, "margin": margin, "legend": _LEGEND, **layout},
    }


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def regime_plane(
    points: pd.DataFrame, borders: tuple[float, float], *, selected: int | None = None
) -> Spec:
    """The run's way over the plane: H(Z|X) to the right, dependence on the prompt upwards.

    Args:
        points, borders: What `regime_path` gives.
    """
    right = 1.15 * max(points["entropy_high"].max(), 2.2 * borders[0])
    top = max(1.0, 1.05 * points["dependence_high"].max())
    x, y = (points[name].to_numpy(np.float64) for name in ("entropy", "dependence"))
    names = [_REGIMES[name][0] for name in points["regime"]]
    step = points["step"].iloc[-1] if selected is None else selected
    current = points.iloc[int((points["step"] - step).abs().to_numpy().argmin())]
    data = [
        scatter(x=x, y=y, mode="lines", line={"color": _QUIET, "width": 1.5}, **SILENT),
        scatter(
            x=x,
            y=y,
            mode="markers",
            marker={
                "size": 9,
                "symbol": [_REGIMES[name][1] for name in points["regime"]],
                "color": points["step"].to_numpy(np.float64),
                "colorscale": "Cividis",
                "colorbar": {"title": {"text": "step"}, "thickness": 10, "len": 0.9},
                "line": {"width": 1, "color": "rgba(150,150,150,0.95)"},
            },
            customdata=[*zip(points["step"], names, strict=True)],
            hovertemplate="step %{customdata[0]}: %{customdata[1]}<br>H(Z|X) %{x:.3g} nats per "
            "token<br>dependence %{y:.2f}<extra></extra>",
            showlegend=False,
        ),
        scatter(
            x=np.array([current["entropy"]]),
            y=np.array([current["dependence"]]),
            mode="markers",
            marker={"size": 15, "symbol": "circle-open", "line": {"width": 2.5}, "color": ACCENT},
            error_x=_bars(current, "entropy"),
            error_y=_bars(current, "dependence"),
            **SILENT,
        ),
    ]
    return _laid_out(
        data,
        height=HEIGHT + 60,
        xaxis=_axis("H(Z|X), nats per token", range=[0, right], zeroline=False),
        yaxis=_axis("dependence on the prompt", range=[-0.06, top], zeroline=False),
        **_quadrants(borders, right, top),
    )


def _bars(row: pd.Series[float], name: str) -> dict[str, object]:
    value = row[name]
    low, high = min(value, row[f"{name}_low"]), max(value, row[f"{name}_high"])
    ends = (np.array([number]) for number in (value, low, high))
    return whiskers(*ends, color=ACCENT, thickness=1.2)


def _quadrants(borders: tuple[float, float], right: float, top: float) -> Spec:
    """The four regimes behind the points, each with its name."""
    x, y = borders
    shapes, notes = [], []
    for name, _, color, corner in _REGIMES.values():
        if not corner:
            continue
        is_left, is_top = "left" in corner, "top" in corner
        x0, x1 = (0.0, x) if is_left else (x, right)
        y0, y1 = (y, top) if is_top else (-0.06, y)
        look = {"fillcolor": color, "opacity": 0.10, "line": {"width": 0}}
        ends = {"x0": x0, "x1": x1, "y0": y0, "y1": y1}
        shapes.append({"type": "rect", "layer": "below", **ends, **look})
        position = x0 if is_left else x1, y1 if is_top else y0
        notes.append(note(name, position, corner, opacity=0.75))
    return {"shapes": shapes, "annotations": notes}


def information_figure(curves: Curves, values: Mapping[str, float]) -> Spec:
    """I(X; first k tokens): where in the reasoning the prompt comes in.

    Args:
        values: `info/...` metrics of the step: how many prompts there were, and after how many
            tokens they can be told apart.
    """
    longest = max((float(tokens[-1]) for tokens, _ in curves.values()), default=1.0)
    data = []
    for color, (family, (tokens, curve)) in zip(SERIES, curves.items(), strict=False):
        name = family.replace("_", " ")
        num_prompts = values.get(f"info/{family}/num_prompts", np.nan)
        ceiling = math.log(num_prompts) if num_prompts > 1 else np.nan
        data += [
            scatter(
                x=tokens,
                y=curve,
                mode="lines+markers",
                name=name,
                line={"color": color, "width": 2},
                hovertemplate="first %{x} tokens: %{y:.3g} nats<extra>%{fullData.name}</extra>",
            ),
            scatter(
                x=np.array([1.0, longest]),
                y=np.array([ceiling, ceiling]),
                mode="lines",
                name=f"ceiling ln N, {name}",
                line={"color": color, "width": 1, "dash": "dot"},
                hovertemplate="ceiling ln N: %{y:.3g} nats<extra>%{fullData.name}</extra>",
                showlegend=False,
            ),
        ]
        k = values.get(f"info/{family}/identification_length", np.nan)
        if np.isfinite(k):
            look = {"symbol": "diamond-open", "size": 13, "color": color, "line": {"width": 2}}
            data.append(
                scatter(
                    x=np.array([k]),
                    y=np.array([np.interp(k, tokens, curve)]),
                    mode="markers",
                    name=f"identified, {name}",
                    marker=look,
                    hovertemplate=f"told apart after {k:.0f} tokens"
                    "<extra>%{fullData.name}</extra>",
                    showlegend=False,
                )
            )
    ticks = 2.0 ** np.arange(int(np.ceil(np.log2(max(longest, 2.0)))) + 1)
    return _laid_out(
        data,
        xaxis=_axis(
            "tokens of the reasoning",
            type="log",
            tickvals=ticks,
            ticktext=[f"{tick:.0f}" for tick in ticks],
            range=[-0.05, float(np.log10(longest * 1.1))],
        ),
        yaxis=_axis("I(X; first k tokens), nats", rangemode="tozero"),
    )


def group_map(grid: pd.DataFrame) -> Spec:
    """Every group of every step: all fail, no spread, mixed (darker: more spread), all succeed."""
    data: list[Trace] = []
    steps = np.sort(grid["step"].unique())
    ranks = np.arange(int(grid["rank"].max()) + 1)
    column_of = {step: column for column, step in enumerate(steps.tolist())}
    spreads = grid["reward_std"].fillna(0.0)
    top = float(spreads.max()) or 1.0
    for kind, (label, color) in _KINDS.items():
        part = grid[grid["kind"] == kind]
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
        data += [
            {
                "type": "heatmap",
                "z": z,
                "x": steps,
                "y": ranks,
                "text": text,
                "zmin": 0,
                "zmax": 1,
                "colorscale": [[0, "rgba(127,127,127,0)"], [1, color]],
                "showscale": False,
                "hovertemplate": "step %{x}, %{text}<extra></extra>",
                "xgap": 1 if len(steps) < 80 else 0,
                "ygap": 1,
            },
            scatter(
                x=[None],
                y=[None],
                mode="markers",
                name=label,
                marker={"symbol": "square", "size": 10, "color": color},
            ),
        ]
    whole = {"tick0": 0, "dtick": 1} if len(steps) <= 8 else {}
    return _laid_out(
        data,
        xaxis=_axis("step", showgrid=False, **whole),
        yaxis=_axis("groups", showticklabels=False, showgrid=False),
    )


def _shown(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.2f}"


def gradient_bars(table: pd.DataFrame) -> Spec:
    """Norm of every term's gradient by bucket of reward spread; the signal share on hover."""
    terms = table[table["term"] != "total"]
    data = []
    for color, term in zip(SERIES, terms["term"].unique().tolist(), strict=False):
        part = terms[terms["term"] == term]
        about = part[["signal share", "cosine with the rest", "num_groups"]]
        data.append(
            {
                "type": "bar",
                "x": [bucket_words(name) for name in part["bucket"]],
                "y": part["norm"].to_numpy(np.float64),
                "name": str(term),
                "marker": {"color": color},
                "customdata": about.to_numpy(np.float64),
                "hovertemplate": "%{x}: norm %{y:.3g}<br>signal share %{customdata[0]:.2f}"
                "<br>cosine with the rest %{customdata[1]:.2f}<br>%{customdata[2]:.0f} groups"
                "<extra>%{fullData.name}</extra>",
            }
        )
    return _laid_out(data, barmode="group", yaxis=_axis("gradient norm", rangemode="tozero"))


def bucket_words(name: str) -> str:
    """The bucket in plain words.

    >>> bucket_words("zero"), bucket_words("bucket_2"), bucket_words("all")
    ('no spread', 'spread 2', 'all groups')
    """
    names = {"zero": "no spread", "all": "all groups"}
    return names.get(name, name.replace("bucket_", "spread "))
