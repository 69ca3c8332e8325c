"""Figures of the page System: bars of what a step's seconds were spent on. Pure.

Their titles and legend stand beside them, where a telephone can break the lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from echoscope.text.amounts import percent

from ..data.progress import REST, Shares
from . import theme
from .parts import CLEAR, Spec, Trace, figure_text

_BAR, _AXIS = 34, 40
"""Pixels of a bar and of the axis below."""
_LEAST_WORDS = 0.06
"""Of the bar: a part that is smaller is told by hovering alone."""


def phase_colors(shares: Shares) -> Mapping[str, str]:
    """A colour for each part, grey for the rest."""
    colors = dict(zip(shares.seconds, theme.SERIES, strict=False))
    return {**colors, REST: theme.COMMAND_MARK} if REST in colors else colors


def phases_spec(shares: Shares) -> Spec:
    """One bar: the phases of a step, in order."""
    colors = phase_colors(shares)
    data = [
        _bar(name, seconds, shares.total, color=colors[name], is_named=False)
        for name, seconds in shares.seconds.items()
    ]
    return {"data": data, "layout": _layout(1)}


def waits_spec(shares: Shares) -> Spec:
    """A bar for each who waits: its share of the collection."""
    data = [
        _bar(name, seconds, shares.total, color=theme.ACCENT, is_named=True)
        for name, seconds in shares.seconds.items()
    ]
    return {"data": data, "layout": _layout(len(data))}


def _bar(name: str, seconds: float, total: float, *, color: str, is_named: bool) -> Trace:
    """A part of one bar, or, where it is named, a bar of its own."""
    share = seconds / total
    bar_label = (
        f"{name}: {percent(share)}" if is_named else percent(share) * (share >= _LEAST_WORDS)
    )
    hover = f"{figure_text(name)}: {seconds:.3g} s, {percent(share, 1)}<extra></extra>"
    return {
        "type": "bar",
        "orientation": "h",
        "x": [100 * share],
        "y": [name if is_named else ""],
        "name": name,
        "marker": {"color": color},
        "text": [bar_label],
        "textposition": "auto" if is_named else "inside",
        "insidetextanchor": "start" if is_named else "middle",
        "textangle": 0,
        "insidetextfont": {"color": theme.on(color)},
        "hovertemplate": hover,
    }


def _layout(num_bars: int) -> dict[str, Any]:
    return {
        "height": _AXIS + _BAR * num_bars,
        "barmode": "stack",
        "margin": {"l": 8, "r": 8, "t": 4, "b": 8},
        "xaxis": {"range": [0, 100], "ticksuffix": " %", "automargin": True, "nticks": 6},
        "yaxis": {"visible": False, "autorange": "reversed"},
        "showlegend": False,
        **CLEAR,
    }
