"""Two runs in one file are two runs; a run that was resumed is one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.tools.importing import SeveralRunsError, import_path

RETURN = "reward/return_mean"


def written(folder: Path, steps: Iterable[int], **more: float) -> Path:
    """Rows in this order; the reward is the number of the row."""
    path = folder / "metrics.jsonl"
    rows = [{"step": step, "reward": float(n), **more} for n, step in enumerate(steps)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_two_runs_that_were_appended_are_offered_as_two(tmp_path: Path) -> None:
    """Steps 0 to 23, a row at 0, then 0 to 28, as a public file has them."""
    path = written(tmp_path, [*range(24), 0, *range(29)])
    table = read_metrics(path)
    assert table.runs == ("part=2", "part=1")
    assert (table.run, table.num_rows, table.steps[-1]) == ("part=2", 29, 28)
    assert not any("repeat" in note for note in table.notes)
    assert any("--run NAME chooses another" in note for note in table.notes)
    assert any("begin again at their beginning" in note for note in table.notes)
    first = read_metrics(path, run="part=1")
    assert first.columns[RETURN].tolist() == [float(n) for n in range(24)]
    assert read_metrics(path, run="1").steps.tolist() == list(range(24))
    with pytest.raises(MetricsFileError, match="no run 'part=3'"):
        read_metrics(path, run="part=3")
    with pytest.raises(SeveralRunsError) as caught:
        import_path(path, tmp_path / "run")
    assert caught.value.runs == ("part=2", "part=1")
    import_path(path, tmp_path / "run", run="part=1")


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
