"""`echoscope export`: the report in sentences and as JSON, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer.main
from click.testing import CliRunner, Result
from made_run import make_run

from echoscope.cli import app


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_run(tmp_path / "run", num_steps=2)


def export(*words: str) -> Result:
    return CliRunner().invoke(typer.main.get_command(app), ["export", "run", *words])


def test_the_report(run: Path) -> None:
    answer = export("--to", "messages", "-o", "out.jsonl", "--steps", "1")
    assert answer.output.splitlines() == [
        "out.jsonl: wrote 4 conversations (step 1).",
        "messages has no place for: metrics of the steps.",
    ]


def test_the_report_as_json(run: Path) -> None:
    answer = export("--to", "csv", "-o", "out", "--where", "is_success", "--json")
    value = json.loads(answer.output)
    assert (value["rows"], value["first_step"], value["last_step"]) == (4, 0, 1)
    assert value["is_live"] is False


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--to", "messages", "-o", "out", "--steps", "1-2"), "must be A:B"),
        (("--to", "messages", "-o", "out", "--split", "test"), "must be train, eval or all"),
        (("--to", "sft", "-o", "out", "--form", "chat"), "must be messages or prompt-completion"),
        (("--to", "excel", "-o", "out"), "is no format"),
    ],
    ids=["steps", "split", "form", "format"],
)
def test_a_mistake(run: Path, words: tuple[str, ...], part: str) -> None:
    answer = export(*words)
    assert part in str(answer.exception)
    assert not Path("out").exists()
