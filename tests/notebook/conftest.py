"""Small runs for a notebook: one that collapsed, and files of another trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_run import make_run
from made_run import step_metrics as metrics_of_step
from trajectories import make_trajectory

from echoscope.store.records import StepMetrics, Turn
from echoscope.store.writer import RunWriter

FIXTURES = Path(__file__).parents[1] / "store" / "importers" / "fixtures"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`runs/demo`: 30 steps. Tests only read it."""
    return make_run(tmp_path_factory.mktemp("made") / "runs" / "demo", 30)


def write_run(path: Path, steps: range, values: object = None, **options: object) -> Path:
    """A finished run with these metrics at each step, and no episodes."""
    writer = RunWriter.create(path, run_id=path.name, config={}, is_packing=False, **options)
    made: list[StepMetrics] = []
    for step in steps:
        numbers = values(step) if callable(values) else {}
        made = [metrics_of_step(path.name, step, numbers)]
        writer.commit_step(metrics=made, trajectories=[], outcomes=[])
    writer.close(status="finished")
    return path


@pytest.fixture(scope="session")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 steps of which the last 30 have lost their format."""

    def values(step: int) -> dict[str, float]:
        is_fine = step < 50
        return {
            "rollout/success_rate": 0.6 if is_fine else 0.1,
            "rollout/action_valid_frac": 0.95 if is_fine else 0.2,
            "policy/entropy": 1.0,
            "text/loop_frac": 0.0,
        }

    return write_run(tmp_path_factory.mktemp("made") / "runs" / "collapsed", range(80), values)


@pytest.fixture
def messages(tmp_path: Path) -> Path:
    """Rollouts of another trainer in OpenAI's form: two episodes of each of two steps."""
    path = tmp_path / "chat.jsonl"
    append_messages(path, range(2))
    return path


def append_messages(path: Path, steps: range) -> None:
    rows = [
        {
            "step": step,
            "group_id": "g",
            "reward": float(k),
            "messages": [
                {"role": "user", "content": f"question {step}"},
                {"role": "assistant", "content": f"reply {k}"},
            ],
        }
        for step in steps
        for k in range(2)
    ]
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def one_episode(tmp_path: Path) -> object:
    """Writes a run with one episode of the given turns; gives its folder."""

    def write(*turns: Turn, **fields: object) -> Path:
        path = tmp_path / "one"
        writer = RunWriter.create(path, run_id="one", config={}, is_packing=False)
        trajectory = make_trajectory(*turns, **fields)
        writer.commit_step(
            metrics=[metrics_of_step("one", 1, {"reward/return_mean": 0.5})],
            trajectories=[trajectory],
            outcomes=[],
        )
        writer.close(status="finished")
        return path

    return write
