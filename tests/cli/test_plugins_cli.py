"""echoscope plugins: what it lists, and how a check ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from echoscope.cli.plugins import app
from echoscope.text import user_code


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_the_list_names_kinds_and_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        user_code, "entry_points", lambda group: {"floor": "p:f"} if "losses" in group else {}
    )
    monkeypatch.setattr(user_code, "import_named", lambda name: pytest.fail(f"imported {name}"))
    rows = json.loads(run("list", "--json").output)["plugins"]
    assert {row["kind"]: row["installed"] for row in rows} == {
        **{kind: {} for kind in user_code.GROUPS},
        "loss": {"floor": "p:f"},
    }
    assert "floor" in run("list").output


def test_a_check_says_what_is_wrong_and_exits_with_1() -> None:
    right = run("check", "loss", "own_plugins:clip", "low=0.1")
    assert right.exit_code == 0
    assert right.output == "loss own_plugins:clip: ok (4 checks passed)\n"
    wrong = run("check", "loss", "own_plugins:no_gradient")
    assert wrong.exit_code == 1
    assert "failed  returns: loss plug-in 'own_plugins:no_gradient' has no grad" in wrong.output
    report = json.loads(run("check", "loss", "own_plugins:no_gradient", "--json").output)
    assert (report["ok"], report["passed"], list(report["failed"])) == (
        False,
        ["loads"],
        ["returns"],
    )


def test_mistakes_name_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules_of_mine.py").write_text(
        "from collections import Counter\n\n\n"
        "def undecided(groups, *, least=0.2):\n"
        "    return Counter(groups)\n"
    )
    monkeypatch.chdir(tmp_path)
    answer = run("check", "selection", "rules_of_mine:undecided", "leest=0.25")
    assert answer.output.endswith(
        "got an unexpected keyword argument 'leest'; its parameters are least\n"
    )
    answer = run("check", "selection", "rules_of_mine:nope")
    assert answer.output.endswith("has no function 'nope'; known: undecided\n")
    assert "(0 checks passed)" in answer.output
    kinds = "kinds are advantage, loss, selection, reward, observer, environment"
    assert kinds in str(run("check", "advants", "rules_of_mine:nope").exception)


def test_environments_have_checks_of_their_own() -> None:
    answer = run("check", "environment", "bandit")
    assert answer.exit_code == 0
    assert re.search(r"bandit +yes +\d+ passed +yes +20 of 20 ", answer.output)
