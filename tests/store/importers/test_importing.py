"""The import itself: order, idempotence, resuming, growth, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollout_import import import_run

from echoscope.store.importers import importing
from echoscope.store.importers import survey as surveying
from echoscope.store.importers.importing import ImportingError
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run

from .conftest import FIXTURES, Imported

Rows = Callable[..., Imported]


class KilledError(BaseException):
    """Nothing catches it, as nothing catches a kill."""


def write_steps(folder: Path, steps: range, *, reply: str = "r", size: int = 2) -> None:
    folder.mkdir(exist_ok=True)
    for step in steps:
        rows = [
            {"input": f"q{k}", "output": reply, "gts": "", "score": k, "step": step}
            for k in range(size)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{step}.jsonl").write_text(text)


def stored(path: Path) -> list[int]:
    reader = open_run(path)
    steps = reader.sql("SELECT step FROM trajectories ORDER BY id")
    return [int(step) for step in steps.column("step").to_pylist()]


def test_files_of_one_run_are_one_run_in_the_order_of_steps(tmp_path: Path) -> None:
    write_steps(tmp_path / "in", range(1, 13), size=1)
    report = import_run(tmp_path / "in", tmp_path / "run")
    assert stored(report.path) == list(range(1, 13)), "10 comes after 9"
    assert (report.first_step, report.last_step, report.num_steps) == (1, 12, 12)


def test_rows_count_more_than_file_names(rows: Rows) -> None:
    imported = rows(
        {"messages": [{"role": "assistant", "content": "a"}], "step": 4}, name="9.jsonl"
    )
    assert [t.step for t in imported.trajectories] == [4]


def test_steps_within_a_file_may_go_back(rows: Rows) -> None:
    values = [
        {"messages": [{"role": "assistant", "content": str(k)}], "step": step}
        for k, step in enumerate([2, 1, 2, 0])
    ]
    imported = rows(*values)
    assert [(t.step, t.turns[0].response) for t in imported.trajectories] == [
        (0, "3"),
        (1, "1"),
        (2, "0"),
        (2, "2"),
    ]


def test_a_second_import_adds_nothing(tmp_path: Path) -> None:
    write_steps(tmp_path / "in", range(3))
    import_run(tmp_path / "in", tmp_path / "run")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*.parquet"))
    report = import_run(tmp_path / "in", tmp_path / "run")
    after = sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*.parquet"))
    assert (report.num_kept, report.num_there) == (0, 6)
    assert before == after


def test_an_import_that_was_killed_before_its_first_step_begins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_steps(tmp_path / "in", range(1, 3))

    def die(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(importing.RunWriter, "commit_step", die)
        with pytest.raises(KilledError):
            import_run(tmp_path / "in", tmp_path / "run")
    assert open_run(tmp_path / "run").info().last_step == -1
    import_run(tmp_path / "in", tmp_path / "run")
    assert stored(tmp_path / "run") == [1, 1, 2, 2]
    assert verify(tmp_path / "run").problems == ()


def test_a_step_that_comes_after_a_gap_is_added(tmp_path: Path) -> None:
    write_steps(tmp_path / "in", range(1, 3), size=1)
    import_run(tmp_path / "in", tmp_path / "run")
    write_steps(tmp_path / "in", range(9, 10), size=1)
    assert import_run(tmp_path / "in", tmp_path / "run").num_kept == 1
    assert stored(tmp_path / "run") == [1, 2, 9]


def test_an_import_leaves_a_folder_of_something_else_alone(tmp_path: Path) -> None:
    write_steps(tmp_path / "in", range(1))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ImportingError, match="exists and is no run; name another folder with -o"):
        import_run(tmp_path / "in", tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_an_import_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    write_steps(tmp_path / "in", range(5))

    def stop(done: int, of: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_run(tmp_path / "in", tmp_path / "run", writing=stop)
    assert open_run(tmp_path / "run").info().status == "interrupted"
    report = import_run(tmp_path / "in", tmp_path / "run")
    assert (report.num_there, report.num_kept) == (4, 6)
    assert stored(tmp_path / "run") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert open_run(tmp_path / "run").info().status == "finished"


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from rollout_import import import_run
def stop(done, of):
    if done >= 6:
        os.kill(os.getpid(), signal.SIGKILL)
import_run(Path(sys.argv[1]), Path(sys.argv[2]), writing=stop)
"""


def test_an_import_that_was_killed_goes_on(tmp_path: Path) -> None:
    write_steps(tmp_path / "in", range(5))
    shared = str(Path(__file__).parents[2] / "shared")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "in"), str(tmp_path / "run"), shared]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    report = import_run(tmp_path / "in", tmp_path / "run")
    assert report.num_there + report.num_kept == 10
    assert report.num_kept >= 4
    assert stored(tmp_path / "run") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert not verify(tmp_path / "run").problems


def test_a_run_that_grew_is_continued(tmp_path: Path) -> None:
    write_steps(tmp_path / "in", range(2))
    import_run(tmp_path / "in", tmp_path / "run")
    write_steps(tmp_path / "in", range(1, 3), size=3)
    report = import_run(tmp_path / "in", tmp_path / "run")
    assert (report.num_there, report.num_kept) == (2, 6), "step 1 changed and is written again"
    assert stored(tmp_path / "run") == [0, 0, 1, 1, 1, 2, 2, 2]


def test_other_files_may_follow_but_not_precede(tmp_path: Path) -> None:
    write_steps(tmp_path / "a", range(4, 6))
    write_steps(tmp_path / "b", range(6, 8))
    write_steps(tmp_path / "c", range(2, 5))
    import_run(tmp_path / "a", tmp_path / "run")
    import_run(tmp_path / "b", tmp_path / "run")
    assert stored(tmp_path / "run") == [4, 4, 5, 5, 6, 6, 7, 7]
    with pytest.raises(ImportingError, match="step 2 of these files comes before step 5"):
        import_run(tmp_path / "c", tmp_path / "run")


def test_what_an_import_refuses(tmp_path: Path) -> None:
    write_steps(tmp_path / "in", range(1))
    for path, sentence in (
        (tmp_path / "missing", "no such file or folder"),
        (tmp_path / "in", "is the folder that the run would be written to"),
    ):
        with pytest.raises(ImportingError, match=sentence):
            import_run(path, tmp_path / "in")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(ImportingError, match="exists and is no run"):
        import_run(tmp_path / "in", tmp_path / "other")
    import_run(tmp_path / "in", tmp_path / "run")
    with pytest.raises(ImportingError, match="was imported from verl, and these files are of TRL"):
        import_run(FIXTURES / "trl", tmp_path / "run")
    with pytest.raises(ImportingError, match="is a run already"):
        import_run(tmp_path / "run", tmp_path / "again")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImportingError, match="empty: is empty"):
        import_run(tmp_path / "empty", tmp_path / "new")
    (tmp_path / "silent.jsonl").write_text('{"messages": [{"role": "user", "content": "q"}]}')
    with pytest.raises(ImportingError, match=r"no episode can be stored .*no reply of the policy"):
        import_run(tmp_path / "silent.jsonl", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_rows_without_steps_are_one_evaluation(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are: their order is no course over time."""
    size = len(json.dumps({"messages": [{"role": "assistant", "content": "0"}]})) + 1
    monkeypatch.setattr(surveying, "EVALUATION_BYTES", 7 * size)
    imported = rows(*({"messages": [{"role": "assistant", "content": str(k)}]} for k in range(9)))
    assert [t.step for t in imported.trajectories] == [0] * 7
    assert imported.report.survey.is_evaluation
    assert imported.report.survey.refused_rows.total == 2


def test_the_run_is_whole_and_says_that_it_was_imported(tmp_path: Path) -> None:
    report = import_run(FIXTURES / "verl", tmp_path / "run")
    assert not verify(report.path).problems
    info = open_run(report.path).info()
    assert info.config["imported"]["trainer"] == "verl"
    assert info.config["imported"]["num_rows"] == 4
    assert info.tags == ("imported", "verl")
    records = open_run(report.path).diagnostics(10)
    payload: dict[str, Any] = json.loads(records[0].payload or "")
    assert (payload["num_rows"], payload["num_kept"], payload["skipped"]) == (3, 3, {})
    (source,) = {t.source.split(":")[0] for t in open_run(report.path).trajectories_of_step(2)}
    assert source == "rollouts/2.jsonl"


def test_metrics_of_a_step_are_those_of_its_training_episodes(tmp_path: Path) -> None:
    write_steps(tmp_path / "in", range(1), size=4)
    reader = open_run(import_run(tmp_path / "in", tmp_path / "run").path)
    assert reader.metrics("reward/return_mean")[1].tolist() == [1.5]
    assert reader.metrics("rollout/num_trajectories")[1].tolist() == [4.0]
    assert reader.steps().column("return_mean").to_pylist() == [1.5]
    assert reader.steps().column("policy_version").to_pylist() == [None]
