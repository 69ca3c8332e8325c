"""`diagnose` on the rollouts of another trainer, without an import."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from echoscope.cli import app
from echoscope.diagnostics.judge.verdict import diagnose

FIXTURES = Path(__file__).parents[2] / "store" / "importers" / "fixtures"
SIDES = ("left", "right", "up", "down")


def verl_run(folder: Path, num_steps: int, collapses_at: int) -> Path:
    """A run of verl whose replies name the board's goal until they become one template."""
    folder.mkdir()
    draw = random.Random(0)
    for step in range(num_steps):
        rows: list[dict[str, Any]] = []
        for prompt in range(8):
            goal, row = draw.choice(SIDES), draw.randrange(9)
            for _ in range(4):
                is_lost = step >= collapses_at
                text = (
                    "I will think step by step and move towards the goal now."
                    if is_lost
                    else f"The goal is {goal} in row {row}, {draw.choice(SIDES)} is free, so "
                    f"{goal} of {prompt} it is."
                )
                won = float(draw.random() < (0.1 if is_lost else 0.7))
                rows.append(
                    {
                        "input": f"Board {prompt}: goal {goal}, row {row}",
                        "output": f"<think>{text}</think><answer>{goal}</answer>",
                        "gts": goal,
                        "score": won,
                        "acc": won,
                        "step": step,
                    }
                )
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{step}.jsonl").write_text(text)
    return folder


@pytest.mark.long
def test_a_template_collapse_is_found_in_the_dumps_of_verl(tmp_path: Path) -> None:
    verdict = diagnose(verl_run(tmp_path / "rollouts", 40, 20))
    assert verdict.state.is_failure
    assert "TEMPLATE_COLLAPSE" in verdict.kinds
    assert verdict.onset_step is not None
    assert 16 <= verdict.onset_step <= 26
    notes = " ".join(verdict.notes)
    assert "judged from 1280 episodes of verl JSONL" in notes
    assert "echoscope import" in notes
    assert str(tmp_path) in notes
    assert "/tmp/echoscope-" not in verdict.text + notes, "the folder of the import is gone"


@pytest.mark.parametrize("name", sorted(p.name for p in FIXTURES.iterdir() if p.is_dir()))
def test_every_format_is_judged(name: str) -> None:
    verdict = diagnose(FIXTURES / name)
    assert verdict.notes[0].startswith("judged from ")


def test_replies_without_marks_are_measured_whole(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"prompt {k // 4}"},
                {"role": "assistant", "content": f"the answer to prompt {k // 4} is {k}"},
            ]
        }
        for k in range(16)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdict = diagnose(path)
    assert any("text of 1 of 1 step" in note for note in verdict.notes)


def test_metrics_in_json_lines_stay_metrics(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = (json.dumps({"step": k, "success_rate": 0.5, "reward": 0.1}) for k in range(40))
    path.write_text("\n".join(lines))
    assert not any(note.startswith("judged from") for note in diagnose(path).notes)


def test_metrics_without_a_reward_are_no_fault_beside_rollouts_with_one(tmp_path: Path) -> None:
    folder = verl_run(tmp_path / "rollouts", 3, 3)
    lines = (json.dumps({"step": k, "actor/entropy": 0.5}) for k in range(3))
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    notes = " ".join(diagnose(folder).notes)
    assert "the metrics of 3 steps" in notes
    assert "no reward was recognised" not in notes


def test_the_command_line(tmp_path: Path) -> None:
    runner = CliRunner()
    run = tmp_path / "run"
    source = str(FIXTURES / "ragen")
    told = runner.invoke(app, ["import", source, "-o", str(run)])
    assert told.exit_code == 0
    assert "added 3 episodes of RAGEN evaluation JSONL (step 0)." in told.output
    assert "Reconstructed in 2 episodes: actions were read from the answer" in told.output
    again = runner.invoke(app, ["import", source, "-o", str(run), "--json"])
    assert json.loads(again.output)["already_there"] == 3
    assert runner.invoke(app, ["diagnose", source]).exit_code == 5, "one step is too little"
