"""One step's information: both families, RAGEN's keys, and nothing that raises."""

from __future__ import annotations

import math

import numpy as np
from letter_tokens import TableScorer, batch, decode

from echoscope.diagnostics.config import InformationConfig
from echoscope.diagnostics.measure.information.cross_scores import ScoringError
from echoscope.diagnostics.measure.information.step import (
    StepInformation,
    measure_information,
    num_tokens,
    plan_information,
)

CONFIG = InformationConfig()


def measure(trajectories, scorer=None, previous=None) -> StepInformation:
    plan = plan_information(trajectories, CONFIG, step=5, decode=decode)
    return measure_information(scorer or TableScorer(), trajectories, plan, previous=previous)


def test_a_plan_knows_its_tokens_before_they_are_scored() -> None:
    trajectories, scorer = batch(8, 8, (2, 3)), TableScorer()
    plan = plan_information(trajectories, CONFIG, step=5, decode=decode)
    measure_information(scorer, trajectories, plan)
    assert num_tokens(plan) == scorer.tally.num_tokens > 0


def test_both_families_and_ragen_s_keys() -> None:
    measured = measure(batch(8, 8, (2, 3)))
    assert measured.problems == ()
    metrics = measured.metrics()
    for family in ("first_turn", "all_turns"):
        assert metrics[f"info/{family}/mutual_information"] > 0.3
        assert not math.isnan(metrics[f"info/{family}/dependence"])
    assert metrics["collapse_first_turn_sample/mi_upper_bound"] == math.log(8)
    assert metrics["collapse/valid_thinking_rate"] == 1
    assert sum(key.startswith("collapse_first_turn_sample/") for key in metrics) == 29


def test_token_information_has_the_shape_of_the_trajectory() -> None:
    trajectories = batch(8, 8, (2,))
    measured = measure(trajectories)
    by_token = measured.by_token(trajectories)
    scored = [by_token.get(trajectory.id) for trajectory in trajectories]
    assert all(rows is not None for rows in scored)
    for trajectory, rows in zip(trajectories, scored, strict=True):
        assert [len(row) for row in rows] == [len(t.response_tokens) for t in trajectory.turns]
        # All but the answer, one character, of the first turn.
        assert np.isnan(rows[0]).tolist() == [False] * (len(rows[0]) - 1) + [True]
    first = measured.estimates["first_turn"]
    total = np.mean([np.nansum(rows[0]) for rows in scored])
    assert math.isclose(total, first.mutual_information, abs_tol=1e-5)


def test_a_trajectory_that_was_not_drawn_has_none() -> None:
    trajectories = batch(20, 2)
    measured = measure(trajectories)
    drawn = {
        source for scored in measured.estimates.values() for source, _ in scored.scores.source_M
    }
    assert len(drawn) < len(trajectories)
    for trajectory in trajectories:
        assert (trajectory.id in measured.by_token(trajectories)) == (trajectory.id in drawn)


def test_the_step_fixes_the_draw() -> None:
    trajectories = batch(12, 8, (1, 2, 3))
    first, same = (measure(trajectories) for _ in range(2))
    np.testing.assert_equal(first.metrics(), same.metrics())  # NaN equals NaN here
    other = plan_information(trajectories, CONFIG, step=6, decode=decode)
    assert other["first_turn"].source_M != first.estimates["first_turn"].scores.source_M


def test_what_cannot_be_scored_says_so() -> None:
    class TooShort(TableScorer):
        def score(self, prompts, continuations):
            raise ScoringError("a row of 70 tokens does not fit the model's 64 positions")

    measured = measure(batch(4, 4), scorer=TooShort())
    assert "first_turn: a row of 70 tokens does not fit" in measured.problems[0]
    assert math.isnan(measured.metrics()["info/first_turn/mutual_information"])


def test_nothing_sampled() -> None:
    measured = measure([])
    assert len(measured.problems) == 2
    assert math.isnan(measured.metrics()["info/all_turns/conditional_entropy"])


def test_ragen_s_moving_averages_go_on() -> None:
    trajectories = batch(4, 4)
    first = measure(trajectories)
    second = measure(
        trajectories,
        previous={
            "collapse_first_turn_sample/marginal_std_ema": 10.0,
            "collapse_first_turn_sample/marginal_std_ema_seq": 10.0,
        },
    )
    key = "collapse_first_turn_sample/marginal_std"
    assert math.isclose(second.ragen[f"{key}_ema"], 9.0 + 0.1 * first.ragen[key])
