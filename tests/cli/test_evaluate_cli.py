"""`echoscope eval`: its tables, its JSON, and what it answers to mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echoscope.cli import app
from echoscope.diagnostics.measure.outcomes import Estimate
from echoscope.store.reader import open_run
from echoscope.store.writer import RunWriter

PLAY = ["eval", "tiny", "--recipe", "frozen_lake"]


def run(*arguments: str, code: int = 0) -> str:
    answer = CliRunner().invoke(app, [*arguments])
    assert answer.exit_code == code, answer.output
    return answer.output


def test_json_has_every_k_and_the_interval(tmp_path: Path) -> None:
    arguments = ["--tasks", "6", "--siblings", "2", "--json", "-o", str(tmp_path / "e")]
    answer = json.loads(run(*PLAY, *arguments))
    (world,) = answer["worlds"]
    assert (answer["num_played"], answer["num_planned"], answer["status"]) == (12, 12, "finished")
    assert list(world["pass_at"]) == list(world["pass_all"]) == ["1", "2"]
    assert world["success"] == world["pass_at"]["1"]
    assert world["success"]["low"] <= world["success"]["value"] <= world["success"]["high"]


def test_a_budget_ends_with_code_1_and_the_command_that_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "e")
    text = run(*PLAY, "--tasks", "5", "--max-episodes", "2", "-o", path, code=1)
    assert "3 of 5 episodes were not played: the budget of 2 episodes is used up" in text
    assert f"`echoscope eval --resume {path}` with a larger budget plays them" in text
    mistaken = CliRunner().invoke(app, ["train", "--resume", path]).exception
    assert f"is an evaluation: `echoscope eval --resume {path}`" in str(mistaken)
    assert "| frozen_lake | 5 |" in run(
        "eval", "--resume", path, "--max-episodes", "5", "--markdown"
    )


def test_two_evaluations_are_compared_on_shared_tasks(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    run(*PLAY, "--tasks", "4", "-o", str(first))
    text = run(*PLAY, "--tasks", "6", "-o", str(second), "--against", str(first))
    assert "cannot be told apart" in text or "is better than" in text
    again = json.loads(run("eval", "--resume", str(second), "--against", str(first), "--json"))
    assert again["against"]["differences"][0]["num_tasks"] == 4
    assert again["against"]["name"] == "tiny at temperature 1"
    other = ["--tasks", "4", "--seed", "5", "-o", str(tmp_path / "c"), "--against", str(first)]
    assert "has played none of these tasks" in run(*PLAY, *other, code=1)
    missing = [*PLAY, "-o", str(tmp_path / "d"), "--against", str(tmp_path / "nothing")]
    assert "no such folder" in str(CliRunner().invoke(app, missing).exception)
    assert not (tmp_path / "d").exists()


@pytest.mark.long
def test_a_suite_is_compared_with_an_evaluation_of_the_players_own_tasks(tmp_path: Path) -> None:
    first = tmp_path / "first"
    run(*PLAY, "--tasks", "3", "-o", str(first))
    suite = ["--suite", "generalisation", "--tasks", "3", "--json", "-o", str(tmp_path / "suite")]
    answer = json.loads(run(*PLAY, *suite, "--against", str(first)))
    (difference,) = answer["against"]["differences"]
    assert (difference["tag"], difference["num_tasks"]) == ("frozen_lake", 3)


@pytest.mark.long
def test_a_suite_shows_the_gap_to_the_players_own_tasks(tmp_path: Path) -> None:
    arguments = ["--suite", "generalisation", "--tasks", "2", "--json", "-o", str(tmp_path / "e")]
    answer = json.loads(run("eval", "tiny", "--env", "sokoban", *arguments))
    success = {world["tag"]: world["success"]["value"] for world in answer["worlds"]}
    assert next(iter(success)) == "sokoban / in"
    for tag, gap in answer["gaps"].items():
        assert tag.startswith(("sokoban / near / ", "sokoban / far / "))
        assert gap["value"] == pytest.approx(success[tag] - success["sokoban / in"])
        assert gap["low"] <= gap["value"] <= gap["high"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["eval"], "name who plays, or give --resume RUN"),
        (["eval", "tiny", "--resume", "x"], "--resume takes only a budget beside it"),
        ([*PLAY, "--max-cost", "1"], "--max-cost needs --price"),
    ],
)
def test_a_wrong_call_is_said(arguments: list[str], sentence: str) -> None:
    assert sentence in " ".join(run(*arguments, code=2).replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["eval", "tiny"], "name a world with --env"),
        (["eval", "tiny", "--env", "frozen_lak"], "frozen_lake"),
        ([*PLAY, "--suite", "generalization"], "did you mean generalisation"),
        ([*PLAY, "--tasks", "99999", "--siblings", "9"], "holds at most 99999: lower --tasks"),
        ([*PLAY, "context.max_respons_tokens=3"], "context.max_respons_tokens"),
    ],
)
def test_a_wrong_setting_is_said(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "e")])
    assert sentence in str(answer.exception).lower().replace("'", "")
    assert not (tmp_path / "e").exists()


def retold(path: Path, **entry: object) -> None:
    """An evaluation as a stranger may send it: what it says of itself is changed."""
    config = dict(open_run(path).info().config)
    config["evaluation"] = entry or {"who": "tiny"}
    RunWriter.resume(path, from_step=0, config=config).close(status="finished")


def test_what_a_stranger_named_is_printed_as_text(tmp_path: Path) -> None:
    path = tmp_path / "e"
    run(*PLAY, "--tasks", "2", "-o", str(path))
    entry = open_run(path).info().config["evaluation"]
    retold(path, **(entry | {"who": "[red]tiny[/nothing]"}))
    assert "[red]tiny[/nothing] at temperature 1" in run("eval", "--resume", str(path))


def test_a_run_that_does_not_say_who_played_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "e"
    run(*PLAY, "--tasks", "2", "-o", str(path))
    retold(path)
    answer = CliRunner().invoke(app, ["eval", "--resume", str(path)])
    assert "does not say who played, and how" in str(answer.exception)


def test_a_rate_nobody_knows_is_called_unknown() -> None:
    nan = float("nan")
    unknown = Estimate(value=nan, low=nan, high=nan)
    assert (unknown.as_rate(), unknown.as_points()) == ("unknown", "unknown")
