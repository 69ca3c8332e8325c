"""Figures as they are sent."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from echoscope.dashboard.live import figures


def test_a_drawing_has_the_data_and_leaves_the_look_to_the_page() -> None:
    figure = go.Figure(go.Scatter(x=[1, 2], y=[3, None]), {"height": 260, "hovermode": "closest"})
    found = figures.drawing(figure)
    spec = json.loads(found.spec)
    assert found.height == 260
    assert spec["layout"] == {"hovermode": "closest"}
    assert spec["data"][0]["x"] == [1, 2]
    assert spec["data"][0]["y"] == [3, None]


def test_what_is_not_finite_is_a_gap_and_numbers_are_packed() -> None:
    spec = json.loads(figures.drawing(go.Figure(go.Scatter(y=np.array([1.0, np.nan])))).spec)
    assert spec["data"][0]["y"]["dtype"] == "f8"


def test_data_as_they_are_are_sent_as_plotly_would_send_them() -> None:
    values = np.array([[1.0, np.nan], [2.0, 3.0]])
    trace = {"type": "scatter", "y": values[:, 0].copy(), "customdata": values, "text": ["a", "b"]}
    layout = {"height": 100, "hovermode": "closest"}
    mine, theirs = (
        json.loads(figures.drawing(figure).spec)
        for figure in ({"data": [trace], "layout": layout}, go.Figure(trace, layout))
    )
    assert mine == theirs


def test_what_is_no_number_in_data_as_they_are_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        figures.drawing({"data": [], "layout": {"title": float("nan")}})


def test_a_figure_without_a_height_gets_one() -> None:
    assert figures.drawing(go.Figure()).height == figures.DEFAULT_HEIGHT


def test_drawing_leaves_the_figure_as_it_was() -> None:
    figure = go.Figure(layout={"height": 100})
    figures.drawing(figure)
    assert figure.layout.height == 100
