"""Filters and orders of the replay's list, and a trajectory as JSON."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from trajectories import make_trajectory

from echoscope.dashboard.replay.export import trajectory_json
from echoscope.dashboard.replay.list import (
    ORDERS,
    Filters,
    changed_since,
    kept_word,
    present,
    success_word,
    summary,
)
from echoscope.store.records import Split, StopReason, TrajectoryOutcome, Turn


def rows(**columns: list[object]) -> pd.DataFrame:
    size = len(next(iter(columns.values())))
    defaults = {
        "id": [f"t{n}" for n in range(size)],
        "split": ["train"] * size,
        "tag": ["small"] * size,
        "prompt_key": ["p"] * size,
        "episode_return": [0.0] * size,
        "advantage": [0.0] * size,
        "is_success": [None] * size,
        "num_sampled_tokens": [10] * size,
        "stop_reason": ["terminated"] * size,
        "kept": [None] * size,
    }
    return pd.DataFrame(defaults | columns)


def ids(table: pd.DataFrame) -> list[str]:
    return list(table["id"])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("id", ["t0", "t1", "t2", "t3"]),
        ("worst", ["t2", "t0", "t3", "t1"]),  # 0 with 9 tokens before 0 with 5
        ("best", ["t1", "t3", "t0", "t2"]),
        ("typical", ["t0", "t3", "t2", "t1"]),  # medians 0.25 and 5: three tie, lengths decide
        ("advantage", ["t1", "t0", "t3", "t2"]),
        ("longest", ["t2", "t0", "t1", "t3"]),
    ],
)
def test_orders(order: str, expected: list[str]) -> None:
    table = rows(
        episode_return=[0.0, 1.0, 0.0, 0.5],
        num_sampled_tokens=[5, 5, 9, 3],
        advantage=[-1.0, 2.0, np.nan, 0.5],
    )
    assert ids(ORDERS[order].sort(table)) == expected


def test_filters_keep_what_matches_all_of_them() -> None:
    table = rows(
        is_success=[True, False, None, True],
        kept=[True, False, None, None],
        tag=["a", "a", "a", "b"],
    )
    assert ids(Filters(success="solved").apply(table)) == ["t0", "t3"]
    assert ids(Filters(success="unknown", kept="pending").apply(table)) == ["t2"]
    assert ids(Filters(success="solved", tag="b").apply(table)) == ["t3"]
    assert ids(Filters(stop="timeout").apply(table)) == []
    assert len(Filters().apply(table)) == 4
    assert present(table, "tag") == ["any", "a", "b"]


def test_words_for_three_states() -> None:
    assert [success_word(v) for v in (True, False, None, float("nan"))] == [
        "solved",
        "failed",
        "unknown",
        "unknown",
    ]
    assert [kept_word(v) for v in (np.True_, False, None)] == ["kept", "dropped", "pending"]
    assert {kept_word(None, split) for split in ("eval", "probe")} == {"never trained on"}


def test_changed_since_compares_the_mean_return_of_a_prompt() -> None:
    now = rows(prompt_key=["a", "a", "b", "new"], episode_return=[1.0, 0.0, 0.0, 1.0])
    then = rows(prompt_key=["a", "b"], episode_return=[0.25, 1.0])
    found = changed_since(now, then)
    assert list(zip(found["id"], found["change"], strict=True)) == [
        ("t2", -1.0),
        ("t0", 0.25),
        ("t1", 0.25),
    ]


def test_the_summary_counts_only_what_is_defined() -> None:
    table = rows(is_success=[True, None, False], episode_return=[1.0, 0.0, 0.5])
    assert summary(table) == "3 trajectories: 1 solved of 2, mean return 0.5"
    assert summary(table.head(0)) == "0 trajectories"


def test_a_trajectory_as_json_has_every_field_and_no_nan() -> None:
    turn = Turn(
        index=0,
        observation="o",
        response="r",
        prompt_tokens=np.array([1, 2]),
        response_tokens=np.array([3]),
        logprobs=np.array([np.nan]),
        info={"distance": 2.0},
    )
    trajectory = make_trajectory(
        turn,
        step=3,
        split=Split.EVAL,
        index=1,
        sibling_index=1,
        env_id="e",
        tag="t",
        env_seed=1,
        noise_seed=2,
        prompt_key="k",
        stop_reason=StopReason.MAX_TURNS,
    )
    outcome = TrajectoryOutcome(trajectory_id=trajectory.id, advantage=0.5, kept=True)
    record = json.loads(trajectory_json(trajectory, outcome))
    assert record["id"] == "e00000003-00001"
    assert record["stop_reason"] == "max_turns"
    assert record["turns"][0]["prompt_tokens"] == [1, 2]
    assert record["turns"][0]["logprobs"] == [None]
    assert record["turns"][0]["info"] == {"distance": 2.0}
    assert record["outcome"]["advantage"] == 0.5
    assert json.loads(trajectory_json(trajectory, None))["outcome"] is None
