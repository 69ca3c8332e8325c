"""verifiers, rLLM, SkyRL, NeMo-RL, AReaL, ROLL, tinker-cookbook, ART, Inspect, VAGEN evaluation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from echoscope.store.records import FinishReason, Split, StopReason

from .conftest import Imported, texts

Fixture = Callable[[str], Imported]


def rewards(trajectory: object) -> list[float]:
    return [turn.reward for turn in trajectory.turns]  # type: ignore[attr-defined]


def places(found: Imported) -> list[tuple[int, int]]:
    return [(t.group_index, t.sibling_index) for t in found.trajectories]


def test_verifiers_results(fixture: Fixture) -> None:
    found = fixture("verifiers")
    first, second, third = found.trajectories
    assert texts(first.turns) == [("Guess", "<think>a</think>crane"), ("GXX", "caper")]
    assert rewards(first) == [0.0, 0.7]
    assert first.env_id == "wordle"
    assert first.duration_s == 1.0
    assert (first.stop_reason, second.stop_reason) == (StopReason.MAX_TURNS, StopReason.TERMINATED)
    assert third.stop_reason is StopReason.ENV_ERROR
    assert places(found) == [(0, 0), (0, 1), (1, 0)]
    assert first.turns[-1].info == {"correct": 0.5, "num_turns": 2.0}
    fields = found.extra(0)["fields"]
    assert fields == {
        "example_id": 3,
        "is_truncated": False,
        "timing": {"generation_ms": 900.0, "scoring_ms": 100.0},
        "answer": "caper",
        "system": "Sys",
        "stop_condition": "max_turns_reached",
        "token_usage": {"input_tokens": 10},
    }, "metrics that are repeated at the top level are kept once"
    assert found.extra(1)["fields"]["info"] == {"difficulty": 2}


def test_verifiers_episodes(fixture: Fixture) -> None:
    found = fixture("verifiers_v1")
    by_split = {split: [t for t in found.trajectories if t.split is split] for split in Split}
    (evaluated,) = by_split[Split.EVAL]
    first, left, right = by_split[Split.IMPORT]
    assert evaluated.step == first.step == 4
    assert texts(first.turns) == [("Q", "<think>why</think>A1"), ("obs", "A2")]
    assert first.episode_return == pytest.approx(0.5 * 1.0 + 0.2)
    assert first.turns[0].prompt_tokens.tolist() == [1, 2, 3, 4, 5]
    assert first.turns[0].response_tokens.tolist() == [6, 7]
    assert first.turns[1].prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert first.turns[1].response_tokens.tolist() == [9, 10]
    assert np.allclose(first.turns[1].logprobs, [-0.3, -0.4])
    assert first.policy_version == 4
    assert first.turns[-1].info == {"calls": 2, "reward/solved": 1.0, "reward/style": 0.2}
    assert [texts(t.turns) for t in (left, right)] == [[("Q2", "left")], [("Q2", "right")]]
    assert left.stop_reason is StopReason.ENV_ERROR
    (row,) = found.reader.sql(
        "SELECT advantage, kept FROM trajectories WHERE id = $1", [first.id]
    ).to_pylist()
    assert row == {"advantage": 0.9, "kept": True}
    assert found.report.reconstructed["branches"] == 2
    assert {t.env_id for t in found.trajectories} == {"sudoku"}


def test_rllm_training(fixture: Fixture) -> None:
    found = fixture("rllm")
    first, second = found.trajectories
    assert first.step == 6
    assert texts(first.turns) == [("o1", "a1"), ("o2", "a2")]
    assert rewards(first) == [0.25, 0.75], "rewards of steps add up to the trajectory's"
    assert rewards(second) == [0.0, 0.0], "they do not, so the outcome counts"
    assert [t.is_success for t in (first, second)] == [True, False]
    assert first.stop_reason is StopReason.TERMINATED
    assert first.duration_s == 2.5
    assert places(found) == [(0, 0), (0, 1)]
    fields = found.extra(0)["fields"]
    assert fields["episode"]["metadata"] == {"m": 1}
    assert fields["trajectory"]["uid"] == "u0"


def test_rllm_evaluation_has_tokens(fixture: Fixture) -> None:
    (trajectory,) = fixture("rllm_eval").trajectories
    (turn,) = trajectory.turns
    assert turn.prompt_tokens.tolist() == [1, 2]
    assert turn.response_tokens.tolist() == [3, 4, 5]
    assert np.allclose(turn.logprobs, [-0.1, -0.2, -0.3])
    assert turn.policy_version == 3


def test_skyrl(fixture: Fixture) -> None:
    found = fixture("skyrl")
    first, second = found.trajectories
    assert first.step == 8
    assert texts(first.turns) == [("Q", "a1"), ("obs", "a2")]
    assert first.episode_return == 1.0, "scores of tokens are added up"
    assert second.episode_return == 0.25
    assert first.turns[-1].finish_reason is FinishReason.LENGTH
    assert (first.env_id, first.tag) == ("gsm8k", "openai/gsm8k")
    assert found.extra(0)["fields"]["env_extras"] == {"k": 1}
    assert found.extra(0)["reconstructed"] == ["groups", "step", "turn_rewards"]


def test_nemo_rl(fixture: Fixture) -> None:
    found = fixture("nemo")
    evaluated, first, second = found.trajectories
    assert evaluated.split is Split.EVAL
    assert texts(evaluated.turns) == [("", "whole text")]
    assert first.step == 3
    assert texts(first.turns) == [("Q?", "A.")]
    assert first.turns[0].prompt_tokens.tolist() == [1, 2]
    assert first.turns[0].response_tokens.tolist() == [3, 4, 5]
    assert np.allclose(first.turns[0].logprobs, [-0.1, -0.2, -0.3])
    assert texts(second.turns) == [("Q?", "B."), ("more", "C.")]
    rows = found.reader.sql(
        "SELECT advantage, kept FROM trajectories WHERE split = 'import' ORDER BY id"
    ).to_pylist()
    assert rows == [{"advantage": 0.5, "kept": True}, {"advantage": -0.5, "kept": False}]


def test_areal(fixture: Fixture) -> None:
    found = fixture("areal")
    assert {t.step for t in found.trajectories} == {5}, "the folder is the version, the file a task"
    assert places(found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    first = found.trajectories[0]
    assert texts(first.turns) == [("Q11", "<think>\nhm</think>yes")]
    assert first.turns[0].reasoning == "\nhm"
    assert first.policy_version == 4
    assert [t.episode_return for t in found.trajectories] == [0.0, 1.0, 0.0, 1.0]
    assert found.extra(0)["fields"]["tail_version"] == 5


def test_roll_agents(fixture: Fixture) -> None:
    found = fixture("roll_agentic")
    first, second = found.trajectories
    assert first.step == 2
    assert rewards(first) == [0.5, 1.0]
    assert rewards(second) == [0.0, 2.0]
    assert first.env_id == "SokobanTag"
    assert first.is_success is True
    assert first.stop_reason is StopReason.MAX_TURNS
    assert first.final_observation == "end"
    assert found.report.rows.total == 0, "empty rows of a stepwise trajectory are no loss"


def test_roll_answers(fixture: Fixture) -> None:
    found = fixture("roll_rlvr")
    assert [t.episode_return for t in found.trajectories] == [1.0, 0.0]
    assert places(found) == [(0, 0), (0, 1)]
    assert texts(found.trajectories[1].turns) == [("P", "6")]
    assert found.extra(0)["fields"]["ground_truth"] == "5"


def test_tinker_cookbook(fixture: Fixture) -> None:
    found = fixture("tinker")
    first = found.trajectories[0]
    assert first.step == 3
    assert rewards(first) == [0.5, 1.0], "the final reward is added to the last step"
    assert first.episode_return == 1.5
    assert first.turns[0].info == {"m": 1, "ob_len": 10, "ac_len": 5}
    assert first.turns[1].info["correct"] == 1.0
    assert places(found) == [(0, 0), (0, 1)]


def test_art(fixture: Fixture) -> None:
    found = fixture("art")
    first, second = found.trajectories
    assert first.step == 12
    assert texts(first.turns) == [("U", "A")]
    assert first.turns[0].finish_reason is FinishReason.LENGTH
    assert first.turns[0].info == {"win": 1.0}
    assert second.episode_return == 0.0
    assert places(found) == [(0, 0), (0, 1)]
    assert found.extra(0)["fields"]["metadata"] == {"id": "a"}


def test_inspect(fixture: Fixture) -> None:
    found = fixture("inspect")
    first, second = found.trajectories
    (turn,) = first.turns
    assert turn.observation == "Long question", "attachments are put back"
    assert turn.response.startswith("<think>let me</think>\n5")
    assert [(c.name, c.arguments, c.result) for c in turn.calls] == [("calc", '{"x": 1}', "5")]
    assert [t.is_success for t in (first, second)] == [True, False]
    assert turn.info == {"score/match": 1.0, "score/len": 3.0}
    assert first.env_id == "arith"
    assert first.duration_s == 1.25
    assert places(found) == [(0, 0), (0, 1)]
    assert found.extra(0)["fields"]["target"] == "5"


def test_vagen_evaluation(fixture: Fixture) -> None:
    (trajectory,) = fixture("vagen_eval").trajectories
    assert texts(trajectory.turns) == [("o", "<answer>Up</answer>")]
    assert (trajectory.env_id, trajectory.tag) == ("sokoban", "tag_base")
    assert trajectory.is_success is True
    assert trajectory.episode_return == 1.25


def test_each_turn_of_a_vagen_evaluation_has_the_reward_and_the_numbers_of_its_own_step(
    fixture: Fixture,
) -> None:
    """`infos` begins with what the reset said, `rewards` with the first step."""
    (trajectory,) = fixture("vagen_turns").trajectories
    assert texts(trajectory.turns) == [
        ("o1", "<answer>Up</answer>"),
        ("o2", "<answer>Left</answer>"),
    ]
    assert [turn.reward for turn in trajectory.turns] == [0.25, 1.0]
    assert [turn.info["distance"] for turn in trajectory.turns] == [2.0, 0.0]
    assert trajectory.episode_return == 1.25
    assert trajectory.stop_reason is StopReason.TERMINATED


def test_an_archive_that_inspect_wrote(fixture: Fixture) -> None:
    """Two samples, two epochs, of a model that only recites; members are packed with Zstandard."""
    found = fixture("inspect_written")
    assert places(found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    first = found.trajectories[0]
    assert texts(first.turns) == [("What is 2 + 3?", "<think>two and three</think>5")]
    assert first.turns[0].finish_reason is FinishReason.STOP
    assert [t.is_success for t in found.trajectories] == [True, False, False, True]
    assert first.env_id == "arith"
    assert found.extra(0)["fields"]["target"] == "5"
    assert found.extra(0)["fields"]["system"] == "Be brief."
