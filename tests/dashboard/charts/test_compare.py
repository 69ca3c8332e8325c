"""Figures of own panels: scales without outliers, and answers to queries as lines."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from echoscope.dashboard.charts.compare import PALETTE, answer_spec, clipped, colors
from echoscope.dashboard.data.curves import Curve


def clip(values: list[float], *, log_y: bool = False) -> tuple[list[float] | None, str]:
    """The range of the figure, and its title."""
    drawn = Curve(key="x", name="x", steps=np.arange(len(values)), values=np.array(values))
    figure = {"data": [], "layout": {"yaxis": {}, "annotations": [{"text": "Title"}]}}
    layout = clipped(figure, [drawn], log_y=log_y)["layout"]
    return layout["yaxis"].get("range"), layout["annotations"][0]["text"]


def test_one_spike_lies_outside_of_the_scale_and_is_counted() -> None:
    values = [1.0, 1.1, 0.9, 1.0, 1.2, 0.8, 250.0, np.nan]
    limits, title = clip(values)
    assert "1 outside" in title
    assert limits == pytest.approx([0.78, 1.22])
    logs, title = clip(values, log_y=True)
    assert "1 outside" in title
    assert logs is not None
    assert 10 ** logs[1] < 1.3


def test_values_without_outliers_keep_the_usual_scale() -> None:
    assert clip(np.arange(20.0).tolist()) == (None, "Title")
    assert clip([1.0, 900.0]) == (None, "Title")


def spec(frames: dict[str, pd.DataFrame]) -> dict:
    figure = answer_spec(frames, height=200, log_y=False, title="<b>T</b>")
    assert figure is not None
    return figure


def test_columns_of_numbers_are_lines_over_the_first() -> None:
    frame = pd.DataFrame({"step": [1, 2], "a": [0.5, None], "b": [3, 4]})
    drawn = spec({"run": frame})
    assert [(line["name"], line["x"].tolist()) for line in drawn["data"]] == [
        ("a", [1.0, 2.0]),
        ("b", [1.0, 2.0]),
    ]
    assert "<b>T" not in json.dumps(drawn["layout"]["annotations"]).replace("<b>&lt;", "")


def test_several_runs_have_a_line_each() -> None:
    frame = pd.DataFrame({"step": [1, 2], "a": [0.5, 0.6]})
    assert [line["name"] for line in spec({"r1": frame, "r2": frame})["data"]] == ["r1", "r2"]


@pytest.mark.parametrize(
    "frames",
    [
        {"r": pd.DataFrame({"step": [1], "text": ["x"]})},
        {"r": pd.DataFrame({"step": [1]})},
        {"r": pd.DataFrame({"step": [], "a": []})},
        {"r": pd.DataFrame({"s": [1], "a": [1]}), "q": pd.DataFrame({"s": [1], "b": [1]})},
    ],
)
def test_other_answers_are_tables(frames: dict[str, pd.DataFrame]) -> None:
    assert answer_spec(frames, height=200, log_y=False, title="t") is None


def test_no_two_curves_of_a_page_share_a_colour_and_the_first_keeps_its_own() -> None:
    names = [f"run-{number}" for number in range(3 * len(PALETTE))]
    drawn = [*names[2:26], names[2 + len(PALETTE)]]  # the last has the colour of the first
    of_run = colors(names, drawn, PALETTE)
    assert of_run["run-2"] == PALETTE[2]
    assert sorted(of_run.values()) == sorted(PALETTE)
    assert len(set(PALETTE)) == len(PALETTE)
