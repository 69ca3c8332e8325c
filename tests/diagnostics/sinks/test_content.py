"""What a sink gets of a step, its settings and its status."""

from __future__ import annotations

import importlib.metadata
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from episodes import text_turn
from trajectories import make_trajectory

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.read.foreign_names import meaning_of
from echoscope.diagnostics.sinks.content import (
    MAX_CHARS,
    MAX_MESSAGES,
    STATE_LEVELS,
    episode_rows,
    numbers_of,
    ragen_values,
    tag_of,
)
from echoscope.diagnostics.sinks.mirror import SinkStatus, path_of, read_status, write_status
from echoscope.diagnostics.sinks.settings import SinkError, SinksConfig, require_packages


def test_numbers_stand_under_our_names_and_under_ragens() -> None:
    values = {
        "policy/entropy": 0.5,
        "rollout/success_rate": 0.25,
        "eval/lake/action_valid_frac": 0.75,
        "gradient/policy/bucket_2/norm": 3.0,
        "text/loop_frac": math.nan,
        "loss/policy": math.nan,
    }
    told = numbers_of(values, None, "lake")
    assert math.isnan(told.pop("loss/policy"))
    assert math.isnan(told.pop("actor/pg_loss"))
    assert told == {
        "policy/entropy": 0.5,
        "rollout/success_rate": 0.25,
        "eval/lake/action_valid_frac": 0.75,
        "gradient/policy/bucket_2/norm": 3.0,
        "actor/entropy": 0.5,
        "train/lake/success": 0.25,
        "val-env/lake/manager_invalid_action": 0.25,
        "grad_norm/bucket_2/task": 3.0,
    }


def test_success_over_several_environments_gets_no_name_of_one() -> None:
    episodes = [make_trajectory(tag="lake"), make_trajectory(tag="sokoban", index=1)]
    assert (tag_of(episodes[:1]), tag_of(episodes)) == ("lake", "")
    assert numbers_of({"rollout/success_rate": 0.5}, None) == {"rollout/success_rate": 0.5}


@pytest.mark.parametrize(
    ("ours", "tag"),
    [
        ("policy/entropy", ""),
        ("policy/ref_kl", ""),
        ("optim/grad_norm", ""),
        ("reward/return_mean", ""),
        ("reward/group_std_mean", ""),
        ("selection/kept_frac", ""),
        ("gradient/policy/all/norm", ""),
        ("gradient/kl/all/norm", ""),
        ("eval/lake/success_rate", ""),
        ("rollout/lake/success_rate", ""),
    ],
)
def test_what_we_write_under_ragens_name_is_read_back_as_ours(ours: str, tag: str) -> None:
    for name in ragen_values({ours: 0.5}, tag):
        meaning = meaning_of(name)
        assert meaning is not None
        assert meaning.key == ours


def test_a_name_that_the_run_has_itself_is_not_replaced() -> None:
    assert ragen_values({"policy/entropy": 0.5, "actor/entropy": 0.7}) == {}


def test_every_state_has_a_level() -> None:
    assert set(STATE_LEVELS) == {state.value for state in RunState}


def test_episodes_are_bounded_in_number_length_and_messages() -> None:
    turns = tuple(text_turn("x" * 5000, index=index, observation="y" * 5000) for index in range(60))
    episodes = [make_trajectory(*turns, index=index, sibling_index=index) for index in range(9)]
    rows = episode_rows(episodes, 4)
    assert len(rows) == 4
    for row in rows:
        assert len(row["messages"]) == MAX_MESSAGES
        assert row["turns"] == 60
        assert all(len(message["content"]) == MAX_CHARS for message in row["messages"])
        assert row["messages"][0]["content"].endswith("...")


def test_one_episode_of_each_group_comes_before_a_second_one() -> None:
    episodes = [
        make_trajectory(text_turn("z"), index=2 * g + k, group_index=g, sibling_index=k)
        for g in range(3)
        for k in range(2)
    ]
    rows = episode_rows(episodes, 4)
    assert [(row["group"], row["sibling"]) for row in rows] == [(0, 0), (1, 0), (2, 0), (0, 1)]


def test_text_that_is_no_unicode_and_a_missing_reward_become_json() -> None:
    turn = replace(text_turn("a\ud800b"), reward=math.nan)
    rows = episode_rows([make_trajectory(turn)], 1)
    assert rows[0]["return"] is None
    assert "a?b" in json.dumps(rows, allow_nan=False)


@pytest.mark.parametrize("name", ["wandb", "tensorboard", "trackio"])
def test_a_missing_package_is_one_sentence_before_the_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(distribution: str) -> str:
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    on = "offline" if name == "wandb" else True
    require_packages(SinksConfig())
    with pytest.raises(
        SinkError, match=rf"^the sink {name} needs .*: run pip install .* leave the sink out"
    ):
        require_packages(SinksConfig.model_validate({name: on}))


@pytest.mark.parametrize(
    ("values", "active"),
    [
        ({}, ()),
        ({"tensorboard": True}, ("tensorboard",)),
        ({"project": "lake"}, ()),
        ({"wandb": "offline", "trackio": True}, ("wandb", "trackio")),
    ],
)
def test_the_sinks_that_are_on(values: dict[str, Any], active: tuple[str, ...]) -> None:
    config = SinksConfig.model_validate(values)
    assert config.active() == active
    assert SinksConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "content",
    ["", "no json", "[]", "{}", '{"sink": "wandb", "last_step": "x"}'],
)
def test_a_status_that_cannot_be_read_is_none(content: str, tmp_path: Path) -> None:
    path_of(tmp_path, "wandb").parent.mkdir()
    path_of(tmp_path, "wandb").write_text(content)
    assert read_status(tmp_path, "wandb") is None


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    status = SinkStatus(sink="trackio", state="failed", last_step=3, problem="no")
    write_status(tmp_path, status)
    assert read_status(tmp_path, "trackio") == status
