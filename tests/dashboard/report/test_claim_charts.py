"""A verdict's charts: one a number, with the levels that are claimed; a level alone proves none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_run import make_run

from echoscope.dashboard.charts.run_figures import RunFigures, figures_of
from echoscope.dashboard.report.claim_charts import claim_charts
from echoscope.dashboard.report.evidence_rows import evidence_rows
from echoscope.diagnostics.judge.claims import Change, Level
from echoscope.diagnostics.judge.record import Evidence, Verdict
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.store.reader import open_run

SUCCESS, RETURN, BOILERPLATE = "rollout/success_rate", "reward/return_mean", "text/template_frac"


@pytest.fixture
def figures(tmp_path: Path) -> RunFigures:
    values = {SUCCESS: 0.5, RETURN: 1.0, BOILERPLATE: 0.4}
    make_run(tmp_path / "a", 20, values=lambda step: values)
    return figures_of(open_run(tmp_path / "a"), None)


def level(metric: str, value: float, steps: tuple[int, int]) -> Level:
    ends = {"low": value - 0.1, "high": value + 0.1}
    return Level(metric=metric, value=value, steps=steps, num_points=9, **ends)


def verdict() -> Verdict:
    fall = Change(
        before=level(SUCCESS, 0.8, (0, 9)), after=level(SUCCESS, 0.2, (10, 19)), low=-0.7, high=-0.5
    )
    evidence = Evidence(
        metric=BOILERPLATE,
        before=0.2,
        after=0.6,
        interval=(0.5, 0.7),
        steps=(5, 19),
        averaged="median of 2 rows",
        words="phrases that are boilerplate: 20 % -> 60 %",
    )
    claims = (fall, level(RETURN, 1.0, (0, 19)))
    return replace(Diagnosis().verdict(), claims=claims, evidence=(evidence,))


def test_success_comes_first_and_a_level_that_stays_has_no_chart(figures: RunFigures) -> None:
    charts = claim_charts(figures, evidence_rows(verdict()))
    assert [chart.name for chart in charts] == ["success", BOILERPLATE]
    assert charts[1].sentences == ("phrases that are boilerplate: 20 % -> 60 %",)


def test_each_level_is_drawn_over_its_own_steps(figures: RunFigures) -> None:
    success, boilerplate = claim_charts(figures, evidence_rows(verdict()))

    def claimed(chart_spec: dict[str, list[dict[str, object]]]) -> list[tuple[list[int], float]]:
        drawn = [t for t in chart_spec["data"] if str(t["name"]).startswith("claimed")]
        return [([int(t["x"][0]), int(t["x"][-1])], float(t["y"][0])) for t in drawn]  # type: ignore[index]

    assert claimed(success.spec) == [([0, 9], 0.8), ([10, 19], 0.2)]
    assert claimed(boilerplate.spec) == [([5, 5], 0.2), ([19, 19], 0.6)]


def test_a_number_of_several_rows_says_so(figures: RunFigures) -> None:
    """23 % (step 5) was a median of two rows, and step 5 alone had 29 %."""
    rows = {row.metric: row for row in evidence_rows(verdict())}
    assert rows[BOILERPLATE].cells()["steps"] == "step 5, then step 19 (median of 2 rows)"


def test_a_metric_that_the_run_does_not_have_has_no_chart(figures: RunFigures) -> None:
    other = replace(verdict().evidence[0], metric="policy/ref_kl")
    charts = claim_charts(figures, evidence_rows(replace(verdict(), evidence=(other,))))
    assert [chart.name for chart in charts] == ["success"]
