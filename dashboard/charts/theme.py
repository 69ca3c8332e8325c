"""Colours of the dashboard, readable on a light and on a dark background.

Series are Okabe and Ito's palette without its yellow, which vanishes on white; meaning is never
carried by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from echoscope.diagnostics.judge.alarms import COLLAPSED_IN_PART
from echoscope.diagnostics.judge.claims import Fate
from echoscope.diagnostics.judge.record import Verdict

from ..words import Colour

ACCENT = "#3b6fd4"
"""The one accent: links, the selected item, the primary button."""
ACCENT_ON_DARK = "#6f9bee"
SERIES = ("#3b6fd4", "#d55e00", "#009e73", "#cc79a7", "#8c6d31", "#56b4e9", "#7a7a7a", "#6a3d9a")
"""Runs on one chart, terms on one chart: in this order."""
SPACE_PX = 8
"""The unit of all distances: they are one, two or three of it, or half of it within a group."""
TITLE_PX, LABEL_PX = 14, 11
"""Sizes of text on a chart: of its title, and of everything else."""
CHART_HEIGHT = 232
AXIS_PX = 52
"""The column at the left of a chart that holds the numbers of its y axis."""
TITLE_ROW_PX, AXIS_ROW_PX = 28, 24
"""The rows above and below the curves of a chart."""
QUIET = "#7a7a7a"
"""Words that only help to read the others."""
FIXED_TASKS = "#d55e00"
"""What is measured on tasks that never train, on every chart."""
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
    COLLAPSED_IN_PART: "red",
    "collapsed": "red",
    "not learning": "red",
    "insufficient evidence": "gray",
    "evaluation": "gray",
}
"""Of a verdict."""
SEVERITIES = {name: TONES[tone] for name, tone in SEVERITY_TONES.items()}


GROUNDS = ("#ffffff", "#171614")
"""Of a light and of a dark page, as Streamlit has them."""
LEAST_CONTRAST = 4.5
"""Of text against its ground: level AA of the Web Content Accessibility Guidelines."""


@cache
def as_text(color: str) -> tuple[str, str]:
    """A colour in which words are readable on a light page, and one for a dark page.

    Each is as near to it as the contrast allows.

    >>> as_text("#6a3d9a"), as_text("#56b4e9")
    (('#6a3d9a', '#9271b5'), ('#3b7ca1', '#56b4e9'))
    """
    light, dark = GROUNDS
    return _towards(color, "#000000", light), _towards(color, "#ffffff", dark)


def _towards(color: str, end: str, ground: str) -> str:
    """The first mixture with a colour at the end of the scale that is readable on a ground."""
    mixed = color
    for percent in range(101):
        pairs = zip(_channels(color), _channels(end), strict=True)
        mixed = "#" + "".join(f"{round(c + (e - c) * percent / 100):02x}" for c, e in pairs)
        if _contrast(mixed, ground) >= LEAST_CONTRAST:
            break
    return mixed


def on(color: str) -> str:
    """Black or white, whichever is the more readable on a colour."""
    inks = {"black": "#000000", "white": "#ffffff"}
    return max(inks, key=lambda word: _contrast(inks[word], color))


def _channels(color: str) -> list[int]:
    return [int(color[n : n + 2], 16) for n in (1, 3, 5)]


def _contrast(color: str, other: str) -> float:
    low, high = sorted((_luminance(color), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    shares = [channel / 255 for channel in _channels(color)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def style_sheet(css: Path) -> str:
    """A file as the element of a page; in one line, because boards bring theirs along."""
    return f"<style>{' '.join(css.read_text(encoding='utf-8').split())}</style>"


def icon(colour: Colour) -> str:
    """A dot for the tab of a browser, as SVG."""
    circle = f'<circle cx="16" cy="16" r="12" fill="{TONES[colour]}"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">{circle}</svg>'


def shown_state(verdict: Verdict) -> str:
    """The state in whose colour a verdict is shown: a run that crashed or waits is never green."""
    is_green = STATE_TONES[verdict.state.value] == "green"
    has_fate = any(isinstance(claim, Fate) for claim in verdict.claims)
    return "watch" if is_green and has_fate else verdict.state.value


GRID, LINE = "rgba(128,128,128,0.18)", "rgba(128,128,128,0.45)"
CLAIM = "#b08900"
"""What a verdict claims of a curve."""
OUTCOMES: Mapping[str, str] = {
    "solved": TONES["green"],
    "hopeless": "#b2543c",
    "mixed": ACCENT,
}
"""Of the episodes of a group, on every page: all succeed, all fail, or some do."""
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
