"""A world in a module beside the user: every command that plays finds it, by the same name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Type = Callable[..., Any]
MODULE = "beside_all_commands"
WORLD = f"{MODULE}:Mine"


@pytest.fixture
def folder(tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the user works: his module, and a run file that names its class."""
    (tmp_path / f"{MODULE}.py").write_text(
        "from echoscope.envs.worlds.bandit import Bandit\n"
        "class Mine(Bandit):\n"
        "    __doc__ = Bandit.__doc__\n"
    )
    settings = yaml.safe_load(config_file.read_text())
    settings["envs"] = {"train": [{"env": WORLD, "groups": 2}], "eval": []}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings))
    mine = {"id": "mine", "entry_point": WORLD, "params": {"high_payout": 5}}
    settings["envs"] = {"train": [{"env": "mine", "groups": 2}], "eval": [{"env": "mine"}]}
    (tmp_path / "named.yaml").write_text(yaml.safe_dump(settings | {"register": [mine]}))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize(
    "command",
    [
        ("envs", "check", WORLD, "--seeds", "2"),
        ("envs", "play", WORLD, "--expert"),
        ("sft", "generate", WORLD, "--episodes", "2", "-o", "demos.jsonl"),
        ("sft", "generate", "own.yaml", "--episodes", "2", "-o", "demos.jsonl"),
        ("preflight", "--config", "own.yaml", "--groups", "2", "--no-information"),
        ("train", "--config", "own.yaml", "--headless", "-o", "run", "steps=1"),
        ("envs", "check", "mine", "--register", "named.yaml", "--seeds", "2"),
        ("envs", "play", "mine", "--register", "named.yaml", "--expert"),
        ("sft", "generate", "named.yaml", "--episodes", "2", "-o", "demos.jsonl"),
        ("preflight", "--config", "named.yaml", "--groups", "2", "--no-information"),
        ("train", "--config", "named.yaml", "--headless", "-o", "run", "steps=1"),
    ],
    ids=" ".join,
)
def test_a_world_beside_the_user_is_found(
    command: tuple[str, ...],
    folder: Path,
    type_command: Type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As an installed command begins: the folder it runs in is not searched.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p and p != str(folder)])
    answer = type_command(*command)
    # 3: preflight advises against this run, whose policy is untrained.
    assert answer.code in ((0, 3) if command[0] == "preflight" else (0,)), answer.err
    assert answer.err == ""
    assert MODULE in sys.modules


def test_a_run_with_a_registered_world_goes_on_without_its_file(
    folder: Path, type_command: Type
) -> None:
    start = ("train", "--config", "named.yaml", "--headless", "-o", "run", "steps=1")
    assert type_command(*start).code == 0
    (folder / "named.yaml").unlink()
    assert type_command("train", "--resume", "run", "--headless", "steps=2").code == 0


def test_the_configuration_names_the_class_of_a_registered_world(
    folder: Path, type_command: Type
) -> None:
    answer = type_command("config", "show", "--config", "named.yaml", "--json")
    [group] = json.loads(answer.out)["envs"]["train"]
    assert (group["env"], group["tag"], group["params"]) == (WORLD, "mine", {"high_payout": 5})
