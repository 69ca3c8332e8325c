"""The replay's list: one SELECT with its filters and orders, and a trajectory as JSON."""

from __future__ import annotations

import json

import duckdb
import numpy as np
import pandas as pd
import pytest
from trajectories import make_trajectory

from echoscope.dashboard.replay.listing import (
    COLUMNS,
    ListRequest,
    hits_in,
    summary,
)
from echoscope.dashboard.replay.panels import trajectory_json
from echoscope.dashboard.words import kept_word, success_word
from echoscope.store.errors import QueryError
from echoscope.store.records import Split, StopReason, TrajectoryOutcome, Turn


def rows(**columns: list[object]) -> pd.DataFrame:
    size = len(next(iter(columns.values())))
    defaults = dict.fromkeys(COLUMNS, [0] * size) | {
        "id": [f"t{n}" for n in range(size)],
        "split": ["train"] * size,
        "tag": ["it's"] * size,
        "episode_return": [0.0] * size,
        "is_success": pd.array([None] * size, "boolean"),
        "kept": pd.array([None] * size, "boolean"),
    }
    return pd.DataFrame(defaults | columns)


def ids(table: pd.DataFrame, **asked: str) -> list[str]:
    """The ids that a list of these rows has, in order."""
    sql = ListRequest(**({"step": 0, "split": "train"} | asked)).sql()
    with duckdb.connect() as connection:
        connection.register("trajectories", table)
        return list(connection.execute(sql).df()["id"])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("id", ["t0", "t1", "t2", "t3"]),
        ("newest", ["t3", "t0", "t1", "t2"]),
        ("worst", ["t2", "t0", "t3", "t1"]),  # 0 with 9 tokens before 0 with 5
        ("best", ["t1", "t3", "t0", "t2"]),
        ("advantage", ["t1", "t0", "t3", "t2"]),
        ("longest", ["t2", "t0", "t1", "t3"]),
    ],
)
def test_orders(order: str, expected: list[str]) -> None:
    table = rows(
        step=[1, 1, 1, 2],
        episode_return=[0.0, 1.0, 0.0, 0.5],
        num_sampled_tokens=[5, 5, 9, 3],
        advantage=[-1.0, 2.0, np.nan, 0.5],
    )
    assert ids(table, order=order) == expected


def test_filters_keep_what_matches_all_of_them() -> None:
    table = rows(
        is_success=pd.array([True, False, None, True], "boolean"),
        kept=pd.array([True, False, None, None], "boolean"),
        split=["train", "train", "train", "eval"],
    )
    assert ids(table, order="id") == ["t0", "t1", "t2"]
    assert ids(table, success="solved") == ["t0"]
    assert ids(table, success="unknown", kept="pending") == ["t2"]
    assert ids(table, split="eval", success="solved") == ["t3"]
    assert ids(table, split="it's") == []
    assert ids(table, where="tag = 'it''s' AND kept") == ["t0"]


@pytest.mark.parametrize("where", ["no_such = 1", "1); DROP TABLE x", "(", "true UNION SELECT 1"])
def test_what_is_no_condition_is_refused(where: str) -> None:
    with pytest.raises(QueryError):
        ListRequest(step=0, split="train", where=where).sql()


def test_hits_are_found_whatever_their_case_and_signs() -> None:
    assert hits_in("I go UP (really), up (REALLY)", "up (really") == ["UP (really", "up (REALLY"]
    assert hits_in("text", "") == []


def test_words_for_three_states() -> None:
    assert [success_word(v) for v in (True, False, None, float("nan"))] == [
        "solved",
        "failed",
        "unknown",
        "unknown",
    ]
    assert [kept_word(v) for v in (np.True_, False, None)] == ["kept", "dropped", "pending"]
    assert {kept_word(None, split) for split in ("eval", "probe")} == {"never trained on"}


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
