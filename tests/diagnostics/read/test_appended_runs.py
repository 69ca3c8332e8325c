"""Two runs in one file are two runs; a run that was resumed is one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from echoscope.diagnostics.read.metrics_file import read_metrics

RETURN = "reward/return_mean"


def written(folder: Path, steps: Iterable[int], **more: float) -> Path:
    """Rows in this order; the reward is the number of the row."""
    path = folder / "metrics.jsonl"
    rows = [{"step": step, "reward": float(n), **more} for n, step in enumerate(steps)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_of_two_runs_that_were_appended_the_last_is_read(tmp_path: Path) -> None:
    """Steps 0 to 23, a row at 0, then 0 to 28, as a public file has them."""
    table = read_metrics(written(tmp_path, [*range(24), 0, *range(29)]))
    assert (table.num_rows, table.steps[-1]) == (29, 28)
    assert table.columns[RETURN].tolist()[1:] == [float(n) for n in range(26, 54)]
    assert table.notes[0] == (
        "the steps begin again at their beginning: the last run is read, and 24 rows before it "
        "left out"
    )


@pytest.mark.parametrize(
    "steps",
    [
        [*range(24), *range(20, 40)],  # from a checkpoint
        [*range(24), *range(1, 40)],  # from the first one
        [*range(10), *range(5, 15), *range(10, 30)],  # twice
        [*range(24), 0],  # a last row about the beginning
        [*range(24), 0, 1, 24, 25],
        [5, 3, 9, 0, 2, 8, 1, 7, 4, 6],  # in any order
        [*range(9, -1, -1)],  # the newest first
        [0, 0, 0, 1, 1, 1, 2, 2, 2],  # a row an episode
    ],
    ids=str,
)
def test_these_are_one_run(tmp_path: Path, steps: list[int]) -> None:
    table = read_metrics(written(tmp_path, steps))
    assert table.runs in ((), ("",))
    assert table.steps.tolist() == sorted(set(steps))


def test_an_evaluation_that_is_written_behind_the_training_is_of_its_run(tmp_path: Path) -> None:
    path = written(tmp_path, range(9))
    rows = [{"step": step, "eval_accuracy": 0.5} for step in range(9)]
    path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in rows))
    table = read_metrics(path)
    assert table.columns["eval/all/success_rate"].tolist() == [0.5] * 9
    assert table.columns[RETURN].tolist() == list(range(9))


def test_steps_of_an_episode_are_no_runs(tmp_path: Path) -> None:
    """Twenty cycles of ten steps: the later values are kept, as of any repeated steps."""
    table = read_metrics(written(tmp_path, [*range(10)] * 20))
    assert (table.num_rows, table.runs) in ((10, ()), (10, ("",)))
