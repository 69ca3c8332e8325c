"""Episodes that are read after their step was judged: none is lost without a word."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from followed_run import add, followed, line, row

from echoscope.watch import folder as folders
from echoscope.watch.ledger import Waits
from echoscope.watch.rollouts import KEPT_STEPS

PATIENT = Waits(line_quiet_s=0.0, quiet_s=0.0, patience_s=1e9)


def completions(folder: Path, step: int, num_rows: int = 4) -> None:
    """As TRL writes them: one file a step."""
    numbers = range(num_rows)
    columns = {
        "step": [step for _ in numbers],
        "prompt": ["left" for _ in numbers],
        "completion": [f"{step}.{number}" for number in numbers],
        "reward": [float(number) for number in numbers],
        "advantage": [0.0 for _ in numbers],
    }
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"completions_{step:05d}.parquet")


def test_completions_that_appear_while_a_look_is_on_are_judged_with_their_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine much may happen between two lines of a look. Here the trainer writes the
    completions of step 2 right after the folder was listed, and then two lines of its log.
    """
    files, log = tmp_path / "in", tmp_path / "in" / "train.log"
    files.mkdir()
    add(log, line(1))
    completions(files / "completions", 1)
    listed = folders.Folder._list

    def trainer_goes_on(self: folders.Folder) -> None:
        listed(self)
        if not (files / "completions" / "completions_00002.parquet").exists():
            completions(files / "completions", 2)
            add(log, line(2) + line(3))

    with followed(files, tmp_path / "run", PATIENT) as watch:
        assert watch.look(2) == [1]
        monkeypatch.setattr(folders.Folder, "_list", trainer_goes_on)
        assert watch.look(3) == [1, 2]
        assert watch.num_episodes(1, 2) == [4, 4]
    assert watch.messages == ["step 3 may not be written to the end: not judged"]


def test_episodes_of_a_step_that_was_judged_by_its_numbers_alone_are_added(tmp_path: Path) -> None:
    files = tmp_path / "in"
    files.mkdir()
    add(files / "train.log", line(1) + line(2, entropy=0.5) + line(3) + line(4))
    with followed(files, tmp_path / "run") as watch:
        assert watch.look(2) == [1, 2, 3, 4]
        completions(files / "completions", 2)
        assert watch.look(2) == [1, 2, 3, 4]
        assert watch.num_episodes(1, 2, 3, 4) == [0, 4, 0, 0]
        assert watch.values("policy/entropy") == {1: 1.0, 2: 0.5, 3: 1.0, 4: 1.0}
    assert watch.messages == ["more of step 2 came after it was judged: judged again from there"]


def test_the_rest_of_the_newest_step_is_added(tmp_path: Path) -> None:
    """Step 2 was judged with 3 of 8 episodes, because nothing came for as long as it waits."""
    file = tmp_path / "rollouts.jsonl"
    add(file, "".join(row(1, sample) for sample in range(8)))
    add(file, "".join(row(2, sample) for sample in range(3)))
    with followed(file, tmp_path / "run") as watch:
        assert watch.look(2) == [1, 2]
        add(file, "".join(row(2, sample) for sample in range(3, 8)))
        assert watch.look(2) == [1, 2]
        assert watch.num_episodes(1, 2) == [8, 8]
    assert watch.messages == ["more of step 2 came after it was judged: judged again from there"]


def test_a_further_file_of_the_newest_step_is_added(tmp_path: Path) -> None:
    """AReaL writes a file a task."""
    files = tmp_path / "in"
    (files / "1").mkdir(parents=True)
    for task in (1, 2):
        (files / "1" / f"{task}.jsonl").write_text(row(1, 10 * task) + row(1, 10 * task + 1))
    with followed(files, tmp_path / "run") as watch:
        assert watch.look(2) == [1]
        (files / "1" / "3.jsonl").write_text(row(1, 30) + row(1, 31))
        assert watch.look(2) == [1]
        assert watch.num_episodes(1) == [6]


def test_few_episodes_behind_later_steps_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    add(file, "".join(row(step, sample) for step in (1, 2, 3) for sample in range(8)))
    with followed(file, tmp_path / "run") as watch:
        watch.look(2)
        add(file, row(1, 9))
        watch.look(2)
        add(file, row(2, 9))
        assert watch.look(2) == [1, 2, 3]
        assert watch.num_episodes(1, 2, 3) == [8, 8, 8]
    assert watch.messages == ["2 episodes came after their step was judged, and are not stored"]


def test_episodes_of_a_step_long_ago_are_said_and_counted(tmp_path: Path) -> None:
    files = tmp_path / "in"
    files.mkdir()
    add(files / "train.log", "".join(map(line, range(1, KEPT_STEPS + 3))))
    with followed(files, tmp_path / "run") as watch:
        while watch.look()[-1] < KEPT_STEPS + 2:
            pass
        completions(files / "completions", 2)
        watch.look(2)
        assert watch.num_episodes(2) == [0]
    assert watch.messages == [
        f"more of step 2 came {KEPT_STEPS} steps late: left out",
        "4 episodes came after their step was judged, and are not stored",
    ]


def test_a_long_file_of_long_ago_is_read_to_its_end_before_a_step_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look ends in the midst of step 2; that nothing was written for an hour says nothing."""
    file = tmp_path / "rollouts.jsonl"
    text = "".join(row(step, sample) for step in (1, 2, 3) for sample in range(8))
    file.write_text(text)
    hour_ago = time.time() - 3600.0
    os.utime(file, (hour_ago, hour_ago))
    monkeypatch.setattr(folders, "LOOK_BYTES", len(text) // 2)
    monkeypatch.setattr("echoscope.watch.tail.BLOCK_BYTES", len(text) // 4)
    with followed(file, tmp_path / "run") as watch:
        watch.watch.look()
        assert watch.steps() == []
        assert watch.look(2) == [1, 2, 3]
        assert watch.num_episodes(1, 2, 3) == [8, 8, 8]
    assert watch.messages == []


def test_no_step_is_judged_before_each_file_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log alone takes all that one look may read."""
    files = tmp_path / "in"
    (files / "rollouts").mkdir(parents=True)
    add(files / "train.log", "".join(map(line, (1, 2, 3))))
    for step in (1, 2, 3):
        (files / "rollouts" / f"{step}.jsonl").write_text(row(step, 0) + row(step, 1))
    monkeypatch.setattr(folders, "LOOK_BYTES", 10)
    with followed(files, tmp_path / "run") as watch:
        while watch.look() != [1, 2, 3]:
            pass
        assert watch.num_episodes(1, 2, 3) == [2, 2, 2]
    assert watch.messages == []


def test_rows_without_steps_are_one_evaluation_that_grows(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"

    def chat(number: int) -> str:
        message: dict[str, Any] = {"role": "assistant", "content": f"reply {number}"}
        return json.dumps({"messages": [message], "reward": 1.0}) + "\n"

    add(file, "".join(map(chat, range(4))))
    with followed(file, tmp_path / "run") as watch:
        assert watch.look(2) == [0]
        add(file, "".join(map(chat, range(4, 300))))
        assert watch.look(2) == [0]
        assert watch.num_episodes(0) == [300]
    assert watch.messages[0].startswith("no step is written in the rollouts: all episodes are one")
