"""When a measurement with a budget is made: on average within it, at once where a sign shows."""

from __future__ import annotations

import itertools
import json
from dataclasses import astuple

import pytest

from echoscope.diagnostics.judge.alarms import AlarmEngine
from echoscope.diagnostics.measure.costs import MOST_AHEAD, SIGNS, Schedule, shows_sign


def measured_at(
    cost: float, *, every: int = 5, last: int = 100, urgent: range = range(0)
) -> list[int]:
    """Steps of `last` at which a schedule measures, at `cost` steps' budget each."""
    schedule, out = Schedule(), []
    for step in range(1, last + 1):
        if schedule.is_due(step, every, is_urgent=step in urgent):
            out.append(step)
            schedule = schedule.tried(step).paid(cost, 1.0)
    return out


@pytest.mark.parametrize(
    ("cost", "steps"),
    [
        (0.5, [1, 6, 11, 16]),
        (5.0, [1, 6, 11, 16]),
        (6.0, [1, 7, 13, 19]),
        (6.5, [1, 8, 15]),
    ],
)
def test_the_budget_decides_where_it_lasts_longer_than_the_interval(
    cost: float, steps: list[int]
) -> None:
    assert measured_at(cost, last=20) == steps


def test_where_a_sign_shows_measurements_do_not_wait_and_later_ones_wait_the_longer() -> None:
    """Budget for one in 10 steps; signs from step 14 to 40: every five steps, until 6 are ahead."""
    assert measured_at(10.0, urgent=range(14, 41)) == [1, 11, 16, 21, 26, 31, 36, 71, 81, 91]


def test_urgent_measurements_are_bounded_too() -> None:
    """Signs for ever: `MOST_AHEAD` beyond the budget, then as often as the budget lasts."""
    steps = measured_at(10.0, last=1000, urgent=range(1, 1001))
    assert steps[:8] == [1, 6, 11, 16, 21, 26, 31, 36]
    assert len(steps) <= 1000 / 10 + MOST_AHEAD + 1
    assert {b - a for a, b in itertools.pairwise(steps[20:])} == {10}


def test_a_budget_that_was_not_spent_is_not_saved_up() -> None:
    schedule = Schedule().tried(1).paid(10.0, 1.0).tried(500).paid(10.0, 1.0)
    assert schedule.spent_until == 510


def test_zero_is_never_and_a_failure_costs_nothing() -> None:
    assert measured_at(1.0, every=0) == []
    tried = Schedule().tried(1)
    assert not tried.is_due(5, 5)
    assert tried.is_due(6, 5)


def test_state_goes_through_json() -> None:
    schedule = Schedule().tried(3).paid(7.5, 1.0)
    assert Schedule(*json.loads(json.dumps(astuple(schedule)))) == schedule


def test_signs_are_channels_and_a_template_is_one() -> None:
    engine = AlarmEngine()
    assert set(SIGNS) <= engine.signs.keys()
    seen = []
    for step in range(1, 21):
        template = 0.3 if step < 12 else 0.9
        engine.observe(step, {"text/template_frac": template} if step % 2 else {})
        seen.append(shows_sign(engine.signs))
    assert seen == [False] * 12 + [True] * 8
