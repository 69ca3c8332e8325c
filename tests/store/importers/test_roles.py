"""What a user says of the keys of rows, and what rewards of 0 and 1 say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rollout_import import import_run

from echoscope.diagnostics.read.names import ROLES
from echoscope.store.importers import read
from echoscope.store.importers.format import NO_ROLES, Roles, Where
from echoscope.store.importers.importing import ImportingError
from echoscope.store.importers.survey import format_of
from echoscope.store.reader import RunReader, open_run

UNKNOWN_FORM = {"task": {"text": "2 + 3?"}, "said": ["<think>a</think>5"], "pts": 1, "at": 3}
ROLES_OF_IT = Roles(prompt="task.text", reply="said.0", reward="pts", step="at")


def imported(
    folder: Path, rows: Sequence[Any], roles: Roles = NO_ROLES, name: str = "rows.jsonl"
) -> RunReader:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = folder.with_name(f"{folder.name}-run")
    return open_run(import_run(folder, run, roles=roles).path)


def test_the_roles_are_those_that_map_knows() -> None:
    assert tuple(field.name for field in dataclasses.fields(Roles)) == ROLES


def test_a_row_of_an_unknown_form_is_read_by_its_roles(tmp_path: Path) -> None:
    assert format_of(UNKNOWN_FORM) is None
    run = imported(tmp_path / "in", [UNKNOWN_FORM], ROLES_OF_IT)
    (episode,) = run.trajectories_of_step(3)
    (turn,) = episode.turns
    assert (turn.observation, turn.response, turn.reward) == ("2 + 3?", "<think>a</think>5", 1.0)
    assert json.loads(episode.extra or "")["fields"]["task"] == {"text": "2 + 3?"}


def test_roles_change_what_a_known_format_says(tmp_path: Path) -> None:
    row = {"input": "user\nq\nassistant\n", "output": "a", "gts": "5", "score": 0.5, "step": 1}
    rows = [{**row, "mine": 2.0, "won": "yes", "case": k // 2} for k in range(4)]
    run = imported(tmp_path / "in", rows, Roles(reward="mine", success="won", group="case"))
    episodes = run.trajectories_of_step(1)
    assert [e.episode_return for e in episodes] == [2.0] * 4
    assert [e.is_success for e in episodes] == [True] * 4
    assert [e.group_index for e in episodes] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        (Roles(reward="pt", reply="said.0"), "--map reward=pt: .* has the key 'pt'; did you mean"),
        (Roles(reply="said.0", step="when"), "--map step=when: no row"),
    ],
)
def test_a_key_that_no_row_has_is_named(tmp_path: Path, roles: Roles, sentence: str) -> None:
    with pytest.raises(ImportingError, match=sentence):
        imported(tmp_path / "in", [UNKNOWN_FORM], roles)


def test_other_roles_write_the_steps_again(tmp_path: Path) -> None:
    rows = [{**UNKNOWN_FORM, "other": 7.0}]
    imported(tmp_path / "in", rows, ROLES_OF_IT)
    run = imported(tmp_path / "in", rows, dataclasses.replace(ROLES_OF_IT, reward="other"))
    assert run.trajectories_of_step(3)[0].episode_return == 7.0


def pairs(rewards: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {"prompt": "q", "response": "a", "reward": reward, "step": k // 25}
        for k, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize(
    ("rewards", "success"),
    [
        ([0, 1] * 25, [False, True]),
        ([-1.0, 1.0] * 25, [False, True]),  # verl's 2r - 1
        ([0] * 50, [False, False]),
        ([0, 1] * 24, [None, None]),  # too few
        ([1] * 50, [None, None]),  # a constant says nothing
        ([*([0, 1] * 25), 0.5], [None, None]),
        ([*([0, 1] * 25), -1], [None, None]),
    ],
)
def test_rewards_of_0_and_1_are_success(
    tmp_path: Path, rewards: list[float], success: list[bool | None]
) -> None:
    run = imported(tmp_path / "in", pairs(rewards))
    episodes = run.trajectories_of_step(0)
    assert [e.is_success for e in episodes[:2]] == success
    marks = json.loads(episodes[0].extra or "").get("reconstructed", [])
    assert ("binary_success" in marks) == (success != [None, None])
    rate = run.metrics("rollout/success_rate")[1]
    assert len(rate) == (0 if success == [None, None] else len({r["step"] for r in pairs(rewards)}))
    assert run.metrics("rollout/num_episodes")[1].sum() == len(rewards)


def test_a_success_that_is_written_counts(tmp_path: Path) -> None:
    rows = [{**row, "success": True} for row in pairs([0, 1] * 25)]
    run = imported(tmp_path / "in", rows)
    assert {e.is_success for e in run.trajectories_of_step(0)} == {True}


def test_a_further_reward_that_is_neither_takes_the_success_back(tmp_path: Path) -> None:
    rows = pairs([0, 1] * 25)
    imported(tmp_path / "in", rows)
    run = imported(tmp_path / "in", [*rows, {**rows[0], "reward": 0.3, "step": 2}])
    assert {e.is_success for step in range(3) for e in run.trajectories_of_step(step)} == {None}


@pytest.mark.parametrize(
    ("value", "success"),
    [(True, True), (0, False), (1.0, True), (-1, False), ("yes", True), ("False", False)],
)
def test_what_a_field_of_success_may_hold(value: Any, success: bool) -> None:
    assert read.success(value) is success
    assert read.success(0.5) is None


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_5_alice.json", 5),
        ("global_step_240_observe_trajectories.json", 240),
        ("run-iter3.eval.jsonl", 3),
        ("steps_7_x.json", None),
        ("stepwise_2x.json", None),
    ],
)
def test_the_step_may_stand_within_the_name_of_a_file(name: str, step: int | None) -> None:
    assert Where(path=Path(name)).step == step  # type: ignore[arg-type]


def test_one_document_a_sample_with_the_step_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for step in range(3):
        for name in ("alice", "bob"):
            row = {"problem": f"q of {name}", "response": "a", "score": 0.5}
            (folder / f"step_{step}_{name}.json").write_text(json.dumps(row, indent=1))
    run = open_run(import_run(folder, tmp_path / "run").path)
    assert [len(run.trajectories_of_step(step)) for step in range(3)] == [2, 2, 2]


def test_verl_without_gts_is_not_called_verl_agent() -> None:
    row = {"input": "user\nq\nassistant\n", "output": "5", "score": 1.0, "step": 1}
    plain = format_of(row)
    assert plain is not None
    assert plain.trainer == "verl"
    agent = format_of({**row, "input": "Present it within <action> </action> tags."})
    assert agent is not None
    assert agent.trainer == "verl-agent"
    # A reply without an action, in a file of verl-agent, is of verl-agent.
    assert format_of(row, agent) is agent
    assert format_of(row, plain) is plain


def test_data_of_fine_tuning_is_no_rollout() -> None:
    assert format_of({"prompt": "q", "response": "a"}) is None
