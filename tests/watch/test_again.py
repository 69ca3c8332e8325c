"""A run that goes on: what its steps were written from, and what the files say after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from followed_run import add, followed, line, row

from echoscope.store.reader import open_run
from echoscope.watch import folder


def rows(step: int, score: float = 1.0, size: int = 4) -> str:
    return "".join(row(step, sample, score) for sample in range(size))


def test_the_rest_of_a_step_that_came_while_nobody_watched_is_added(tmp_path: Path) -> None:
    file, run = tmp_path / "rollouts.jsonl", tmp_path / "run"
    add(file, rows(1, size=8) + rows(2, size=3))
    with followed(file, run) as watch:
        assert watch.look(2) == [1, 2]
    add(file, "".join(row(2, sample) for sample in range(3, 8)))
    with followed(file, run) as watch:
        assert watch.look(2) == [1, 2]
        assert watch.num_episodes(1, 2) == [8, 8]


def test_steps_that_were_trained_again_while_nobody_watched_are_replaced(tmp_path: Path) -> None:
    folder, run = tmp_path / "rollouts", tmp_path / "run"
    folder.mkdir()
    for step in (1, 2, 3):
        (folder / f"{step}.jsonl").write_text(rows(step))
    with followed(folder, run) as watch:
        assert watch.look(2) == [1, 2, 3]
    (folder / "2.jsonl").write_text(rows(2, 0.0))
    with followed(folder, run) as watch:
        assert watch.look(2) == [1, 2, 3]
        assert watch.values("reward/return_mean") == {1: 1.0, 2: 0.0, 3: 1.0}
        assert watch.was_told("the files say something else of step 2 than the run")


def test_what_is_gone_from_the_files_stays_in_the_run(tmp_path: Path) -> None:
    """A log was rotated away, and its last step stood in both."""
    log, run = tmp_path / "metrics.jsonl", tmp_path / "run"
    steps = [{"step": s, "actor/entropy": 1.0, "loss": 0.5} for s in (1, 2, 3)]
    add(log, "".join(json.dumps(step) + "\n" for step in steps))
    with followed(log, run) as watch:
        assert watch.look(2) == [1, 2, 3]
    log.write_text('{"step": 3, "loss": 0.5}\n{"step": 4, "actor/entropy": 0.5, "loss": 0.5}\n')
    with followed(log, run) as watch:
        assert watch.look(2) == [1, 2, 3, 4]
        assert watch.values("policy/entropy") == {1: 1.0, 2: 1.0, 3: 1.0, 4: 0.5}
    assert watch.messages == []


def test_a_pipe_that_is_watched_again_adds_to_its_run(tmp_path: Path) -> None:
    """What a log said before it was truncated is not read again."""
    log, run = tmp_path / "train.log", tmp_path / "run"
    add(log, line(1) + line(2) + line(3))
    with followed(log, run) as watch:
        assert watch.look(2) == [1, 2, 3]
    log.write_text("")
    with followed(log, run) as watch:
        watch.look(2)
        add(log, line(2, entropy=0.5) + line(3, entropy=0.5))
        assert watch.look(2) == [1, 2, 3]
        assert watch.values("policy/entropy") == {1: 1.0, 2: 0.5, 3: 0.5}


# --- EasyR1's log ---------------------------------------------------------------------------------


def sample(prompt: str, score: float) -> str:
    return f"[prompt] {prompt}\n[output] o\n[ground_truth] t\n[score] {score}\n\n"


def test_validations_of_easyr1_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "REST", 0.0)  # between two readings of a file that is read whole
    files, run = tmp_path / "in", tmp_path / "run"
    files.mkdir()
    log = files / "generations.log"
    with followed(files, run) as watch:
        add(log, sample("a", 0.0)[:-30])
        assert watch.look(2) == []
        add(log, sample("a", 0.0)[-30:] + sample("b", 1.0))
        assert watch.look(2) == [0]
        add(log, sample("a", 2.0) + sample("b", 3.0))
        assert watch.look(2) == [0, 1]
    add(log, sample("a", 4.0) + sample("b", 5.0))
    with followed(files, run) as watch:
        assert watch.look(2) == [0, 1, 2]
    table = open_run(run).sql("SELECT step, episode_return FROM trajectories ORDER BY id")
    columns = (table.column(name).to_pylist() for name in ("step", "episode_return"))
    assert list(zip(*columns, strict=True)) == [(n // 2, float(n)) for n in range(6)]
