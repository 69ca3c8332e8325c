"""Words are readable on every page: level AA of the Web Content Accessibility Guidelines, 4.5:1."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from echoscope.dashboard.charts import compare, theme
from echoscope.dashboard.live import figures

LIGHT, DARK = theme.GROUNDS
COLOURS = sorted(
    {*theme.TONES.values(), *theme.SERIES, *compare.PALETTE, theme.QUIET, theme.CLAIM, theme.ACCENT}
)
"""In which names of curves, verdicts and statuses are written."""
SCRIPT = Path(figures.__file__).parent / "js" / "figures.js"


def contrast(first: str, other: str) -> float:
    """As the guidelines define it: of relative luminances, from 1 to 21."""

    def luminance(color: str) -> float:
        shares = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(first), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_the_formula_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("color", COLOURS)
def test_a_colour_as_text_is_readable_on_both_pages(color: str) -> None:
    on_light, on_dark = theme.as_text(color)
    assert contrast(on_light, LIGHT) >= 4.5
    assert contrast(on_dark, DARK) >= 4.5


@pytest.mark.parametrize("color", COLOURS)
def test_words_on_a_bar_are_readable(color: str) -> None:
    assert contrast({"black": "#000000", "white": "#ffffff"}[theme.on(color)], color) >= 4.5


def test_a_readable_colour_stays_as_it_is() -> None:
    assert theme.as_text("#000000")[0] == "#000000"
    assert theme.as_text("#56b4e9")[1] == "#56b4e9"


def test_words_without_a_colour_of_their_own_are_readable_on_both_pages() -> None:
    """Numbers of axes, titles and legends; the browser writes them."""
    dark, light = re.findall(r'\["(#\w+)", "(#\w+)", "#\w+"\]', SCRIPT.read_text("utf-8"))
    assert all(contrast(color, DARK) >= 4.5 for color in dark)
    assert all(contrast(color, LIGHT) >= 4.5 for color in light)


def sent_layout(figure: dict[str, Any]) -> dict[str, Any]:
    _, spec = figures.sent(figure, alt="a figure", name="figure").decode().split("\n")
    layout: dict[str, Any] = json.loads(spec)["layout"]
    return layout


def test_a_figure_brings_the_colours_of_its_words_for_both_pages() -> None:
    note = {"text": "a", "font": {"color": theme.SERIES[3], "size": 11}}
    trace = {"type": "scatter", "textfont": {"color": theme.SERIES[1]}}
    layout = {"annotations": [note, {"text": "b"}, {"text": "c", "font": {"size": 9}}]}
    colors = (theme.SERIES[1], theme.SERIES[3])
    meta = sent_layout({"data": [trace, {}], "layout": layout})["meta"]
    assert meta["words"] == {c: list(theme.as_text(c)) for c in colors}
    assert "meta" not in sent_layout({"data": [], "layout": {}})
