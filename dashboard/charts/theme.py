"""Colours of the dashboard, readable on a light and on a dark background.

Series are Okabe and Ito's palette without its yellow, which vanishes on white; meaning is never
carried by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from echoscope.diagnostics.judge.claims import Fate
from echoscope.diagnostics.judge.record import Verdict

from ..words import Colour

ACCENT = "#3b6fd4"
"""The one accent: links, the selected item, the primary button."""
ACCENT_ON_DARK = "#6f9bee"
SERIES = ("#3b6fd4", "#d55e00", "#009e73", "#cc79a7", "#8c6d31", "#56b4e9", "#7a7a7a", "#6a3d9a")
"""Runs on one chart, terms on one chart: in this order."""
RAW_OPACITY = 0.25
"""A raw curve behind its smoothed one."""
TONES: Mapping[Colour, str] = {
    "green": "#1b8a5a",
    "orange": "#c77700",
    "red": "#c62828",
    "blue": ACCENT,
    "gray": "#7a7a7a",
}
"""What a colour means, as Streamlit names it -> how it is drawn."""
SEVERITY_TONES: Mapping[str, Colour] = {"info": "gray", "warning": "orange", "critical": "red"}
"""Of an alarm."""
STATE_TONES: Mapping[str, Colour] = {
    "healthy": "green",
    "converged": "green",
    "watch": "orange",
    "recovering": "orange",
    "collapsing": "red",
    "collapsed": "red",
    "not learning": "red",
    "insufficient evidence": "gray",
    "evaluation": "gray",
}
"""Of a verdict."""
STATUS_TONES: Mapping[str, Colour] = {
    "running": "blue",
    "finished": "green",
    "stopped": "orange",
    "interrupted": "orange",
    "failed": "red",
    "crashed": "red",
}
"""Of a run, in the table of runs."""
SEVERITIES = {name: TONES[tone] for name, tone in SEVERITY_TONES.items()}
STATES = {name: TONES[tone] for name, tone in STATE_TONES.items()}


def shown_state(verdict: Verdict) -> str:
    """The state in whose colour a verdict is shown: a run that crashed or waits is never green."""
    is_green = STATE_TONES[verdict.state.value] == "green"
    has_fate = any(isinstance(claim, Fate) for claim in verdict.claims)
    return "watch" if is_green and has_fate else verdict.state.value


REGIMES: Mapping[str, str] = {
    "diverse": "#009e73",
    "compressed": "#56b4e9",
    "template_collapse": "#d55e00",
    "low_entropy_collapse": "#cc79a7",
    "undetermined": "#7a7a7a",
}
GRID = "rgba(128,128,128,0.18)"
CLAIM = "#b08900"
"""What a verdict claims of a curve."""
COMMAND_MARK = TONES["gray"]
"""Lines and signs where somebody steered."""


def onset_shape(low: float, high: float) -> dict[str, Any]:
    """A shaded stretch behind curves, where a change may have begun; at least a line wide."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": low,
        "x1": high,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "fillcolor": SEVERITIES["critical"],
        "opacity": 0.14,
        "line": {"width": 1, "color": SEVERITIES["critical"]},
        "label": {"text": "began", "textposition": "bottom left", "font": {"size": 10}},
    }
