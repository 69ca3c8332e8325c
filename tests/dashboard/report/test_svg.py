"""Figures as SVG: what stands where, in words of the page's colour, and nothing that acts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from echoscope.dashboard.report.svg import HEIGHT, WIDTH, picture

HOSTILE = '</svg><script>alert(1)</script><img src=x onerror=alert(2)>"'


def drawn(figure: Any, alt: str = "a chart") -> ET.Element:
    """Parsed as XML, so it is whole."""
    return ET.fromstring(picture(figure, alt))


def spec(*traces: dict[str, Any], **layout: Any) -> dict[str, Any]:
    return {"data": list(traces), "layout": {"height": HEIGHT, **layout}}


def line(x: list[float], y: list[float | None], **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": "a", **more}


def texts(svg: ET.Element) -> list[str]:
    return ["".join(element.itertext()) for element in svg.iter("text")]


def test_a_line_goes_through_its_points_and_breaks_where_one_is_missing() -> None:
    axes = {"xaxis": {"range": [0, 4]}, "yaxis": {"range": [0, 1]}}
    svg = drawn(spec(line([0, 1, 2, 3, 4], [0, 1, None, 1, 0]), **axes))
    (path,) = svg.iter("path")
    numbers = re.findall(r"([ML])([\d.]+) ([\d.]+)", path.attrib["d"])
    assert [letter for letter, _, _ in numbers] == ["M", "L", "M", "L"]
    across = [float(x) for _, x, _ in numbers]
    assert across[1] - across[0] == pytest.approx(across[3] - across[2], abs=0.1)
    assert float(numbers[0][2]) > float(numbers[1][2])  # zero is below one
    assert all(0 <= x <= WIDTH for x in across)


def test_axes_have_round_numbers_and_shares_are_percentages() -> None:
    svg = drawn(spec(line([0, 40], [0.0, 1.0]), yaxis={"tickformat": ".2~%"}))
    assert {"0%", "50%", "100%", "0", "20", "40"} <= set(texts(svg))


def test_dots_have_whiskers_and_say_what_they_are() -> None:
    dots = line([1, 2], [0.5, 0.25], mode="markers", name="evaluation")
    dots["error_y"] = {"array": [0.1, 0.1], "arrayminus": [0.2, 0.1], "color": "#123456"}
    svg = drawn(spec(dots))
    assert [circle[0].text for circle in svg.iter("circle")] == [
        "evaluation 1: 0.5",
        "evaluation 2: 0.25",
    ]
    assert [path.attrib["stroke"] for path in svg.iter("path")] == ["#123456"] * 2


def test_cells_and_bars_are_drawn() -> None:
    cells = {
        "type": "heatmap",
        "z": np.array([[1.0, np.nan], [0.5, 0.25]]),
        "x": np.array([1, 2]),
        "y": np.array([0, 1]),
        "colorscale": [[0, "white"], [1, "#3b6fd4"]],
    }
    bars = {"type": "bar", "x": ["low", "high"], "y": np.array([1.0, 2.0]), "name": "policy"}
    figure = spec(cells, bars)
    boxes = [box for box in drawn(figure).iter("rect") if box.attrib.get("fill") == "#3b6fd4"]
    assert [cell.attrib["opacity"] for cell in boxes if "opacity" in cell.attrib] == [
        "1.00",
        "0.50",
        "0.25",
    ]


@pytest.mark.parametrize("field", ["name", "text", "color"])
def test_hostile_text_stays_text(field: str) -> None:
    dots = line([1], [1], mode="markers", hovertemplate="%{text}", showlegend=True)
    dots |= {field: HOSTILE} if field != "color" else {"marker": {"color": HOSTILE}}
    note = {"text": HOSTILE, "x": 0, "y": 1, "xref": "paper", "yref": "paper"}
    svg = drawn(spec(dots, annotations=[note]), alt=HOSTILE)
    names = {element.tag for element in svg.iter()}
    assert names <= {"svg", "text", "tspan", "line", "rect", "circle", "title"}
    assert not [key for element in svg.iter() for key in element.attrib if key.startswith("on")]


def test_nothing_measured_is_an_empty_frame() -> None:
    svg = drawn(spec(line([], [])))
    assert list(svg.iter("path")) == []
