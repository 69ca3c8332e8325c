"""A world in a module beside the user: every command that plays finds it, by the same name."""

from __future__ import annotations

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
        ("preflight", "--config", "own.yaml", "--groups", "2"),
        ("train", "--config", "own.yaml", "--headless", "-o", "run", "steps=1"),
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
