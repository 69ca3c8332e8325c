"""Episodes that people labelled, as sets for SFT and reward models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trajectories import make_trajectory

from echoscope.store.exporters.exporting import export_run
from echoscope.store.exporters.format import ExportError, Options
from echoscope.store.records import Turn
from echoscope.store.steer.episode_notes import AddLabel, SetEpisodeNote, note_episodes

from .conftest import write_run

ME: dict[str, Any] = {"author": "me", "at": 1.0, "attempt": 1}
ODD = "it's \"<b>\" '; DROP TABLE x --"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two groups of three siblings; a person labelled four of the six."""
    made = [
        make_trajectory(
            Turn(index=0, observation=f"Q{n // 3}", response=f"answer {n}", reward=float(n)),
            step=0, index=n, group_index=n // 3, sibling_index=n % 3, prompt_key=f"q{n // 3}",
        )
        for n in range(6)
    ]  # fmt: skip
    path = write_run(tmp_path / "run", made)
    labels = {0: "good", 2: "bad", 3: ODD, 4: "bad"}
    changes = [AddLabel(**ME, episode=made[n].id, label=name) for n, name in labels.items()]
    note_episodes(path, *changes, SetEpisodeNote(**ME, episode=made[0].id, note="short, right"))
    return path


def rows(run: Path, tmp_path: Path, to: str, **options: Any) -> list[dict[str, Any]]:
    target = tmp_path / "out.jsonl"
    export_run(run, to, target, Options(**options), is_overwriting=True)
    return [json.loads(line) for line in target.read_text("utf-8").splitlines()]


def replies(rows: list[dict[str, Any]]) -> list[str]:
    return [row["messages"][-1]["content"] for row in rows]


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [(("good",), [0]), (("bad",), [2, 4]), (("good", "bad"), [0, 2, 4]), ((ODD,), [3])],
)
def test_only_episodes_with_one_of_the_labels(
    labels: tuple[str, ...], numbers: list[int], run: Path, tmp_path: Path
) -> None:
    lessons = rows(run, tmp_path, "sft", labels=labels)
    assert replies(lessons) == [f"answer {n}" for n in numbers]


def test_messages_hold_labels_and_notes_of_each_episode(run: Path, tmp_path: Path) -> None:
    first, second, *_ = rows(run, tmp_path, "messages")
    assert (first["labels"], first["note"]) == (["good"], "short, right")
    assert not {"labels", "note"} & second.keys()


def test_a_label_is_preferred_to_another_whatever_the_returns(run: Path, tmp_path: Path) -> None:
    """Episode 0 returned less than 2. The group of 4 has no good sibling, so it makes no pair."""
    (pair,) = rows(run, tmp_path, "dpo", labels=("good",), over="bad")
    assert pair["chosen"][-1]["content"] == "answer 0"
    assert pair["rejected"][-1]["content"] == "answer 2"


@pytest.mark.parametrize(
    ("to", "options", "part"),
    [
        ("sft", {"labels": ("godo",)}, "no episode has the label 'godo'. Labels there: bad, good"),
        ("dpo", {"labels": ("good",), "over": "worse"}, "no episode has the label 'worse'"),
        ("dpo", {"over": "bad"}, "--over belongs to --to dpo together with --label"),
        ("sft", {"labels": ("good",), "over": "bad"}, "--over belongs to --to dpo"),
        ("sft", {"labels": ("good",), "first_step": 1}, "there is no step 1"),
    ],
)
def test_what_gives_nothing_says_why(
    to: str, options: dict[str, Any], part: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=part):
        rows(run, tmp_path, to, **options)
