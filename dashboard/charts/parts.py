"""Parts that figures share, as plotly takes them: text, notes, dots, lines, whiskers. Pure."""

from __future__ import annotations

import textwrap
from typing import Any

from ..escaping import visible
from . import theme

Trace = dict[str, Any]
Spec = dict[str, Any]
"""A figure's `data` and `layout`."""
CLEAR = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
"""Of a layout: the ground of the page shines through."""
SILENT = {"hoverinfo": "skip", "showlegend": False}
"""Of a trace that only shows."""
_HOVER_WIDTH = 36
"""Characters a line of what hovering shows, so that it fits beside the cursor."""


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


def figure_label(text: str) -> str:
    """Foreign text as the name of a curve or of a row: one short line."""
    return figure_text(text, width=200, limit=80)


def scatter(**props: Any) -> Trace:
    """A trace of plotly, as it is: checking each property takes longer than all the rest."""
    return {"type": "scatter", **props}


def whiskers(values: Any, low: Any, high: Any, **look: Any) -> dict[str, Any]:
    """Intervals around values, as `error_x` or `error_y` of a trace; arrays of the same shape."""
    ends = {"array": high - values, "arrayminus": values - low}
    return {"type": "data", "symmetric": False, **ends, **look}


def note(
    text: str,
    at: tuple[float, float],
    anchor: str = "center middle",
    *,
    paper: str = "",
    shift: tuple[float, float] = (0, 0),
    size: float = theme.LABEL_PX,
    color: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Words on a figure.

    Args:
        text: As plotly reads it: foreign words went through `figure_text`.
        anchor: Which point of the words stands at the place, to the right or left and up or down:
            `left bottom`.
        paper: Directions of `at` that are shares of the plot and not values: `x`, `y` or `xy`.
        shift: Pixels to the right and upwards.
    """
    xanchor, yanchor = anchor.split()
    return {
        "text": text,
        "x": at[0],
        "y": at[1],
        "xref": "paper" if "x" in paper else "x",
        "yref": "paper" if "y" in paper else "y",
        "xanchor": xanchor,
        "yanchor": yanchor,
        "xshift": shift[0],
        "yshift": shift[1],
        "showarrow": False,
        "font": {"size": size} | ({"color": color} if color else {}),
        **more,
    }
