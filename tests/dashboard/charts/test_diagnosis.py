"""Figures of the Diagnosis page hold the numbers they were given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from echoscope.dashboard.charts.diagnosis import (
    gradient_bars,
    group_map,
    information_figure,
    regime_plane,
)
from echoscope.dashboard.data import diagnosis as diagnosis_data
from echoscope.store.records import FloatArray64

POINTS = pd.DataFrame(
    {
        "step": [1, 9],
        "entropy": [2.0, 1.8],
        "entropy_low": [1.9, 1.7],
        "entropy_high": [2.1, 1.9],
        "dependence": [0.8, 0.05],
        "dependence_low": [0.7, 0.0],
        "dependence_high": [0.9, 0.1],
        "regime": ["undetermined", "template_collapse"],
    }
)
BORDERS = (0.5, 0.2)


def test_the_plane_marks_the_last_measurement_unless_another_is_selected() -> None:
    last = go.Figure(regime_plane(POINTS, BORDERS)).data[-1]
    assert (last.x[0], last.y[0]) == (1.8, 0.05)
    assert last.error_y.array[0] == 0.05
    first = go.Figure(regime_plane(POINTS, BORDERS, selected=2)).data[-1]
    assert (first.x[0], first.y[0]) == (2.0, 0.8)


def test_the_plane_has_the_four_regimes_behind_it() -> None:
    labels = {note.text for note in go.Figure(regime_plane(POINTS, BORDERS)).layout.annotations}
    assert labels == {
        "diverse reasoning",
        "template collapse",
        "compressed",
        "low-entropy collapse",
    }


CURVES: dict[str, tuple[FloatArray64, FloatArray64]] = {
    "first_turn": (np.array([1.0, 2.0, 4.0]), np.array([0.0, 0.5, 1.5]))
}


def test_the_curve_has_its_ceiling_and_where_the_prompt_can_be_told() -> None:
    figure = information_figure(
        CURVES,
        {"info/first_turn/num_prompts": 8.0, "info/first_turn/identification_length": 3.0},
    )
    curve, ceiling, mark = go.Figure(figure).data
    assert list(curve.y) == [0.0, 0.5, 1.5]
    assert list(ceiling.y) == [np.log(8)] * 2
    assert (mark.x[0], mark.y[0]) == (3.0, 1.0)


def test_every_group_is_in_the_map_once() -> None:
    grid = pd.DataFrame(
        {
            "step": [1, 1, 3],
            "rank": [0, 1, 0],
            "group_index": [4, 5, 4],
            "kind": ["hopeless", "mixed", "solved"],
            "reward_std": [0.0, 0.5, 0.0],
            "return_mean": [0.0, 0.5, 1.0],
        }
    )
    maps = [trace for trace in go.Figure(group_map(grid)).data if trace.type == "heatmap"]
    cells = [np.asarray(trace.z) for trace in maps]
    assert sum(int(np.isfinite(cell).sum()) for cell in cells) == 3


def test_bars_leave_out_the_total() -> None:
    table = diagnosis_data.gradient_table(
        {"gradient/policy/zero/norm": 1.0, "gradient/total/zero/norm": 2.0}
    )
    (bars,) = go.Figure(gradient_bars(table)).data
    assert (list(bars.x), list(bars.y)) == (["no spread"], [1.0])


def test_legends_grow_away_from_the_curves() -> None:
    """Held at its top above the plot, a legend of two rows covered the curves on a phone."""
    legend = go.Figure(information_figure(CURVES, {})).layout.legend
    assert (legend.orientation, legend.yanchor) == ("h", "bottom")
    assert legend.y >= 1
