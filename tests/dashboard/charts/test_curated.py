"""What the curated charts show of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest

from echoscope.dashboard.charts.curated import (
    CHARTS,
    EVIDENCE,
    Chart,
    chart_curves,
    chart_keys,
    charts_of,
    eval_keys,
    evidence_chart,
)
from echoscope.diagnostics.judge.record import Evidence, Verdict


def chart(name: str) -> Chart:
    return next(each for each in CHARTS if each.name == name)


STEPS = pd.DataFrame({"step": [1, 2], "num_trajectories": [10, 10], "return_std": [0.5, 0.5]})


def data(**values: list[float]) -> pd.DataFrame:
    rows = [
        {"step": step, "key": key.replace("__", "/"), "value": value}
        for key, numbers in values.items()
        for step, value in enumerate(numbers, start=1)
    ]
    return pd.DataFrame(rows, columns=["step", "key", "value"])


def test_names_are_fit_for_urls_and_titles_are_explained() -> None:
    assert len({each.name for each in CHARTS}) == len(CHARTS)
    for each in CHARTS:
        assert each.name.isalpha()
        assert each.help.endswith(".")


def test_success_has_wilson_s_interval_over_the_step_s_trajectories() -> None:
    columns = data(rollout__success_rate=[0.0, 0.5])
    (success,) = chart_curves(chart("success"), columns, STEPS, ["rollout/success_rate"])
    assert success.low is not None
    assert success.high is not None
    # of ten: none is 0 to 0.2775, five are 0.2366 to 0.7634
    assert success.low == pytest.approx([0.0, 0.2366], abs=1e-4)
    assert success.high == pytest.approx([0.2775, 0.7634], abs=1e-4)


def test_the_return_has_a_chart_of_its_own_with_the_interval_of_its_mean() -> None:
    columns = data(reward__return_mean=[1.0, 2.0])
    (mean,) = chart_curves(chart("return"), columns, STEPS, ["reward/return_mean"])
    assert mean.high is not None
    assert mean.high - mean.values == pytest.approx(1.96 * 0.5 / np.sqrt(10))


def test_a_step_that_the_table_does_not_have_has_no_interval() -> None:
    columns = data(rollout__success_rate=[0.5, 0.5, 0.5])
    (success,) = chart_curves(chart("success"), columns, STEPS, ["rollout/success_rate"])
    assert success.low is not None
    assert np.isnan(success.low[2])


def test_evaluations_are_over_all_tags_where_the_run_says_so() -> None:
    tags = ["eval/a/success_rate", "eval/b/success_rate", "probe/a/success_rate"]
    assert eval_keys([*tags, "eval/a/return_mean"]) == tags
    assert eval_keys([*tags, "eval/all/success_rate"]) == ["eval/all/success_rate"]


def test_evaluations_come_with_the_interval_that_was_stored() -> None:
    stored_keys = [f"eval/lake/success_rate{end}" for end in ("", "_low", "_high")]
    columns = data(
        eval__lake__success_rate=[0.5],
        eval__lake__success_rate_low=[0.4],
        eval__lake__success_rate_high=[0.6],
    )
    (line,) = chart_curves(chart("success"), columns, STEPS, stored_keys)
    assert (line.name, line.low, line.high) == ("evaluation", [0.4], [0.6])
    assert chart_keys([chart("success")], stored_keys) == sorted(stored_keys)


def test_tags_are_named_where_there_are_several() -> None:
    stored_keys = ["eval/a/success_rate", "eval/b/success_rate"]
    columns = data(eval__a__success_rate=[0.5], eval__b__success_rate=[0.5])
    curves = chart_curves(chart("success"), columns, STEPS, stored_keys)
    assert [line.name for line in curves] == ["evaluation a", "evaluation b"]


def test_only_metrics_that_the_run_has_are_read() -> None:
    assert chart_keys(CHARTS, ["policy/entropy", "mine/own"]) == ["policy/entropy"]
    assert chart_curves(chart("gradient"), data(), STEPS, []) == []


def test_curves_of_one_chart_differ_in_colour() -> None:
    keys = [line.key for line in chart("gradient").lines]
    columns = data(**{key.replace("/", "__"): [1.0, 2.0] for key in keys})
    curves = chart_curves(chart("gradient"), columns, STEPS, keys)
    assert len({line.color for line in curves}) == len(curves) == len(keys)


def test_what_is_left_of_a_share_is_not_called_that_share() -> None:
    columns = data(reward__zero_std_frac=[0.25, 0.75])
    (mixed,) = chart_curves(chart("groups"), columns, STEPS, ["reward/zero_std_frac"])
    assert (mixed.key, list(mixed.values)) == ("1 - reward/zero_std_frac", [0.75, 0.25])


def verdict(*metrics: str) -> Verdict:
    """A verdict that rests on some metrics."""
    evidence = [
        Evidence(metric=metric, before=1.0, after=0.0, interval=None, steps=(0, 5))
        for metric in metrics
    ]
    return cast(Verdict, SimpleNamespace(evidence=evidence))


def test_a_chart_shows_what_the_verdict_rests_on_besides_success() -> None:
    stored_keys = ["eval/lake/success_rate", "policy/entropy", "text/loop_frac", "text/echo_frac"]
    rests_on = ("eval/*/success_rate", "text/loop_frac", "policy/entropy", "text/echo_frac")
    evidence = evidence_chart(verdict(*rests_on), stored_keys)
    assert evidence is not None
    assert evidence.name == EVIDENCE
    assert [line.key for line in evidence.lines] == ["text/loop_frac", "text/echo_frac"]  # one unit
    assert evidence_chart(None, stored_keys) is None


def test_evidence_that_rules_derive_is_drawn_as_they_derive_it() -> None:
    """The verdict says 29 points above chance: the chart must not say 33 % of all prompts."""
    keys = [f"text/retrieval_{end}" for end in ("accuracy", "chance", "p_value")]
    evidence = evidence_chart(verdict("text/retrieval_margin"), keys)
    assert evidence is not None
    assert chart_keys([evidence], keys) == sorted(keys)
    values = data(
        text__retrieval_accuracy=[0.9, 0.3, 0.8],
        text__retrieval_chance=[0.1, 0.1, 0.1],
        text__retrieval_p_value=[0.01, 0.01, 0.01],
    )
    (margin,) = chart_curves(evidence, values, STEPS, keys)
    assert margin.values == pytest.approx([0.8, 0.2, 0.7])


def test_only_charts_with_metrics_are_shown_and_the_evidence_stands_beside_success() -> None:
    stored_keys = ["policy/entropy", "rollout/success_rate", "reward/group_std_mean"]
    names = [chart.name for chart in charts_of(verdict("policy/entropy"), stored_keys)]
    assert names == ["success", EVIDENCE, "spread"]  # the evidence is the chart of the entropy
    assert charts_of(None, []) == []
