"""Rollouts whose keys the user names, and rewards that say success, while they are watched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from followed_run import add, followed

from echoscope.diagnostics.judge.courses.channels import known_keys
from echoscope.diagnostics.read.names import parse_map
from echoscope.store.reader import open_run

MAPPING = parse_map(
    ["prompt=ask.text", "reply=says", "reward=pts", "step=at"], known_keys(), has_rollouts=True
)


def rows(step: int, rewards: list[float]) -> str:
    values = (
        {"ask": {"text": f"q{index // 4}"}, "says": f"reply {index}", "pts": reward, "at": step}
        for index, reward in enumerate(rewards)
    )
    return "".join(json.dumps(value) + "\n" for value in values)


@pytest.mark.parametrize("is_document", [False, True])
def test_keys_of_rollouts_can_be_named(tmp_path: Path, is_document: bool) -> None:
    files = tmp_path / "in"
    files.mkdir()
    text = rows(3, [0, 1] * 32) + rows(4, [1] * 48 + [0] * 16)
    if is_document:
        listed = [json.loads(line) for line in text.splitlines()]
        (files / "dump.json").write_text(json.dumps(listed))
    else:
        add(files / "dump.jsonl", text)
    with followed(files, tmp_path / "run", mapping=MAPPING) as watch:
        assert watch.look(3) == [3, 4]
        assert watch.values("rollout/success_rate") == {3: 0.5, 4: 0.75}
        assert watch.values("rollout/num_groups") == {3: 16.0, 4: 16.0}
        (turn,) = open_run(watch.run).trajectories_of_step(3)[0].turns
        assert (turn.observation, turn.response) == ("q0", "reply 0")


def test_a_reward_that_is_no_success_is_none(tmp_path: Path) -> None:
    add(tmp_path / "dump.jsonl", rows(3, [0, 0.5] * 32) + rows(4, [0, 1] * 32))
    with followed(tmp_path / "dump.jsonl", tmp_path / "run", mapping=MAPPING) as watch:
        assert watch.look(3) == [3, 4]
        assert "rollout/success_rate" not in open_run(watch.run).metric_keys()
