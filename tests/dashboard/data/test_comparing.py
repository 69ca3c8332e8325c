"""Runs side by side: settings, levels, and the tasks each of them solved."""

from __future__ import annotations

import doctest
import math
from typing import ClassVar

import pandas as pd
import pytest

from echoscope.dashboard.charts import theme
from echoscope.dashboard.charts.diagnosis import regime_paths
from echoscope.dashboard.data import comparing
from echoscope.dashboard.data.comparing import (
    config_diff,
    overlap,
    relative_change,
    solved_by,
    with_task,
)
from echoscope.dashboard.data.diagnosis import RegimePath


def test_only_settings_that_differ_are_listed_and_missing_ones_show_as_such() -> None:
    table = config_diff({"a": {"lr": 1e-4, "x": 1}, "b": {"lr": 2e-4, "x": 1, "new": None}})
    assert table.to_dict("records") == [
        {"setting": "lr", "a": "0.0001", "b": "0.0002"},
        {"setting": "new", "a": "not set", "b": "null"},
    ]


def series(*rows: tuple[int, float]) -> pd.DataFrame:
    return pd.DataFrame([(s, "k", v) for s, v in rows], columns=["step", "key", "value"])


def test_change_is_taken_at_the_last_step_that_all_runs_reached() -> None:
    runs = {"a": series((1, 2.0), (2, 2.0)), "b": series((1, 1.0), (2, 3.0), (3, 99.0))}
    (row,) = relative_change(runs, "a", ["k"], window=1).to_dict("records")
    assert (row["a"], row["b"]) == (2.0, 3.0)
    assert row["b change"] == 0.5


def test_a_level_is_a_median_and_a_gap_is_no_value() -> None:
    runs = {"a": series((1, 1.0), (2, 9.0), (3, 2.0)), "b": series((3, float("nan")))}
    (row,) = relative_change(runs, "a", ["k"]).to_dict("records")
    assert row["a"] == 2.0
    assert math.isnan(row["b"])
    assert math.isnan(row["b change"])


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
    counts = overlap(table, ["a", "b"]).set_index("solved by")["tasks"].to_dict()
    assert counts == {"a": 1, "a, b": 1}


def test_a_task_tried_several_times_counts_by_its_mean() -> None:
    table = solved_by({"a": tasks((1, True), (1, False)), "b": tasks((1, True), (1, None))})
    assert (table["a"].item(), table["b"].item()) == (0.5, 1.0)


def test_nothing_in_common_is_an_empty_table() -> None:
    assert solved_by({}).empty
    assert solved_by({"a": tasks((1, True)), "b": tasks((2, True))}).empty
    assert overlap(solved_by({}), ["a"]).empty


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


def test_runs_beyond_the_colours_have_dashes_of_their_own() -> None:
    assert len({theme.style_of(place) for place in range(32)}) == 32


def test_paths_stand_on_one_plane_in_units_of_their_borders() -> None:
    points = pd.DataFrame({"step": [1, 2], "entropy": [1.0, 2.0], "dependence": [0.5, 0.25]})
    path = RegimePath(points=points, entropy_border=0.5, dependence_border=0.25, is_from_text=False)
    (trace,) = regime_paths({"r": path}, {"r": ("#3b6fd4", "solid")}).data
    assert list(trace.x) == pytest.approx([2.0, 4.0])
    assert list(trace.y) == pytest.approx([2.0, 1.0])


def test_documented_examples_run() -> None:
    results = doctest.testmod(comparing)
    assert results.attempted > 0
    assert results.failed == 0
