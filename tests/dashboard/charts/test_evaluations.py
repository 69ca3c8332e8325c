"""The figure of the page Cure."""

from __future__ import annotations

import math

from echoscope.dashboard.charts.evaluations import cure_colors, cure_figure
from echoscope.diagnostics.tools.curing import BranchStanding


def stand(last: int) -> BranchStanding:
    steps = tuple(range(5, last + 1))
    return BranchStanding(
        steps=steps,
        success=(0.5,) * len(steps),
        num_trained=len(steps),
        level=0.5,
        interval=(0.4, 0.6),
        alarms=(),
    )


def test_the_untreated_run_ends_where_the_treatments_do() -> None:
    """Thirty more steps of nothing would press the curves that are compared together."""
    figure = cure_figure(
        {"untreated": stand(40), "1 lr=0.1": stand(9)}, untreated="untreated", chosen="", holds=0.6
    )
    assert [trace["x"][-1] for trace in figure["data"]] == [9, 9]
    assert [trace["line"]["color"] for trace in figure["data"]] == list(
        cure_colors(["untreated", "1 lr=0.1"]).values()
    )


def test_the_level_from_which_a_treatment_holds_is_a_line_with_its_name() -> None:
    runs = {"untreated": stand(9)}
    figure = cure_figure(runs, untreated="untreated", chosen="", holds=0.6)
    assert figure["layout"]["shapes"][0]["y0"] == 0.6
    assert "holds from 60 % on" in figure["layout"]["annotations"][-1]["text"]
    unknown = cure_figure(runs, untreated="untreated", chosen="", holds=math.nan)
    assert unknown["layout"]["shapes"] == []
