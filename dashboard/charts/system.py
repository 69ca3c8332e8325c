"""Figures of the page System: bars of what a step's seconds were spent on. Pure.

Their titles and legend stand beside them, where a telephone can break the lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from echoscope.text.amounts import percent

from ..data.progress import REST, Shares
from . import theme
from .parts import CLEAR, Spec, figure_text

_BAR, _AXIS = 34, 40
"""Pixels of a bar and of the axis below."""
_LEAST_WORDS = 0.06
"""Of the bar: a part that is smaller is told by hovering alone."""


def phase_colors(shares: Shares) -> Mapping[str, str]:
    """A colour for each part, grey for the rest."""
    colors = dict(zip(shares.seconds, theme.SERIES, strict=False))
    return {**colors, REST: theme.COMMAND_MARK} if REST in colors else colors


def shares_spec(shares: Shares, colors: Mapping[str, str]) -> Spec:
    """One bar of parts, in order; without their colours, a bar for each part with its name."""
    is_named = not colors
    colors = colors or dict.fromkeys(shares.seconds, theme.ACCENT)
    data = []
    for name, seconds in shares.seconds.items():
        share = seconds / shares.total
        label = f"{name}: {percent(share)}" if is_named else percent(share)
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "x": [100 * share],
                "y": [name if is_named else ""],
                "name": name,
                "marker": {"color": colors[name]},
                "text": [label if is_named or share >= _LEAST_WORDS else ""],
                "textposition": "auto" if is_named else "inside",
                "insidetextanchor": "start" if is_named else "middle",
                "textangle": 0,
                "insidetextfont": {"color": theme.on(colors[name])},
                "hovertemplate": f"{figure_text(name)}: {seconds:.3g} s, {percent(share, 1)}"
                "<extra></extra>",
            }
        )
    layout = {
        "height": _AXIS + _BAR * (len(data) if is_named else 1),
        "barmode": "stack",
        "margin": {"l": 8, "r": 8, "t": 4, "b": 8},
        "xaxis": {"range": [0, 100], "ticksuffix": " %", "automargin": True, "nticks": 6},
        "yaxis": {"visible": False, "autorange": "reversed"},
        "showlegend": False,
        **CLEAR,
    }
    return {"data": data, "layout": layout}
