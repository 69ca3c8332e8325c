"""What an alarm is worth: worked by hand on runs of a few steps."""

import math
from typing import Any

import numpy as np
import pytest

from echoscope.diagnostics.bench.harness import LabelledRun
from echoscope.diagnostics.bench.scores import Call, score
from echoscope.diagnostics.read.table import MetricTable


def run(
    *, collapsed: bool, onset: int | None = None, halved: int | None = None, **more: Any
) -> LabelledRun:
    """100 steps from 0 on."""
    table = MetricTable(steps=np.arange(100), columns={}, sources={})
    return LabelledRun(
        name="x", label="", is_collapsed=collapsed, counts=True, halved_step=halved,
        onset_step=onset, recorded_stops={}, table=table, **more,
    )  # fmt: skip


BAD = run(collapsed=True, onset=50, halved=70)
GOOD = run(collapsed=False)


def call(of: LabelledRun, *steps: int, onset: int | None = None) -> Call:
    return Call(run=of, steps=steps, onset_step=onset)


def test_an_alarm_before_anything_happened_is_false_and_detects_nothing() -> None:
    """The first sign is at 50, ten steps of margin: false before 40."""
    assert call(BAD, 39).false_steps == (39,)
    assert not call(BAD, 39).is_in_time
    assert call(BAD, 40).is_in_time
    assert call(BAD, 40).lead == 30


def test_it_counts_as_in_time_until_success_has_halved() -> None:
    assert call(BAD, 70).is_in_time
    assert not call(BAD, 71).is_in_time
    assert call(BAD, 71).lead == -1
    assert call(BAD).lead == -math.inf


def test_after_a_false_alarm_a_later_one_may_be_right() -> None:
    called = call(BAD, 12, 60)
    assert (called.step, called.false_steps) == (60, (12,))


def test_onset_error_of_what_is_named_or_else_of_the_alarm() -> None:
    assert call(BAD, 60, onset=47).onset_error == 3
    assert call(BAD, 60).onset_error == 10
    assert math.isnan(call(BAD).onset_error)


def test_scores_by_hand() -> None:
    """Leads 30, 10, -5 and never: the middle two are 10 and -5.

    Healthy steps: 40 of each of four collapses and 100 of each of two controls, with one false
    alarm at 12 in a collapse and two in one control: 3 of 360.
    """
    calls = [
        call(BAD, 40, onset=48),
        call(BAD, 12, 60, onset=54),
        call(BAD, 75),
        call(BAD),
        call(GOOD, 30, 60),
        call(GOOD),
    ]
    scores = score(calls)
    assert (scores.num_collapsed, scores.num_in_time) == (4, 2)
    assert scores.detection == 0.5
    assert scores.median_lead == 2.5
    assert scores.median_lead_called == 10
    assert scores.median_onset_error == 4  # of 2, 4 and 25
    assert (scores.num_false, scores.num_healthy_steps) == (3, 360)
    assert scores.false_per_1000 == pytest.approx(1000 * 3 / 360)
    assert (scores.num_controls, scores.num_controls_alarmed) == (2, 1)


def test_half_of_the_collapses_never_called_lead_by_nothing() -> None:
    assert score([call(BAD, 40), call(BAD)]).median_lead == -math.inf
    assert score([call(BAD, 40), call(BAD)]).median_lead_called == 30


def test_nothing_to_count() -> None:
    scores = score([])
    assert math.isnan(scores.detection)
    assert math.isnan(scores.false_per_1000)
    assert math.isnan(scores.median_lead)


def test_a_collapse_without_halving_or_onset() -> None:
    """In time whenever it is called; no lead, no error, and no healthy part."""
    called = call(run(collapsed=True), 5)
    assert called.is_in_time
    assert math.isnan(called.lead)
    assert math.isnan(called.onset_error)
    assert called.run.num_healthy_steps == 0


def test_a_first_sign_labelled_after_the_halving_does_not_make_it_healthy_until_then() -> None:
    assert run(collapsed=True, onset=80, halved=70).healthy_until == 60
