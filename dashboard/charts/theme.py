"""Colours of the dashboard, readable on a light and on a dark background.

Series are Okabe and Ito's palette without its yellow, which vanishes on white; meaning is never
carried by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from echoscope.diagnostics.judge.claims import Fate
from echoscope.diagnostics.judge.record import Verdict

ACCENT = "#3b6fd4"
"""The one accent: links, the selected item, the primary button."""
ACCENT_ON_DARK = "#6f9bee"
SERIES = ("#3b6fd4", "#d55e00", "#009e73", "#cc79a7", "#8c6d31", "#56b4e9", "#7a7a7a", "#6a3d9a")
"""Runs on one chart, terms on one chart: in this order."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""Runs beyond the last colour begin the colours again with the next dash."""


def style_of(place: int) -> tuple[str, str]:
    """Colour and dash of the run at a place of the list: no two alike among the first 32.

    >>> style_of(0), style_of(8)
    (('#3b6fd4', 'solid'), ('#3b6fd4', 'dash'))
    """
    return SERIES[place % len(SERIES)], DASHES[place // len(SERIES) % len(DASHES)]


RAW_OPACITY = 0.25
"""A raw curve behind its smoothed one."""
SEVERITIES: Mapping[str, str] = {"info": "#7a7a7a", "warning": "#c77700", "critical": "#c62828"}
STATES: Mapping[str, str] = {
    "healthy": "#1b8a5a",
    "converged": "#1b8a5a",
    "watch": "#c77700",
    "recovering": "#c77700",
    "collapsing": "#c62828",
    "collapsed": "#c62828",
    "not learning": "#c62828",
    "insufficient evidence": "#7a7a7a",
}
"""Of a verdict."""


def shown_state(verdict: Verdict) -> str:
    """The state in whose colour a verdict is shown: a run that crashed or waits is never green."""
    is_green = STATES[verdict.state.value] == STATES["healthy"]
    has_fate = any(isinstance(claim, Fate) for claim in verdict.claims)
    return "watch" if is_green and has_fate else verdict.state.value


REGIMES: Mapping[str, str] = {
    "diverse": "#009e73",
    "compressed": "#56b4e9",
    "template_collapse": "#d55e00",
    "low_entropy_collapse": "#cc79a7",
    "undetermined": "#7a7a7a",
}
STATUSES: Mapping[str, str] = {
    "running": "#3b6fd4",
    "finished": "#1b8a5a",
    "stopped": "#c77700",
    "interrupted": "#c77700",
    "failed": "#c62828",
    "crashed": "#c62828",
}
"""Of a run."""
COMMAND_MARK = "#7a7a7a"
"""Lines and signs where somebody steered."""
