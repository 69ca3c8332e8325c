"""Figures as they are sent."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from echoscope.dashboard.live import figures


def test_a_drawing_has_the_data_and_leaves_the_look_to_the_page() -> None:
    look = {"height": 260, "hovermode": "closest", "template": {"layout": {}}}
    found = figures.drawing({"data": [{"x": [1, 2], "y": [3, None]}], "layout": look})
    assert found.height == 260
    assert json.loads(found.spec) == {
        "data": [{"x": [1, 2], "y": [3, None]}],
        "layout": {"hovermode": "closest"},
    }
    assert look["height"] == 260


def test_data_as_they_are_are_sent_as_plotly_would_send_them() -> None:
    """What is not finite is a gap, and numbers are packed."""
    values = np.array([[1.0, np.nan], [2.0, 3.0]])
    trace = {"type": "scatter", "y": values[:, 0].copy(), "customdata": values, "text": ["a", "b"]}
    layout = {"hovermode": "closest"}
    sent = json.loads(figures.drawing({"data": [trace], "layout": layout}).spec)
    theirs = json.loads(go.Figure(trace, layout).to_json())
    assert sent["data"] == theirs["data"]
    assert sent["data"][0]["y"]["dtype"] == "f8"


def test_what_is_no_number_in_data_as_they_are_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        figures.drawing({"data": [], "layout": {"title": float("nan")}})


def test_a_figure_without_a_height_gets_one() -> None:
    assert figures.drawing({"data": [], "layout": {}}).height == figures.DEFAULT_HEIGHT
