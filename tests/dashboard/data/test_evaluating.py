"""Evaluations as a leaderboard, from a run's metrics."""

from __future__ import annotations

import doctest

import pandas as pd

from echoscope.dashboard.data import evaluating
from echoscope.dashboard.data.evaluating import (
    carries_over,
    evaluations_of,
    leaderboard,
    on_their_tasks,
    task_settings,
)


def metrics(*rows: tuple[int, str, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["step", "key", "value"])


RUN = metrics(
    (0, "eval/lake/success_rate", 0.4),
    (20, "eval/lake/success_rate", 0.9),
    (20, "eval/lake/success_rate_low", 0.8),
    (20, "eval/lake/success_rate_high", 0.95),
    (20, "eval/lake/num_tasks", 200.0),
    (20, "eval/lake/pass_at_4", 0.97),
    (40, "eval/lake/success_rate", 0.7),
    (40, "eval/other/lake/success_rate", 0.5),
    (40, "eval/lake/return_mean", 0.6),
    (60, "eval/lake/success_rate", float("nan")),
    (60, "loss/total", 1.0),
)


def test_one_evaluation_for_each_tag_and_step_that_has_a_success() -> None:
    found = evaluations_of("r", RUN)
    assert [(one.tag, one.step) for one in found] == [
        ("lake", 0),
        ("lake", 20),
        ("lake", 40),
        ("other/lake", 40),
    ]
    assert (found[1].low, found[1].high, found[1].num_tasks) == (0.8, 0.95, 200.0)
    assert found[1].passes == {4: 0.97}


def test_a_cell_is_the_last_the_best_or_the_first() -> None:
    found = evaluations_of("r", RUN)
    picked = {
        pick: [one.step for one in leaderboard(found, pick) if one.tag == "lake"]
        for pick in ("last", "best", "first")
    }
    assert picked == {"last": [40], "best": [20], "first": [0]}


def test_the_most_successful_run_is_on_top() -> None:
    other = evaluations_of("s", metrics((5, "eval/lake/success_rate", 0.8)))
    board = leaderboard(evaluations_of("r", RUN) + other, "last")
    assert [one.run_id for one in board if one.tag == "lake"] == ["s", "r"]


def config(**params: object) -> dict[str, object]:
    return {"envs": {"eval": [{"env": "lake", "groups": 128, "max_turns": 3, "params": params}]}}


def test_evaluations_with_other_parameters_are_not_ranked_together() -> None:
    alone = metrics((5, "eval/lake/success_rate", 0.8))
    found = [one for run in "abc" for one in evaluations_of(run, alone)]
    configs = {"a": config(size=4), "b": config(size=8), "c": config(size=4)}
    board = leaderboard(on_their_tasks(found, configs))
    assert [(one.tasks, one.run_id) for one in board] == [
        ("lake (size 4)", "a"),
        ("lake (size 4)", "c"),
        ("lake (size 8)", "b"),
    ]


def test_the_number_of_tasks_does_not_make_another_set() -> None:
    many, few = config(size=4), config(size=4)
    few["envs"]["eval"][0]["groups"] = 16  # type: ignore[index]
    assert task_settings(many) == task_settings(few)


def test_documented_examples_run() -> None:
    results = doctest.testmod(evaluating)
    assert results.attempted > 0
    assert results.failed == 0


def test_what_carries_over_is_the_gap_to_the_tasks_trained_on() -> None:
    table = carries_over(evaluations_of("r", RUN), ["lake"])
    (row,) = table.to_dict("records")
    assert (row["trained"], row["other"]) == ("lake", "other/lake")
    assert row["gap"] == 0.5 - 0.7
    assert carries_over(evaluations_of("r", RUN), ["unknown"]).empty
