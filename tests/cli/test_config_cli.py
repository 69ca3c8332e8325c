"""`echoscope config`: what a recipe resolves to, and what may be set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from echoscope.core.config.loading import live_fields, load_config, recipe_names, validate

Type = Callable[..., Any]


def test_without_a_recipe_it_lists_them(type_command: Type) -> None:
    lines = type_command("config", "show").out.splitlines()
    assert [line.split()[0] for line in lines] == recipe_names()
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_resolved_recipe_can_be_used_again(
    type_command: Type, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    answer = type_command("config", "show", "frozen_lake", "optim.lr=0.5", *arguments)
    assert answer.code == 0
    expected = load_config("frozen_lake", overrides=["optim.lr=0.5"])
    values = json.loads(answer.out) if arguments else yaml.safe_load(answer.out)
    assert validate(values) == expected
    (tmp_path / "again.yaml").write_text(answer.out, encoding="utf-8")
    assert load_config(file=tmp_path / "again.yaml") == expected


def test_the_memory_that_the_run_needs_is_a_comment_at_the_end(type_command: Type) -> None:
    answer = type_command("config", "show", "frozen_lake", "model.device=cpu")
    last = answer.out.splitlines()[-1]
    assert last.startswith("# memory: ")
    assert "on the CPU, estimated: weights 4 MiB, optimizer 7 MiB" in last
    elsewhere = type_command("config", "show", "frozen_lake", "model.path=nobody/nothing")
    assert "'nobody/nothing' is not on this disk" in elsewhere.out.splitlines()[-1]


def test_a_file_of_ones_own(type_command: Type, config_file: Path) -> None:
    answer = type_command("config", "show", "--config", config_file, "steps=7", "--json")
    assert json.loads(answer.out)["steps"] == 7


def test_the_schema_describes_every_setting(type_command: Type) -> None:
    schema = json.loads(type_command("config", "schema").out)
    assert schema["properties"].keys() == set(load_config("frozen_lake").model_dump())
    assert schema["additionalProperties"] is False


def test_live_settings_are_listed(type_command: Type) -> None:
    lines = type_command("config", "schema", "--live").out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(live_fields())


def test_a_mistake_is_one_line(type_command: Type) -> None:
    answer = type_command("config", "show", "frozen_lake", "optim.lrr=1")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: unknown key 'optim.lrr'; did you mean 'lr'?\n"
