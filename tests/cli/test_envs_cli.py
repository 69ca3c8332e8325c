"""echoscope envs: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from echoscope.cli.envs import app
from echoscope.envs import registry
from echoscope.envs.base import EnvError


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def test_list() -> None:
    result = run("list")
    assert result.exit_code == 0
    assert "frozen_lake" in result.output
    rows = {row["id"]: row for row in json.loads(run("list", "--json").output)}
    sokoban = rows["sokoban"]
    assert (sokoban["max_turns"], sokoban["unavailable"]) == (5, None)
    assert sokoban["params"]["levels"] == {"type": "a string or null", "default": None}
    formats = ["grid", "coord", "both", "relative"]
    assert sokoban["params"]["observation"]["values"] == formats


def test_the_list_names_the_way_to_a_missing_package_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`[search]` is no markup, and the parameters of a world that cannot run are listed too."""
    monkeypatch.setattr(registry, "_is_installed", lambda name: name != "bm25s")
    monkeypatch.setitem(registry.BUILTIN, "lost", "no_such_module:World")
    monkeypatch.setattr(registry, "known_ids", lambda: ("bandit", "search_qa", "lost"))
    assert "needs bm25s, which is not installed: pip install -e '.[search]'" in " ".join(
        run("list").output.split()
    )
    _, search, lost, *_ = json.loads(run("list", "--json").output)
    assert search["params"]["hops"]["type"] == "an integer or null"
    assert "cannot import 'no_such_module'" in lost["unavailable"]


def test_the_expert_plays() -> None:
    result = run("play", "frozen_lake", "slip=0.0", "--expert", "--seed", "3")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "terminated: return 1, success yes"


def test_play_from_piped_input() -> None:
    lines = ["hint", "jump", "", "quit"]
    result = run("play", "sokoban", stdin="\n".join(lines))
    assert result.exit_code == 0
    assert "hint: " in result.output
    assert 'Invalid action "jump".' in result.output
    assert "penalty -0.1" in result.output
    assert "Invalid reply: no action found." in result.output
    assert result.output.splitlines()[-1] == "left the episode"


def test_the_end_of_input_leaves() -> None:
    assert run("play", "bandit").output.splitlines()[-1] == "left the episode"


def test_limits_stop_the_episode() -> None:
    result = run("play", "sokoban", "--max-turns", "1", "--max-actions-per-turn", "1", stdin="up\n")
    assert "max_turns: return -0.1, success no" in result.output


@pytest.mark.long
def test_check_all_prints_a_table_and_the_reason_of_every_skip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The conformance tests check every world; here three of them stand for all.
    missing = "their_lab_world"
    monkeypatch.setitem(registry.BUILTIN, missing, "no_such_module:World")
    monkeypatch.setattr(registry, "known_ids", lambda: ("bandit", "gymnasium", missing))
    result = run("check", "all", "--seeds", "3")
    assert result.exit_code == 0
    header, *rows = result.output.splitlines()
    assert header.split() == ["id", "installed", "checks", "deterministic", "expert", "solves"]
    assert rows[0].split()[:8] == ["bandit", "yes", "15", "passed", "yes", "3", "of", "3"]
    assert rows[2].split() == [missing, "no", "skipped"]
    assert f"skipped {missing}, all: cannot import 'no_such_module'" in result.output
    assert "skipped gymnasium, expert: there is no scripted expert" in result.output
    [players] = [line for line in result.output.splitlines() if line.startswith("players bandit")]
    assert players.startswith(
        "players bandit, mean return (success): echo 0 (0 %); empty 0 (0 %); "
    )

    monkeypatch.setattr(registry, "known_ids", lambda: ("bandit", missing))
    played, skipped = json.loads(run("check", "all", "--seeds", "3", "--json").output)
    assert (played["installed"], played["deterministic"]) == (True, True)
    assert (played["expert"]["num_solved"], played["expert"]["num_tried"]) == (3, 3)
    assert (skipped["installed"], skipped["deterministic"]) == (False, None)
    assert skipped["expert"] is None


@pytest.mark.long
def test_a_failed_check_exits_with_1() -> None:
    arguments = ["check", "frozen_lake", "size=8", "slip=0", "min_distance=5", "--max-turns", "1"]
    arguments += ["--seeds", "2"]
    result = run(*arguments)
    assert result.exit_code == 1
    assert "FAILED" in result.output
    assert "failed  frozen_lake, expert: an optimal episode takes" in result.output
    report = json.loads(run(*arguments, "--json").output)[0]
    assert report["ok"] is False
    assert set(report["failed"]) == {"expert"}


def test_a_world_that_raises_is_reported_and_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raising_world.py").write_text(
        "from echoscope.envs.worlds.bandit import Bandit\n"
        "class Raising(Bandit):\n"
        "    def step(self, action):\n"
        "        raise KeyError('lost')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result = run("check", "raising_world:Raising", "--seeds", "2")
    assert result.exit_code == 1
    row = result.output.splitlines()[1].split()
    assert row[:3] == ["raising_world:Raising", "yes", "FAILED"]
    assert "failed  raising_world:Raising, hostile: raised KeyError: 'lost'" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["play", "frozen_lak"], "did you mean 'frozen_lake'"),
        (["play", "frozen_lake", "sise=3"], "did you mean 'size' or 'slip'"),
        (["play", "frozen_lake", "size"], "'size' must look like KEY=VALUE"),
        (["play", "frozen_lake", "size=["], "is not valid YAML"),
        (["play", "gymnasium", "--expert"], "has no expert"),
        (["check", "all", "size=3"], "not with 'all'"),
    ],
)
def test_mistakes_are_one_line_errors(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    # The console script prints these as one line.
    assert isinstance(result.exception, EnvError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("size=1:30", "size is '1:30', but must be an integer"),
        ("size=[[" + "[" * 5_000, "the value of size"),
        ("size=" + "9" * 401, "holds a number of 401 digits"),
        ("size=!!python/name:os.system", "the value of size is not valid YAML"),
    ],
)
def test_parameters_are_read_as_strictly_as_settings(word: str, message: str) -> None:
    for command in ("check", "play"):
        result = run(command, "frozen_lake", word)
        assert message in f"{result.output} {result.exception}"


def test_an_own_class_in_the_working_directory_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "my_world.py").write_text(
        "from echoscope.envs.worlds.bandit import Bandit as Mine\n"
    )

    def echoscope(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = "from echoscope.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-P", "-c", code, "envs", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )

    assert "paid" in echoscope("play", "my_world:Mine", "--expert").stdout
    failed = echoscope("play", "no_such_world")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith("error: no environment 'no_such_world'")
    assert len(failed.stderr.splitlines()) == 1
