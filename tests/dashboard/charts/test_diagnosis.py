"""Figures of the Diagnosis page hold the numbers they were given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from echoscope.dashboard.charts.diagnosis import (
    gradient_bars,
    group_map,
    information_curve,
    regime_plane,
)
from echoscope.dashboard.data import diagnosis as diagnosis_data
from echoscope.dashboard.data.diagnosis import FamilyInformation, RegimePath


def path() -> RegimePath:
    return RegimePath(
        points=pd.DataFrame(
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
        ),
        entropy_border=0.5,
        dependence_border=0.2,
    )


def test_the_plane_marks_the_last_measurement_unless_another_is_selected() -> None:
    last = go.Figure(regime_plane(path())).data[-1]
    assert (last.x[0], last.y[0]) == (1.8, 0.05)
    assert last.error_y.array[0] == 0.05
    first = go.Figure(regime_plane(path(), selected=2)).data[-1]
    assert (first.x[0], first.y[0]) == (2.0, 0.8)


def test_the_plane_has_the_four_regimes_behind_it() -> None:
    words = {note.text for note in go.Figure(regime_plane(path())).layout.annotations}
    assert words == {
        "diverse reasoning",
        "template collapse",
        "compressed",
        "low-entropy collapse",
    }


def family(**changes: object) -> FamilyInformation:
    known = {
        "family": "first_turn",
        "curve_k": np.array([1.0, 2.0, 4.0]),
        "curve": np.array([0.0, 0.5, 1.5]),
    }
    return FamilyInformation(**(known | changes))  # type: ignore[arg-type]


def test_the_curve_has_its_ceiling_and_where_the_prompt_can_be_told() -> None:
    figure = information_curve(
        [family()],
        {"info/first_turn/num_prompts": 8.0, "info/first_turn/identification_length": 3.0},
    )
    curve, ceiling, mark = go.Figure(figure).data
    assert list(curve.y) == [0.0, 0.5, 1.5]
    assert list(ceiling.y) == [np.log(8)] * 2
    assert (mark.x[0], mark.y[0]) == (3.0, 1.0)


def test_an_empty_curve_is_drawn_as_nothing() -> None:
    empty = family(curve_k=np.zeros(0), curve=np.zeros(0))
    assert len(information_curve([empty], {})["data"][0]["x"]) == 0


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
    legend = go.Figure(information_curve([family()], {})).layout.legend
    assert (legend.orientation, legend.yanchor) == ("h", "bottom")
    assert legend.y >= 1
