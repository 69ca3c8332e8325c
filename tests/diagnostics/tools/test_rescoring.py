"""Scores under other weights are named for what they are, and a verdict resting on them says so."""

from __future__ import annotations

from dataclasses import replace

from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.tools.rescoring import as_cross_entropy


def test_entropies_of_other_weights_are_cross_entropies() -> None:
    scores = as_cross_entropy(
        {
            "info/first_turn/mutual_information": 1.0,
            "info/first_turn/conditional_entropy": 20.0,
            "info/first_turn/conditional_entropy_per_token": 2.0,
            "info/first_turn/conditional_entropy_per_token_low": 1.9,
            "info/first_turn/marginal_entropy": 21.0,
            "info/action/mutual_information": 0.5,
        }
    )
    assert scores == {
        "info/first_turn/mutual_information": 1.0,
        "info/first_turn/cross_entropy_per_token": 2.0,
        "info/action/mutual_information": 0.5,
    }


def test_a_verdict_that_rests_on_a_caveat_says_it_and_is_not_confident() -> None:
    table = make("template_collapse", 2).table
    plain = diagnose(table)
    assert plain.confidence != "low"
    weak = diagnose(replace(table, caveats={"info/": "Caution: other weights scored it."}))
    assert weak.confidence == "low"
    assert weak.text == f"{plain.text} Caution: other weights scored it."


def test_a_caveat_of_what_no_alarm_rests_on_changes_nothing() -> None:
    table = make("format_collapse", 1).table
    assert diagnose(replace(table, caveats={"gradient/": "Caution."})) == diagnose(table)
