"""Verdicts on courses that were read wrongly once: what is said now, and what no longer is."""

from __future__ import annotations

import math
from collections.abc import Callable

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.verdict import Diagnosis

Row = Callable[[int], dict[str, float]]


def observed(num_steps: int, row: Row) -> Diagnosis:
    diagnosis = Diagnosis()
    for step in range(num_steps):
        diagnosis.observe(step, row(step))
    return diagnosis


def evaluated(rate: float) -> dict[str, float]:
    return {"eval/all/success_rate": rate, "eval/all/num_tasks": 128.0}


def test_success_that_is_lost_within_the_first_steps_is_seen() -> None:
    """Four rows of 128 episodes at 65 %, then none, and nobody says how many episodes there are."""

    def row(step: int) -> dict[str, float]:
        values = [0.664, 0.633, 0.680, 0.648]
        return {"rollout/success_rate": values[step] if step < 4 else 0.0, "policy/entropy": 1.0}

    diagnosis = observed(12, row)
    assert diagnosis.run_state() is RunState.WATCH  # no more than that so early
    assert diagnosis.verdict().text.startswith("Watch: success dropped, starting at about step 4.")


def test_one_evaluation_has_no_change_to_tell() -> None:
    def row(step: int) -> dict[str, float]:
        of_step = {"policy/entropy": 1.0, "rollout/action_valid_frac": 0.9}
        return of_step | (evaluated(40 / 128) if step == 0 else {})

    text = observed(12, row).verdict().text
    assert "Evaluation success is 31 % (24 to 40 %, step 0, 128 tasks)." in text
    assert "no change" not in text


def test_what_training_learns_by_heart_is_said() -> None:
    def row(step: int) -> dict[str, float]:
        train = min(0.4 + 0.01 * max(step - 20, 0), 0.9)
        of_step = {"rollout/success_rate": train, "rollout/num_episodes": 256.0}
        return of_step | (evaluated(0.4 + 0.01 * (step % 3)) if step % 10 == 0 else {})

    text = observed(120, row).verdict().text
    assert "The fixed tasks gained" in text
    assert "learns its training tasks by heart" in text
    assert "No problem found" not in text


def test_what_was_critical_and_is_over_is_told_as_earlier() -> None:
    """The reward paid for something else between steps 30 and 60, and success came back."""

    def row(step: int) -> dict[str, float]:
        is_hacked = 30 <= step < 60
        return {
            "reward/return_mean": (0.9 if is_hacked else 0.5) + 0.004 * (step % 5),
            "rollout/success_rate": (0.1 if is_hacked else 0.5) + 0.01 * (step % 3),
            "rollout/num_episodes": 256.0,
        }

    text = observed(120, row).verdict().text
    assert "\nEarlier: reward up, success down (critical, steps " in text


def test_a_change_that_is_most_likely_one_is_not_called_no_problem() -> None:
    """Beyond what chance does at one look, and not yet beyond what it does at every look."""
    before, after = [0.5, 0.52, 0.48, 0.5, 0.5, 0.52, 0.48, 0.5, 0.5, 0.52], [0.27, 0.25]

    def row(step: int) -> dict[str, float]:
        rate = (before + after)[step]
        return {"rollout/success_rate": rate, "rollout/num_episodes": 48.0, "policy/entropy": 1.0}

    diagnosis = observed(12, row)
    assert diagnosis.run_state() is RunState.HEALTHY
    text = diagnosis.verdict().text
    assert "most likely it fell" in text
    assert "No problem found" not in text


def test_reasoning_that_is_empty_is_an_alarm_and_no_measure_of_before_stands_for_it() -> None:
    def row(step: int) -> dict[str, float]:
        if step < 25:
            told = {
                "text/conditional_entropy": 2.0,
                "text/dependence": 0.9,
                "text/num_prompts": 8.0,
            }
            return told | {"rollout/success_rate": 0.5, "text/empty_reasoning_frac": 0.0}
        return {"rollout/success_rate": 0.5, "text/empty_reasoning_frac": 1.0}

    text = observed(50, row).verdict().text
    assert text.startswith("Watch: reasoning is empty")
    assert "replies with an empty reasoning: 0 %" in text
    assert "still var" not in text


def test_entropy_that_declined_all_along_collapses_where_it_breaks() -> None:
    """It lost half a percent a step in a healthy run, and 8 % a step from step 120 on."""

    def row(step: int) -> dict[str, float]:
        decline = 0.005 * step + 0.08 * max(step - 120, 0)
        return {
            "policy/entropy": 0.6 * math.exp(-decline) * (1 + 0.01 * (step % 4)),
            "rollout/success_rate": 0.5 if step < 130 else 0.1,
            "rollout/num_episodes": 256.0,
        }

    diagnosis = observed(170, row)
    first, last = diagnosis.engine.channels["entropy_down"].onset_interval or (0, 0)
    assert 115 <= first <= 121
    assert 119 <= last <= 126


def collapsing_under(rate_of: Callable[[int], float]) -> str:
    """What to do about a run that loses its success from step 60 on."""

    def row(step: int) -> dict[str, float]:
        success = 0.5 - 0.012 * max(min(step, 100) - 60, 0)
        return {
            "optim/lr": rate_of(step),
            "rollout/success_rate": success,
            "rollout/num_episodes": 512.0,
            "policy/entropy": 0.4 * math.exp(0.04 * max(step - 60, 0)),
        }

    return observed(110, row).verdict().text


def test_a_learning_rate_at_which_success_held_is_the_one_to_go_back_to() -> None:
    text = collapsing_under(lambda step: 1e-6 if step < 60 else 1e-5)
    assert "the learning rate rose from 1e-06" in text
    assert "continue with a learning rate of 1e-06. With this rate success held." in text


def test_a_slow_way_up_is_cut_where_success_was_lost_not_where_it_began() -> None:
    text = collapsing_under(lambda step: 1e-7 * 10 ** (step / 30))
    assert "the learning rate rose from" in text
    rate = float(text.split("continue with a learning rate of ")[1].split(". ")[0])
    assert 1e-6 <= rate <= 6e-6  # at step 60 it was 1e-5
