"""The frame of everything that a notebook draws: one style for light and dark, small curves.

Texts of runs are hostile: whoever builds HTML here escapes them first (`dashboard.escaping`).
Colours come from the notebook's own text colour, so that a card is readable on any background; the
few that differ by theme follow the marks that Jupyter, VS Code, Colab and MkDocs put on the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from echoscope.dashboard.replay import html as replay_html
from echoscope.dashboard.replay import tokens

_DARK = (
    "[data-jp-theme-light=false]",
    ".vscode-dark",
    "html[theme=dark]",
    "[data-theme=dark]",
    "[data-md-color-scheme=slate]",
)
_LIGHT = (
    "[data-jp-theme-light=true]",
    ".vscode-light",
    "html[theme=light]",
    "[data-theme=light]",
    "[data-md-color-scheme=default]",
)
STYLE = (
    "<style>"
    f"{','.join(f'{mark} .es-nb' for mark in _LIGHT)}{{color-scheme:light}}"
    f"{','.join(f'{mark} .es-nb' for mark in _DARK)}{{color-scheme:dark}}"
    ".es-nb{font:14px/1.5 system-ui,sans-serif;border:1px solid rgba(128,128,128,.35);"
    "border-radius:.5rem;padding:.7rem 1rem;max-width:62rem;text-align:left;margin:.2rem 0}"
    ".es-nb p{margin:.35rem 0}.es-nb pre{font-size:.88em;background:rgba(128,128,128,.14);"
    "border-radius:.25rem;margin:.3rem 0;padding:.35rem .6rem;color:inherit;white-space:pre-wrap;"
    "overflow-wrap:anywhere}"
    ".es-nb-title{font-size:1.15em;font-weight:650;overflow-wrap:anywhere}"
    ".es-nb-quiet{opacity:.72;font-size:.9em}"
    ".es-nb-verdict{border-left:5px solid;padding:.2rem .8rem;margin:.5rem 0;"
    "background:rgba(128,128,128,.08)}"
    ".es-nb-state{color:#fff;border-radius:.6rem;padding:.05rem .55rem;font-weight:650;"
    "white-space:nowrap}"
    ".es-nb-tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.6rem,1fr));"
    "gap:.5rem;margin:.6rem 0}"
    ".es-nb-tile{border:1px solid rgba(128,128,128,.3);border-radius:.4rem;padding:.35rem .6rem;"
    "min-width:0}.es-nb-tile b{display:block;font-size:1.05em;font-variant-numeric:tabular-nums;"
    "overflow-wrap:anywhere}"
    ".es-nb-tile span{display:block;font-size:.82em;opacity:.75;line-height:1.35}"
    ".es-nb-tile svg{display:block;width:100%;height:26px}"
    ".es-nb-tile.es-nb-proof{border-color:#c62828}"
    ".es-nb .es-ctl{border:1px solid currentColor;border-radius:3px;font-size:.8em;padding:0 3px;"
    "opacity:1}"
    ".es-nb ul{margin:.2rem 0 .2rem 1.2rem;padding:0}"
    ".es-nb dl{display:grid;grid-template-columns:fit-content(45%) minmax(0,1fr);gap:.3rem 1rem;"
    "margin:.4rem 0 0}"
    ".es-nb.es-nb dt{opacity:.72;font-weight:600;float:none;width:auto;overflow-wrap:anywhere}"
    ".es-nb.es-nb dd{margin:0;width:auto;min-width:0;overflow-wrap:anywhere}"
    ".es-nb table{border-collapse:collapse;font-size:.9em;margin:.4rem 0;width:100%;"
    "table-layout:auto}"
    ".es-nb.es-nb th,.es-nb.es-nb td{text-align:left;vertical-align:top;"
    "padding:.2rem .6rem .2rem 0;border-bottom:1px solid rgba(128,128,128,.25);"
    "overflow-wrap:anywhere}"
    ".es-nb th{opacity:.72;font-weight:600}"
    ".es-nb details{margin:.3rem 0}.es-nb summary{cursor:pointer}"
    ".es-nb .es-facts span{white-space:normal;overflow-wrap:anywhere}"
    ".es-nb .es-outside,.es-nb .es-tag,.es-nb .es-nl{"
    "color:color-mix(in srgb,currentColor 72%,transparent)}"
    ".es-nb .es-talk{height:auto;max-height:34rem;min-height:0}"
    "</style>"
)
REPLAY_STYLE = tokens.STYLE + replay_html.STYLE
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT = 100, 26


def framed(*parts: str, style: str = STYLE) -> str:
    """Parts of HTML, escaped already, as one card."""
    return f'{style}<div class="es-nb">{"".join(parts)}</div>'


def badge(words: str, color: str) -> str:
    """Escaped words in white on a colour, which is darkened until they can be read."""
    paper = f"color-mix(in srgb,{color} 80%,black)"
    return f'<span class="es-nb-state" style="background:{paper}">{words}</span>'


def curve_svg(values: Sequence[float | None]) -> str:
    """A small curve; nothing of fewer than two values, which have no course."""
    points = _heights(values)
    if len(points) < 2:
        return ""
    last = max(len(values) - 1, 1)
    places = " ".join(
        f"{1 + (_WIDTH - 2) * x / last:.1f},{_HEIGHT - 3 - (_HEIGHT - 6) * y:.1f}"
        for x, y in points
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline points="{places}" fill="none" stroke="#3b6fd4" stroke-width="1.8" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )


def curve_text(values: Sequence[float | None], width: int = 16) -> str:
    """The same in block characters, for a terminal.

    >>> curve_text([0.0, 0.5, 1.0, None, 0.0])
    '▁▅█ ▁'
    """
    heights = dict(_heights(values))
    count = len(values)
    sampled = [round(n * (count - 1) / (width - 1)) for n in range(width)]
    places = range(count) if count <= width else sampled
    return "".join(_BARS[round(heights[x] * 7)] if x in heights else " " for x in places).rstrip()


def _heights(values: Sequence[float | None]) -> list[tuple[int, float]]:
    """(place, height from 0 to 1) of the known values; a flat course lies in the middle."""
    finite = [(x, v) for x, v in enumerate(values) if v is not None and math.isfinite(v)]
    if not finite:
        return []
    low, high = min(v for _, v in finite), max(v for _, v in finite)
    if high == low:
        return [(x, 0.5) for x, _ in finite]
    return [(x, (v - low) / (high - low)) for x, v in finite]
