"""The frame of everything that a notebook draws: one style for light and dark, small curves.

Texts of runs are hostile: whoever builds HTML here escapes them first (`dashboard.escaping`).
Colours come from the notebook's own text colour, so that a card is readable on any background; the
few that differ by theme follow the marks that Jupyter, VS Code, Colab and MkDocs put on the page.
"""

from __future__ import annotations

from collections.abc import Sequence

from echoscope.dashboard.report import verdict_html

_MARKS = {
    "light": (
        *("[data-jp-theme-light=true]", ".vscode-light", "html[theme=light]"),
        *("[data-theme=light]", "[data-md-color-scheme=default]"),
    ),
    "dark": (
        *("[data-jp-theme-light=false]", ".vscode-dark", "html[theme=dark]"),
        *("[data-theme=dark]", "[data-md-color-scheme=slate]"),
    ),
}
_SCHEMES = "".join(
    f"{','.join(f'{mark} .es-nb' for mark in marks)}{{color-scheme:{scheme}}}"
    for scheme, marks in _MARKS.items()
)
STYLE = (
    f"{verdict_html.STYLE}<style>{_SCHEMES}"
    ".es-nb{font:14px/1.5 system-ui,sans-serif;border:1px solid rgba(128,128,128,.35);"
    "border-radius:.5rem;padding:.7rem 1rem;max-width:62rem;text-align:left;margin:.2rem 0}"
    ".es-nb p{margin:.35rem 0}"
    ".es-nb-title{font-size:1.15em;font-weight:650;overflow-wrap:anywhere}"
    ".es-nb-tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.6rem,1fr));"
    "gap:.5rem;margin:.6rem 0}"
    ".es-nb-tile{border:1px solid rgba(128,128,128,.3);border-radius:.4rem;padding:.35rem .6rem;"
    "min-width:0}.es-nb-tile b{display:block;font-size:1.05em;overflow-wrap:anywhere}"
    ".es-nb-tile span{display:block;font-size:.82em;opacity:.75;line-height:1.35}"
    ".es-nb-tile svg{display:block;width:100%;height:26px}"
    ".es-nb .es-ctl{border:1px solid currentColor;border-radius:3px;font-size:.8em;padding:0 3px;"
    "opacity:1}"
    ".es-nb .es-facts span{white-space:normal;overflow-wrap:anywhere}"
    ".es-nb .es-outside,.es-nb .es-tag,.es-nb .es-nl{"
    "color:color-mix(in srgb,currentColor 72%,transparent)}"
    ".es-nb .es-talk{height:auto;max-height:34rem;min-height:0}"
    "</style>"
)
_WIDTH, _HEIGHT = 100, 26


def framed(*parts: str, style: str = STYLE) -> str:
    """Parts of HTML, escaped already, as one card."""
    return f'{style}<div class="es-nb">{"".join(parts)}</div>'


def curve_svg(values: Sequence[float]) -> str:
    """A small curve; nothing of fewer than two values, which have no course."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    points = " ".join(
        f"{1 + (_WIDTH - 2) * index / (len(values) - 1):.1f},"
        f"{_HEIGHT - 3 - (_HEIGHT - 6) * ((v - low) / (high - low) if high > low else 0.5):.1f}"
        for index, v in enumerate(values)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline points="{points}" fill="none" stroke="#3b6fd4" stroke-width="1.8" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )
