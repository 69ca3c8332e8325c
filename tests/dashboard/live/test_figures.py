"""Figures as they are sent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from echoscope.dashboard.live import figures


def lines(figure: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is said about a figure that is sent, and the figure."""
    head, spec = figures.sent(figure, alt="a figure", name="figure").decode().split("\n")
    return json.loads(head), json.loads(spec)


def test_a_drawing_has_the_data_and_leaves_the_look_to_the_page() -> None:
    look = {"height": 260, "hovermode": "closest", "template": {"layout": {}}}
    head, spec = lines({"data": [{"x": [1, 2], "y": [3, None]}], "layout": look})
    assert head["height"] == 260
    assert spec == {
        "data": [{"x": [1, 2], "y": [3, None]}],
        "layout": {"hovermode": "closest"},
    }
    assert look["height"] == 260


def test_data_as_they_are_are_sent_as_plotly_would_send_them() -> None:
    """What is not finite is a gap, and numbers are packed."""
    values = np.array([[1.0, np.nan], [2.0, 3.0]])
    trace = {"type": "scatter", "y": values[:, 0].copy(), "customdata": values, "text": ["a", "b"]}
    layout = {"hovermode": "closest"}
    _, sent = lines({"data": [trace], "layout": layout})
    theirs = json.loads(go.Figure(trace, layout).to_json())
    assert sent["data"] == theirs["data"]
    assert sent["data"][0]["y"]["dtype"] == "f8"


def test_what_is_no_number_in_data_as_they_are_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        lines({"data": [], "layout": {"title": float("nan")}})


def test_a_figure_without_a_height_gets_one() -> None:
    head, _ = lines({"data": [], "layout": {}})
    assert head["height"] == figures.DEFAULT_HEIGHT
