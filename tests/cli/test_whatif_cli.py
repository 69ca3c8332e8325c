"""echoscope whatif: tables for people, one object for scripts, one line for mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture
def run(recorded_root: Path) -> Path:
    return recorded_root / "tiny"


def test_a_table_and_sentences(type_command: Command, run: Path) -> None:
    arguments = ("--set", "selection.strategy=top_k_abs", "--set", "selection.value=1")
    answer = type_command("whatif", run, *arguments)
    assert answer.code == 0
    assert "would keep: 4 of 8 groups (50 %)" in answer.out
    assert "the run kept: 8 of 8 groups (100 %), 100 % of the reward std" in answer.out
    assert "Filtering by reward spread" in answer.out


def test_without_settings_the_runs_own(type_command: Command, run: Path) -> None:
    answer = type_command("whatif", run, "--steps", "2:")
    assert "selection.strategy is none" in answer.out


def test_json(type_command: Command, run: Path) -> None:
    arguments = ("--set", "selection.strategy=top_k", "--set", "selection.value=0.5", "--json")
    answer = json.loads(type_command("whatif", run, *arguments, "--steps", "2").out)
    (step,) = answer["steps"]
    assert step["step"] == 2
    assert step["settings"]["strategy"] == "top_k"
    assert sum(group["would_keep"] for group in step["groups"]) == 1
    assert all(group["kept"] for group in step["groups"])
    assert answer["simulated"]["num_groups_kept"] == 1
    assert answer["payoff"]["worth"] == "unknown"  # two groups are too few


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "selection.valu=1"), "did you mean 'selection.value'"),
        (("--set", "optim.lr=1"), "no setting of the selection"),
        (("--set", "selection.value"), "is not KEY=VALUE"),
    ],
)
def test_mistakes_are_one_line(
    type_command: Command, run: Path, arguments: tuple[str, ...], message: str
) -> None:
    answer = type_command("whatif", run, *arguments)
    assert answer.code == 1
    assert message in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("steps", ["9", "x", "1:y"])
def test_steps_that_are_none(type_command: Command, run: Path, steps: str) -> None:
    assert type_command("whatif", run, "--steps", steps).code == 2


def test_no_run(type_command: Command, tmp_path: Path) -> None:
    answer = type_command("whatif", tmp_path)
    assert answer.code == 1
    assert "not a run" in answer.err
