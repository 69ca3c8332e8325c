"""Runs side by side: settings, levels, and the tasks each of them solved."""

from __future__ import annotations

import doctest
from typing import ClassVar

import pandas as pd

from echoscope.dashboard.data.comparing import tasks as comparing
from echoscope.dashboard.data.comparing.tasks import (
    last_evaluations,
    other_tasks,
    solved_by,
    task_settings,
    with_task,
)


def metrics(*rows: tuple[int, str, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["step", "key", "value"])


def test_the_last_evaluation_of_each_run_is_listed_the_best_run_first() -> None:
    runs = {
        "r": metrics(
            (0, "eval/lake/success_rate", 0.95),
            (20, "eval/lake/success_rate", 0.5),
            (20, "eval/lake/success_rate_low", 0.25),
            (20, "eval/lake/success_rate_high", 0.75),
            (20, "eval/lake/num_tasks", 200.0),
            (60, "eval/lake/success_rate", float("nan")),
        ),
        "s": metrics((5, "eval/lake/success_rate", 0.8), (5, "eval/lake/return_mean", 1.0)),
    }
    first, second = last_evaluations(runs).to_dict("records")
    assert (first["run"], first["step"], first["success"]) == ("s", 5, "80 %")
    assert (second["run"], second["step"], second["success"]) == ("r", 20, "50 %")
    assert (second["95 % interval"], second["number of tasks"]) == ("25 % to 75 %", 200.0)
    assert last_evaluations({"r": metrics()}).empty


def test_the_interval_of_tasks_that_a_recorder_counted_is_wilsons() -> None:
    table = metrics((9, "eval/lake/success_rate", 0.5), (9, "eval/lake/num_tasks", 64.0))
    (row,) = last_evaluations({"r": table}).to_dict("records")
    assert row["95 % interval"] == "38.1 % to 61.9 %"


def config(groups: int = 128, **params: object) -> dict[str, object]:
    return {"envs": {"eval": [{"env": "lake", "groups": groups, "params": params}]}}


def test_evaluations_with_other_parameters_are_named_and_other_numbers_are_not() -> None:
    assert other_tasks([config(size=4), config(size=8)]) == ["lake"]
    assert other_tasks([config(size=4), config(16, size=4), {}]) == []
    assert task_settings(config(size=4)) == task_settings(config(16, size=4))


def tasks(*rows: tuple[int, bool | None]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "task": f"task {seed}",
                "tag": "lake",
                "env_seed": seed,
                "is_success": is_success,
                "id": f"e{seed}",
            }
            for seed, is_success in rows
        ]
    )


def test_tasks_are_joined_and_those_that_differ_come_first() -> None:
    table = solved_by(
        {"a": tasks((1, True), (2, True), (3, False)), "b": tasks((1, True), (2, False), (9, True))}
    )
    assert table["env_seed"].tolist() == [2, 1]
    assert table["a"].tolist() == [1.0, 1.0]
    assert table["b"].tolist() == [0.0, 1.0]
    assert table["a id"].tolist() == ["e2", "e1"]


def test_a_task_tried_several_times_counts_by_its_mean() -> None:
    table = solved_by({"a": tasks((1, True), (1, False)), "b": tasks((1, True), (1, None))})
    assert (table["a"].item(), table["b"].item()) == (0.5, 1.0)


def test_nothing_in_common_is_an_empty_table() -> None:
    assert solved_by({"a": tasks((1, True)), "b": tasks((2, True))}).empty


class TestC3TheSameTask:
    """A seed draws another board under other parameters: the task itself is compared."""

    SMALL: ClassVar = {"lake": '{"size": 4}'}
    LARGE: ClassVar = {"lake": '{"size": 8}'}

    def rows(self, seed: int, key: str | None, observation: str) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "tag": ["lake"],
                "env_seed": [seed],
                "task_key": [key],
                "first_observation": [observation],
                "is_success": [True],
                "id": ["e"],
            }
        )

    def test_one_seed_of_two_boards_is_two_tasks(self) -> None:
        a = with_task(self.rows(1, "board a", "Goal 2 down 1 left"), self.SMALL)
        b = with_task(self.rows(1, "board b", "Goal 2 down"), self.SMALL)
        assert solved_by({"a": a, "b": b}).empty

    def test_one_board_of_two_seeds_is_one_task(self) -> None:
        a = with_task(self.rows(1, "board", "o"), self.SMALL)
        b = with_task(self.rows(2, "board", "o"), self.SMALL)
        assert len(solved_by({"a": a, "b": b})) == 1

    def test_one_board_under_other_settings_is_another_task(self) -> None:
        a = with_task(self.rows(1, "board", "o"), self.SMALL)
        b = with_task(self.rows(1, "board", "o"), self.LARGE)
        assert solved_by({"a": a, "b": b}).empty

    def test_runs_without_keys_are_joined_by_the_first_observation(self) -> None:
        old = with_task(self.rows(1, None, "o"), self.SMALL, has_keys=False)
        new = with_task(self.rows(2, "board", "o"), self.SMALL, has_keys=False)
        other = with_task(self.rows(1, None, "another"), self.SMALL, has_keys=False)
        assert len(solved_by({"old": old, "new": new})) == 1
        assert solved_by({"old": old, "other": other}).empty


def test_documented_examples_run() -> None:
    results = doctest.testmod(comparing)
    assert results.attempted > 0
    assert results.failed == 0
