"""What an alarm needs is said in one way: in the docs, in JSON, in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.judge.alarms import ALL_RULES, blindness
from echoscope.diagnostics.judge.calibration import BY_KINDS, CALMS, base_rate, quiet_rate
from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.judge.rules.metrics_needed import (
    COLUMNS,
    logged_keys,
    mappable,
    wanting_words,
)
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.read.foreign_names import meaning_of
from echoscope.diagnostics.read.names import parse_map
from echoscope.diagnostics.read.table import MetricTable

DOCS = Path(__file__).parents[3] / "docs"


def test_json_names_the_metrics_that_a_rule_needs() -> None:
    blind = {each.rule: each.wanted for each in blindness([])}
    for rule in ALL_RULES:
        assert blind.get(rule.name, logged_keys(rule.needs)) == logged_keys(rule.needs)


@pytest.mark.parametrize("key", COLUMNS)
def test_a_column_that_is_named_is_read_as_the_metric_and_is_on_the_page_of_names(key: str) -> None:
    page = (DOCS / "names.md").read_text()
    for column in COLUMNS[key].values():
        meaning = meaning_of(column)
        assert meaning is not None
        assert meaning.key == key
        assert f"`{column}`" in page


def test_every_metric_that_a_hint_maps_can_be_mapped() -> None:
    for rule in ALL_RULES:
        for trainer in ("", "verl", "trl"):
            key = mappable(logged_keys(rule.needs), trainer)
            if key:
                assert parse_map([f"mine={key}"], known_keys())


def table(**columns: float) -> MetricTable:
    steps = np.arange(40)
    values = {k.replace("__", "/", 1): v + 0.001 * (steps % 3) for k, v in columns.items()}
    return MetricTable(steps=steps, columns=values, sources={})


def test_what_is_missing_is_named_in_words_with_a_way_out() -> None:
    text = diagnose(table(rollout__success_rate=0.5)).text
    assert "Not checked: format collapse (needs the share of replies in the right format:" in text
    measured = "needs rollouts: several prompts a step, and two replies or more to each"
    assert f"template collapse ({measured})" in text
    hint = (
        "If a column NAME holds the share of replies in the right format, give "
        "`--map NAME=rollout/format_valid_frac`."
    )
    assert hint in text
    assert wanting_words(["policy/entropy"], "verl") == (
        "needs the entropy per token: `actor/entropy` of verl"
    )


def test_replies_without_marked_reasoning_are_called_replies() -> None:
    steps = np.arange(60)
    lost = np.where(steps < 25, 0.6, 0.01)
    whole = {"text/dependence": lost, "text/retrieval_margin": lost}
    marked = {**whole, "text/closed_reasoning_frac": np.full(60, 0.9)}
    found = [
        diagnose(MetricTable(steps=steps, columns=columns, sources={}))
        for columns in (whole, marked)
    ]
    assert [verdict.kinds for verdict in found] == [("TEMPLATE_COLLAPSE",)] * 2
    assert "The replies no longer depend on the prompt" in found[0].text
    assert "link between prompt and reply" in found[0].text
    assert not any("reasoning" in evidence.words for evidence in found[0].evidence)
    assert "The reasoning no longer depends on the prompt" in found[1].text


def test_a_rate_is_compared_with_that_of_the_same_runs() -> None:
    for calm, kinds in BY_KINDS:
        rates = [quiet_rate(c, kinds) for c in CALMS]
        assert 0 < base_rate(calm, kinds) <= max(rates)
    assert base_rate("half way", 9) == pytest.approx(169 / 1020)
    assert base_rate("calm", 99) == 1.0
