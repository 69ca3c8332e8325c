"""Tuning: which half a run is in, what a knob turns, and which value is kept."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.bench.report import made_set
from echoscope.diagnostics.bench.scores import Scores
from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.judge.courses.channels import CHANNELS, LARGEST_SHARE

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from tuning import KNOBS, Knob, Measured, Sweep, specs_of, split, tune


def test_even_seeds_tune_and_odd_ones_report() -> None:
    runs = [*made_set(range(5)), replace(make("healthy", 1), seed=None)]
    even, odd = split(runs)
    assert {run.seed for run in even} == {0, 2, 4}
    assert {run.seed for run in odd} == {1, 3}
    kinds = {run.label for run in runs}
    assert {run.label for run in even} == {run.label for run in odd} == kinds
    assert not {id(run) for run in even} & {id(run) for run in odd}


def test_knobs_name_channels_and_nothing_twice() -> None:
    names = {spec.name for spec in CHANNELS}
    for knob in KNOBS:
        assert set(knob.channels) <= names
        assert knob.neutral not in knob.values
    turned = [(knob.moves, channel) for knob in KNOBS for channel in knob.channels]
    assert len(turned) == len(set(turned))


def test_a_knob_turns_its_channels_only() -> None:
    assert specs_of({}) == CHANNELS
    assert specs_of({"rates": 1.0}) == CHANNELS
    specs = {spec.name: spec for spec in specs_of({"rates": 0.75, "rates last": -1.0})}
    plain = {spec.name: spec for spec in CHANNELS}
    assert specs["action"].raise_at == pytest.approx(0.15)
    assert specs["action"].persist == plain["action"].persist - 1
    assert specs["truncated"] == plain["truncated"]
    assert {s.name: s for s in specs_of({"spread window": 0.5})}["spread"].window == 5


def test_shares_stay_below_all_of_it() -> None:
    """0.75 of the best, times 1.35, would be more than there is."""
    specs = {spec.name: spec for spec in specs_of({"spread": 1.35})}
    assert specs["spread"].raise_at == LARGEST_SHARE
    at_margin = {spec.name: spec for spec in specs_of({}, margin=0.9)}
    assert at_margin["action"].raise_at == pytest.approx(0.18)


def measured(num_false: int, num_in_time: int, lead: float, at_margin: int = 0) -> Measured:
    return Measured(
        scores=Scores(
            num_collapsed=10, num_in_time=num_in_time, median_lead=lead, median_lead_called=lead,
            median_onset_error=math.nan, num_false=num_false, num_healthy_steps=1000,
            num_controls=5, num_controls_alarmed=0,
        ),
        num_false_at_margin=at_margin,
    )  # fmt: skip


def test_false_alarms_come_first_then_detection_then_lead() -> None:
    assert measured(0, 8, 1.0).worth > measured(1, 10, 30.0).worth
    assert measured(0, 9, 1.0).worth > measured(0, 8, 30.0).worth
    assert measured(0, 9, 5.0).worth > measured(0, 9, 4.0).worth
    assert measured(0, 9, 4.0).worth > measured(0, 9, 5.0, at_margin=1).worth


class Table(Sweep):
    """A sweep that knows its answers."""

    def __init__(self, answers: Mapping[frozenset[tuple[str, float]], Measured]) -> None:
        super().__init__([])
        self.answers = answers

    def measure(self, setting: Mapping[str, float]) -> Measured:
        return self.answers[frozenset(setting.items())]


def test_a_value_is_kept_only_if_it_is_better() -> None:
    """a = 2 finds one more, a = 3 as many; then b = 2 adds lead, b = 3 a false alarm."""
    knobs = [
        Knob(name=name, channels=(), moves="distance", values=(2.0, 3.0)) for name in ("a", "b")
    ]
    answers = {
        frozenset(): measured(0, 8, 5.0),
        frozenset({("a", 2.0)}): measured(0, 9, 5.0),
        frozenset({("a", 3.0)}): measured(0, 9, 5.0),
        frozenset({("a", 2.0), ("b", 2.0)}): measured(0, 9, 6.0),
        frozenset({("a", 2.0), ("b", 3.0)}): measured(1, 10, 9.0),
    }
    told: list[tuple[int, int]] = []
    tuned = tune(
        Table(answers), knobs=knobs, progress=lambda *progress_args: told.append(progress_args)
    )
    assert tuned.setting == {"a": 2.0, "b": 2.0}
    assert tuned.before.scores.num_in_time == 8
    assert tuned.after.scores.median_lead == 6.0
    assert told[-1] == (5, 5)
    assert [value for _, value, _ in tuned.tried] == [2.0, 3.0, 2.0, 3.0]


def test_a_gate_refuses_what_is_better_elsewhere() -> None:
    knobs = [Knob(name="a", channels=(), moves="distance", values=(2.0, 3.0))]
    answers = {
        frozenset(): measured(0, 8, 5.0),
        frozenset({("a", 2.0)}): measured(0, 9, 9.0),
        frozenset({("a", 3.0)}): measured(0, 9, 5.0),
    }
    tuned = tune(Table(answers), knobs=knobs, gate=lambda setting: setting["a"] != 2.0)
    assert tuned.setting == {"a": 3.0}


@pytest.mark.long
def test_the_sweep_agrees_with_the_bench_on_false_alarms_and_detection() -> None:
    runs = [make("format_collapse", 2), make("healthy", 2)]
    levels = Sweep(runs).measure({})
    whole = Sweep(runs).judged({})
    assert levels.scores.num_in_time == sum(j.critical.is_in_time for j in whole[:1])
    assert levels.scores.num_false == 0
    assert np.isfinite(levels.scores.median_lead)
