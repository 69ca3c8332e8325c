"""Rows that stand in two files of a folder that grows: counted as an import counts them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from followed_run import AT_ONCE, add, followed, line

from echoscope.store.importers.importing import import_run
from echoscope.store.importers.survey import survey
from echoscope.store.reader import open_run
from echoscope.watch.folder import Folder
from echoscope.watch.steps import Waits

Stage = dict[str, str | None]
"""File -> its text from now on; None: it is gone."""
SLOW = Waits(line_quiet_s=0.0, quiet_s=1e9, patience_s=1e9)
"""The newest step of rollouts waits for the next one."""


def rows(*replies: str, **fields: Any) -> str:
    return "".join(
        json.dumps({"messages": [{"role": "assistant", "content": reply}], **fields}) + "\n"
        for reply in replies
    )


def steps(*numbers: int, size: int = 4) -> str:
    """As many episodes of each step."""
    return "".join(rows(*(f"{n}.{i}" for i in range(size)), step=n) for n in numbers)


def write(folder: Path, stage: Stage) -> None:
    for name, text in stage.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if text is None:
            path.unlink()
        elif path.exists() and text.startswith(path.read_text()):
            add(path, text[len(path.read_text()) :])
        else:
            path.unlink(missing_ok=True)
            path.write_text(text)


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param([{"a.jsonl": rows("x", "y"), "b.jsonl": rows("x", "y")}], id="the same rows"),
        pytest.param(
            [{"a.bak.jsonl": rows("x", "y"), "a.jsonl": rows("x", "y", "z")}],
            id="a backup that is read first",
        ),
        pytest.param(
            [
                {"a.jsonl": rows("x", "y", "z")},
                {"b.jsonl": rows("x", "y")},
                {"a.jsonl": rows("x", "y", "z", "u")},
            ],
            id="a backup that comes later",
        ),
        pytest.param(
            [{"b.jsonl": rows("x", "y")}, {"a.jsonl": rows("x", "y", "z")}],
            id="the longer file comes later",
        ),
        pytest.param(
            [
                {"a.jsonl": rows("x", "y"), "b.jsonl": rows("x", "y")},
                {"b.jsonl": rows("x", "y", "z")},
                {"a.jsonl": rows("x", "y", "u")},
            ],
            id="two files that go on in different ways",
        ),
        pytest.param(
            [
                {"a.jsonl": rows("x")},
                {"b.jsonl": rows("x")},
                {"a.jsonl": rows("x", "y")},
                {"b.jsonl": rows("x", "y")},
            ],
            id="one row says nothing of where it comes from, two do",
        ),
        pytest.param(
            [{"1/m.jsonl": rows("x")}, {"2/m.jsonl": rows("x")}], id="attempts with the same text"
        ),
        pytest.param(
            [
                {"a.jsonl": rows("x", "y", "z")},
                {"a.jsonl": rows("u", "v"), "a.1.jsonl": rows("x", "y", "z")},
            ],
            id="a file that is rotated",
        ),
        pytest.param(
            [
                {"a.jsonl": rows("x", "y")},
                {"b.jsonl": rows("x", "y", "z"), "c.jsonl": rows("x", "y", "u")},
            ],
            id="two files that go on from one backup",
        ),
        pytest.param(
            [{"a.jsonl": rows("x", "y", step=1)}, {"b.jsonl": rows("x", "y", step=2)}],
            id="the same rows of other steps",
        ),
        pytest.param(
            [{"a.jsonl": rows("x", "y")}, {"val/a.jsonl": rows("x", "y")}],
            id="an evaluation of the same rows",
        ),
    ],
)
def test_rows_that_are_not_judged_yet_count_as_in_an_import(
    tmp_path: Path, stages: list[Stage]
) -> None:
    files = tmp_path / "in"
    files.mkdir()
    folder = Folder(files, own=tmp_path / "run", mapping={}, say=print, line_quiet_s=0.0, state={})
    for stage in stages:
        write(files, stage)
        folder.look()
        rollouts = folder.rollouts
        found = survey(files, tmp_path)
        assert sum(rollouts.signature(step)[0] for step in rollouts.steps) == len(found.steps_R)
        assert len(rollouts.copies) == len(found.copies)
    folder.close()


def test_a_backup_of_judged_steps_is_passed_over_and_named(tmp_path: Path) -> None:
    files, run = tmp_path / "in", tmp_path / "run"
    files.mkdir()
    write(files, {"a.jsonl": steps(1, 2, 3)})
    with followed(files, run) as watch:
        assert watch.look(2) == [1, 2, 3]
        write(files, {"a.bak.jsonl": steps(1, 2, 3), "a.jsonl": steps(1, 2, 3, 4)})
        assert watch.look(2) == [1, 2, 3, 4]
        write(files, {"a.old.jsonl": steps(1, 2) + steps(3, size=2)})
        assert watch.look(2) == [1, 2, 3, 4]
        assert [len(open_run(run).trajectories_of_step(step)) for step in (1, 2, 3, 4)] == [4] * 4
    assert watch.said == [
        f"passed over {name}: a copy: all its rows are the first rows of a.jsonl"
        for name in ("a.bak.jsonl", "a.old.jsonl")
    ]


def test_a_backup_that_was_made_between_two_watches_is_passed_over(tmp_path: Path) -> None:
    files, run = tmp_path / "in", tmp_path / "run"
    files.mkdir()
    write(files, {"a.jsonl": steps(1, 2, 3)})
    with followed(files, run) as watch:
        assert watch.look(2) == [1, 2, 3]
    write(files, {"a.bak.jsonl": steps(1, 2) + steps(3, size=2)})
    with followed(files, run) as watch:
        assert watch.look(2) == [1, 2, 3]
    assert watch.said == [
        "passed over a.bak.jsonl: a copy: all its rows are the first rows of a.jsonl"
    ]
    write(files, {"a.jsonl": steps(1, 2, 3, 4), "a.bak.jsonl": steps(1, 2, 3)})
    with followed(files, run) as watch:
        assert watch.look(2) == [1, 2, 3, 4]
        assert not watch.was_told("again")
    counts = [len(open_run(run).trajectories_of_step(step)) for step in (1, 2, 3, 4)]
    assert counts == [4, 4, 4, 4]


def test_a_copy_that_becomes_a_file_of_its_own_counts_from_its_next_step(tmp_path: Path) -> None:
    """Its rows of steps that were judged are those that the steps have already."""
    files, run = tmp_path / "in", tmp_path / "run"
    files.mkdir()
    write(files, {"a.jsonl": steps(1, 2), "b.jsonl": steps(1, 2)})
    with followed(files, run, SLOW) as watch:
        watch.look(2)
        write(files, {"b.jsonl": steps(1, 2) + rows("other", step=3)})
        write(files, {"a.jsonl": steps(1, 2, 3, 4)})
        assert watch.look(2) == [1, 2, 3]
        assert watch.was_told("b.jsonl is no copy of a.jsonl any more: its rows count")
        counts = [len(open_run(run).trajectories_of_step(step)) for step in (1, 2, 3)]
        assert counts == [4, 8, 5]


# --- EasyR1's log ---------------------------------------------------------------------------------


def sample(prompt: str, score: float) -> str:
    return f"[prompt] {prompt}\n[output] o\n[ground_truth] t\n[score] {score}\n\n"


def returns(run: Path) -> list[tuple[int, float]]:
    """Step and return of each episode."""
    found = open_run(run).sql("SELECT step, episode_return FROM trajectories ORDER BY id")
    columns = (found.column(name).to_pylist() for name in ("step", "episode_return"))
    return list(zip(*columns, strict=True))


def test_validations_of_easyr1_are_followed_one_by_one(tmp_path: Path) -> None:
    files, run = tmp_path / "in", tmp_path / "run"
    files.mkdir()
    log = files / "generations.log"
    with followed(files, run) as watch:
        add(log, sample("a", 0.0)[:-30])
        assert watch.look(2) == []
        add(log, sample("a", 0.0)[-30:] + sample("b", 1.0))
        assert watch.look(2) == [0]
        add(log, sample("a", 2.0) + sample("b", 3.0)[:-2])
        assert watch.look(2) == [0]
        add(log, sample("b", 3.0)[-2:])
        assert watch.look(2) == [0, 1]
        add(log, sample("a", 4.0))
        assert watch.look(2) == [0, 1]
        assert not watch.was_told("came after")
    last = "generations.log: its last validation has only 1 sample so far: not judged"
    assert watch.said[-1] == last
    add(log, sample("b", 5.0))
    with followed(files, run) as watch:
        assert watch.look(2) == [0, 1, 2]
    assert watch.said == []
    import_run(files, tmp_path / "imported")
    assert returns(run) == returns(tmp_path / "imported")
    assert returns(run) == [(0, 0.0), (0, 1.0), (1, 2.0), (1, 3.0), (2, 4.0), (2, 5.0)]


def test_a_copy_of_easyr1s_log_is_passed_over(tmp_path: Path) -> None:
    files, run = tmp_path / "in", tmp_path / "run"
    files.mkdir()
    text = sample("a", 0.0) + sample("b", 1.0) + sample("a", 2.0) + sample("b", 3.0)
    with followed(files, run) as watch:
        add(files / "generations.log", text)
        assert watch.look(2) == [0, 1]
        add(files / "generations.bak", text)
        add(files / "generations.old.log", text)
        assert watch.look(2) == [0, 1]
        assert watch.was_told("passed over generations.old.log: a copy: all its rows are the first")
    assert Counter(step for step, _ in returns(run)) == {0: 2, 1: 2}


def test_a_log_of_generations_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    files, run = tmp_path / "in", tmp_path / "run"
    files.mkdir()
    log = files / "generations.log"
    with followed(files, run) as watch:
        log.write_text(sample("a", 0.0) + sample("b", 1.0))
        assert watch.look(2) == [0]
        log.write_text(sample("c", 5.0) + sample("d", 6.0) + sample("e", 7.0))
        assert watch.look(2) == [0]
    assert returns(run) == [(0, 5.0), (0, 6.0), (0, 7.0)]


def test_validations_come_to_the_steps_of_a_log_beside_them(tmp_path: Path) -> None:
    """Steps of metrics that were judged before are judged again, with the episodes."""
    files, run = tmp_path / "in", tmp_path / "run"
    files.mkdir()
    with followed(files, run, AT_ONCE) as watch:
        add(files / "train.log", line(0) + line(1) + line(2))
        assert watch.look(2) == [0, 1, 2]
        add(files / "generations.log", sample("a", 0.0) + sample("b", 1.0))
        assert watch.look(3) == [0, 1, 2]
        assert watch.was_told("2 episodes of step 0 came after step 0 was judged")
        assert watch.values("policy/entropy") == {0: 1.0, 1: 1.0, 2: 1.0}
    assert returns(run) == [(0, 0.0), (0, 1.0)]
