"""Messages, RAGEN, verl, VAGEN and TRL: every field of the fixtures, rewards at their turns."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from echoscope.store.records import FinishReason, Split, StopReason

from .conftest import Imported, texts

Fixture = Callable[[str], Imported]


def places(found: Imported) -> list[tuple[int, int]]:
    """Group and sibling of each episode."""
    return [(t.group_index, t.sibling_index) for t in found.trajectories]


def test_messages(fixture: Fixture) -> None:
    found = fixture("messages")
    first, second = found.trajectories
    assert (first.step, second.step) == (3, 4)
    call = '<tool_call>{"name": "move", "arguments": {"to": "up"}}</tool_call>'
    assert texts(first.turns) == [
        ("Board A", "<think>left is free</think><answer>left</answer>"),
        ("Board B", call),
    ]
    assert first.turns[0].reasoning == "left is free"
    assert first.turns[0].answer == "left"
    assert [(c.name, c.arguments, c.result) for c in first.turns[1].calls] == [
        ("move", '{"to": "up"}', "moved")
    ]
    assert first.final_observation == "moved"
    assert [turn.reward for turn in first.turns] == [0.0, 1.5]
    assert first.is_success is True
    assert found.extra(0) == {
        "format": "messages JSONL",
        "reconstructed": ["turn_rewards"],
        "fields": {"task_id": "t7", "note": "kept", "system": "You play."},
    }
    assert texts(second.turns) == [("Board A\n[image_url]", "<think>because</think>up")]
    assert second.is_success is None
    assert math.isnan(second.episode_return)


def test_what_a_file_does_not_say_is_absent(fixture: Fixture) -> None:
    found = fixture("messages")
    (turn,) = found.trajectories[1].turns
    assert turn.is_valid is None
    assert turn.is_effective is None
    assert turn.policy_version is None
    assert turn.finish_reason is FinishReason.UNKNOWN
    assert turn.response_tokens is None
    trajectory = found.trajectories[1]
    assert (trajectory.env_seed, trajectory.noise_seed, trajectory.duration_s) == (None, None, None)
    assert trajectory.stop_reason is StopReason.UNKNOWN
    (row,) = found.reader.sql(
        "SELECT env_return, episode_return, env_seed, duration_s, policy_version, advantage, kept "
        "FROM trajectories WHERE step = 4"
    ).to_pylist()
    assert set(row.values()) == {None}


def test_ragen_rewards_belong_to_the_reply_after_the_state(fixture: Fixture) -> None:
    found = fixture("ragen")
    first, second, third = found.trajectories
    assert texts(first.turns)[1] == ("S2", "<think>then right</think><answer>Right || Up</answer>")
    assert first.final_observation == "S3"
    assert math.isnan(first.turns[0].reward)
    assert first.turns[1].reward == 10.9
    assert math.isnan(first.episode_return), "the reward of the first reply was never written"
    assert [turn.reward for turn in third.turns] == pytest.approx([0.9, -0.1])
    assert third.episode_return == pytest.approx(0.8), "a total that is not 0 gives the first one"
    assert math.isnan(second.turns[0].reward)


def test_ragen_success_groups_and_metrics(fixture: Fixture) -> None:
    found = fixture("ragen")
    assert [t.is_success for t in found.trajectories] == [True, False, True]
    assert [(t.group_index, t.sibling_index) for t in found.trajectories] == [
        (0, 0),
        (0, 1),
        (1, 0),
    ]
    assert {t.tag for t in found.trajectories} == {"CoordSokoban"}
    assert found.trajectories[0].turns[-1].info == {"success": 1, "num_actions": 2, "pass@2": 1}
    assert found.trajectories[0].turns[1].actions == ("Right", "Up")
    assert found.extra(0)["fields"]["custom_id"] == "traj_0"
    assert found.extra(0)["fields"]["metadata"]["env_id"] == 0
    assert found.extra(0)["reconstructed"] == ["actions"]
    assert {t.step for t in found.trajectories} == {0}


def test_verl_steps_are_numbers_and_validation_stands_apart(fixture: Fixture) -> None:
    found = fixture("verl")
    assert [(t.step, t.split) for t in found.trajectories] == [
        (2, Split.IMPORT),
        (10, Split.EVAL),
        (10, Split.IMPORT),
        (10, Split.IMPORT),
    ]
    assert found.report.reconstructed["split"] == 1
    assert found.reader.steps().column("num_trajectories").to_pylist() == [1, 2]


def test_verl_turns_are_split_where_roles_follow_each_other(fixture: Fixture) -> None:
    found = fixture("verl")
    split = found.trajectories[2]
    assert texts(split.turns) == [
        ("What is 2 + 3?", "<think>add</think>\n<tool_call>calc</tool_call>"),
        ("<tool_response>5</tool_response>", "The answer is 5."),
    ]
    assert [turn.reward for turn in split.turns] == [0.0, 1.0]
    assert found.extra(2) == {
        "format": "verl JSONL",
        "reconstructed": ["groups", "turn_rewards", "turns"],
        "fields": {"gts": "5", "acc": 1.0, "request_id": "r1", "system": "You are a helper."},
    }
    assert split.is_success is True
    assert found.trajectories[3].is_success is False
    assert split.group_index == found.trajectories[3].group_index
    (odd,) = found.trajectories[0].turns
    assert odd.response == "It is\nuser\nfriendly.", "no reply follows, so the text stays whole"
    assert odd.reward == 0.5


def test_verl_v1_groups_are_the_samples(fixture: Fixture) -> None:
    found = fixture("verl_v1")
    assert [(t.group_index, t.sibling_index) for t in found.trajectories] == [
        (0, 0),
        (0, 1),
        (1, 0),
    ]
    assert found.extra(0)["fields"]["uid"] == "ab_cd_0_0"
    assert "reconstructed" not in found.extra(0)


def test_vagen_turns_are_exact(fixture: Fixture) -> None:
    found = fixture("vagen")
    (trajectory,) = found.trajectories
    assert texts(trajectory.turns) == [
        ("Look: <image>", "<think>go</think><answer>Up</answer>"),
        ("user\nis a word here", "<answer>Down</answer>"),
    ]
    assert "turns" not in found.extra(0)["reconstructed"]
    assert trajectory.episode_return == 2.0


def test_trl(fixture: Fixture) -> None:
    found = fixture("trl")
    trajectories = found.trajectories
    assert [t.step for t in trajectories] == [5] * 4
    assert places(found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [t.episode_return for t in trajectories] == [1.5, 0.0, 1.0, 0.0]
    assert trajectories[0].turns[0].info == {
        "reward/format_reward": 1.0,
        "reward/accuracy_reward": 0.5,
    }
    assert trajectories[2].turns[0].info == {"reward/accuracy_reward": 1.0}, "None stays absent"
    assert found.report.reconstructed["reward_terms"] == 4
    assert found.extra(0)["fields"] == {"image_name": "i"}
    assert found.extra(0)["reconstructed"] == ["groups", "reward_terms"]
    advantages = found.reader.sql(
        "SELECT advantage, kept FROM trajectories ORDER BY id"
    ).to_pylist()
    assert [row["advantage"] for row in advantages] == [0.7, -0.7, 0.7, -0.7]


def test_files_that_trl_wrote(fixture: Fixture) -> None:
    """Two steps of GRPO on the shipped policy; the second function returns None at times."""
    found = fixture("trl_written")
    assert [t.step for t in found.trajectories] == [1] * 4 + [2] * 4
    assert places(found) == [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
    first, second = found.trajectories[:2]
    assert texts(first.turns) == [("Arm 0:", " up 1 right. Near: up")]
    assert first.episode_return == pytest.approx(3.1)
    assert set(second.turns[0].info) == {"reward/length_reward"}
    column = found.reader.sql("SELECT advantage FROM trajectories WHERE step = 1 ORDER BY id")
    assert column.column("advantage").to_pylist()[:2] == pytest.approx([0.707, -0.707], abs=1e-3)
