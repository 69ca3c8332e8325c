"""What the fixtures teach beyond their fields (`test_every_field.py`): rules of single trainers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from echoscope.store.records import FinishReason, Split, StopReason

from .conftest import Imported, texts

Fixture = Callable[[str], Imported]


def test_what_a_file_does_not_say_is_absent(fixture: Fixture) -> None:
    imported = fixture("messages")
    (turn,) = imported.trajectories[1].turns
    assert turn.is_valid is None
    assert turn.is_effective is None
    assert turn.policy_version is None
    assert turn.finish_reason is FinishReason.UNKNOWN
    assert turn.response_tokens is None
    trajectory = imported.trajectories[1]
    assert (trajectory.env_seed, trajectory.noise_seed, trajectory.duration_s) == (None, None, None)
    assert trajectory.stop_reason is StopReason.UNKNOWN
    (row,) = imported.reader.sql(
        "SELECT env_return, episode_return, env_seed, duration_s, policy_version, advantage, kept "
        "FROM trajectories WHERE step = 4"
    ).to_pylist()
    assert set(row.values()) == {None}


def test_ragen_rewards_belong_to_the_reply_after_the_state(fixture: Fixture) -> None:
    imported = fixture("ragen")
    first, second, third = imported.trajectories
    assert texts(first.turns)[1] == ("S2", "<think>then right</think><answer>Right || Up</answer>")
    assert first.final_observation == "S3"
    assert math.isnan(first.turns[0].reward)
    assert first.turns[1].reward == 10.9
    assert math.isnan(first.episode_return), "the reward of the first reply was never written"
    assert [turn.reward for turn in third.turns] == pytest.approx([0.9, -0.1])
    assert third.episode_return == pytest.approx(0.8), "a total that is not 0 gives the first one"
    assert math.isnan(second.turns[0].reward)


def test_ragen_success_groups_and_metrics(fixture: Fixture) -> None:
    imported = fixture("ragen")
    assert [t.is_success for t in imported.trajectories] == [True, False, True]
    assert [(t.group_index, t.sibling_index) for t in imported.trajectories] == [
        (0, 0),
        (0, 1),
        (1, 0),
    ]
    assert {t.tag for t in imported.trajectories} == {"CoordSokoban"}
    assert imported.trajectories[0].turns[-1].info == {"success": 1, "num_actions": 2, "pass@2": 1}
    assert imported.trajectories[0].turns[1].actions == ("Right", "Up")
    assert imported.extra(0)["fields"]["custom_id"] == "traj_0"
    assert imported.extra(0)["fields"]["metadata"]["env_id"] == 0
    assert imported.extra(0)["reconstructed"] == ["actions"]
    assert {t.step for t in imported.trajectories} == {0}


def test_verl_steps_are_numbers_and_validation_stands_apart(fixture: Fixture) -> None:
    imported = fixture("verl")
    assert [(t.step, t.split) for t in imported.trajectories] == [
        (2, Split.IMPORT),
        (10, Split.EVAL),
        (10, Split.IMPORT),
        (10, Split.IMPORT),
    ]
    assert imported.report.reconstructed["split"] == 1
    assert imported.reader.steps().column("num_trajectories").to_pylist() == [1, 2]
