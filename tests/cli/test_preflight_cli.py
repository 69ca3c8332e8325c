"""echoscope preflight: what a person reads before a long run, and what a script decides by."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.cli.preflight import train_command, warm_start_command
from echoscope.envs.checks.players import has_expert
from echoscope.envs.settings import EnvGroup

Command = Callable[..., Any]


def test_a_run_worth_starting(type_command: Command, config_file: Path) -> None:
    """Untrained, so format is broken; its reward, lower-case letters, is shaping alone."""
    answer = type_command("preflight", "--config", config_file, "--groups", "2")
    assert answer.code == 3
    assert "stop: broken format." in answer.out
    assert "Do not start: broken format" in answer.out
    way_out = "context.instructions=true context.format_hint=true"
    assert f"echoscope train --config {config_file} {way_out}" in answer.out


def test_json(type_command: Command, config_file: Path) -> None:
    arguments = ("--config", config_file, "--groups", "2", "--json", "steps=7")
    answer = json.loads(type_command("preflight", *arguments).out)
    assert answer["go"] is False
    assert answer["cost"]["steps"] == 7
    assert answer["numbers"]["num_groups"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "name a recipe"),
        (("sokobann",), 1, "did you mean 'sokoban'"),
        (("demo", "optim.lrr=1"), 1, "did you mean 'lr'"),
        (("demo", "envs.group_size=1"), 1, "must be at least 2"),
    ],
)
def test_mistakes(
    type_command: Command, arguments: tuple[str, ...], code: int, message: str
) -> None:
    answer = type_command("preflight", *arguments)
    assert answer.code == code
    assert message in answer.err


def test_an_expert_is_one_that_knows_a_way() -> None:
    assert has_expert(EnvGroup(env="frozen_lake"))
    assert not has_expert(EnvGroup(env="gymnasium", params={"env": "CliffWalking-v1"}))


def test_commands_keep_what_was_typed() -> None:
    overrides = ["envs.train.0.env=bandit", "steps=9"]
    changed = train_command("demo", Path("my run.yaml"), overrides, {"steps": 5, "model.x": True})
    assert changed == (
        "echoscope train demo --config 'my run.yaml' envs.train.0.env=bandit steps=5 model.x=true"
    )
    assert warm_start_command("demo", None).startswith("echoscope sft generate demo -o")
