"""Labels and notes of episodes: added up in order, and bound to the attempt that played them."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.errors import AnnotationError, NotARunError, StoreError
from echoscope.store.log.layout import Layout
from echoscope.store.log.verify import verify
from echoscope.store.steer.annotation_file import MAX_FILE_BYTES
from echoscope.store.steer.episode_notes import (
    MAX_LABELS,
    MAX_RUN_LABELS,
    AddLabel,
    EpisodeNote,
    EpisodeNotes,
    RemoveLabel,
    SetEpisodeNote,
    note_episodes,
    read_episode_notes,
)

FIRST = {"attempt": 0, "episode": "t00000000-00000"}
SECOND = {"attempt": 0, "episode": "t00000000-00001"}
ME: dict[str, Any] = {"author": "me", "at": 100.0}


def label(name: str, **episode: Any) -> AddLabel:
    return AddLabel(**ME, **(episode or FIRST), label=name)


def test_changes_add_up_in_order(finished_run: Path) -> None:
    note_episodes(finished_run, label("good"), label("good"), label("short"))
    note_episodes(finished_run, SetEpisodeNote(**ME, **SECOND, note="loops\nat turn 3"))
    note_episodes(finished_run, RemoveLabel(**ME, **FIRST, label="short"), label("good", **SECOND))
    noted = read_episode_notes(finished_run)
    assert noted.of(0, "t00000000-00000") == EpisodeNote(labels=("good",))
    assert noted.of(0, "t00000000-00001") == EpisodeNote(labels=("good",), note="loops\nat turn 3")
    assert noted.labels == {"good": 2}
    assert noted.labelled(["good", "other"]) == [(0, FIRST["episode"]), (0, SECOND["episode"])]


def test_an_episode_whose_notes_are_gone_is_not_listed(finished_run: Path) -> None:
    note_episodes(finished_run, label("good"), RemoveLabel(**ME, **FIRST, label="good"))
    assert read_episode_notes(finished_run) == EpisodeNotes()


def test_the_same_step_played_again_has_no_notes(finished_run: Path) -> None:
    note_episodes(finished_run, label("good"))
    assert read_episode_notes(finished_run).of(1, "t00000000-00000") == EpisodeNote()


def test_the_run_itself_stays_as_it_is(finished_run: Path) -> None:
    before = {p: p.read_bytes() for p in finished_run.rglob("*") if p.is_file()}
    note_episodes(finished_run, label("good"))
    after = {p: p.read_bytes() for p in finished_run.rglob("*") if p.is_file()}
    assert after.keys() - before.keys() == {Layout(finished_run).episode_notes}
    assert {path: after[path] for path in before} == before
    assert not verify(finished_run).problems


def _label_many(run: Path, who: str) -> None:
    for number in range(40):
        note = SetEpisodeNote(author=who, at=float(number), **FIRST, note=f"{who} {number}" * 100)
        note_episodes(run, note)


@pytest.mark.long
def test_two_writers_lose_nothing(finished_run: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_label_many, args=(finished_run, who)) for who in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    text = Layout(finished_run).episode_notes.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    for who in "ab":
        assert [x["at"] for x in lines if x["author"] == who] == [float(n) for n in range(40)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: label(""), "must not be empty"),
        (lambda: label("\u202egood"), "of one line"),
        (lambda: label("two\nlines"), "of one line"),
        (lambda: label("x" * 65), "65 characters, but may have 64"),
        (lambda: label("good", attempt=0, episode="../run.json"), "is not a trajectory id"),
        (lambda: label("good", attempt=-1, episode="t00000000-00000"), "greater than or equal"),
    ],
)
def test_a_bad_change_is_refused_when_it_is_built(build: Any, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        build()


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "add_label"}',
        '{"kind": "add_tag", "author": "x", "at": 1, "tag": "t"}',
        '{"kind": "add_label", "author": "x", "at": 1, "attempt": 0, "episode": 7, "label": "l"}',
        '{"kind": "add_label", "author": "x", "at": 1, "attempt": 0, '
        '"episode": "t00000000-00000", "label": "\\u202egnp"}',
        "[" * 50_000,
    ],
)
def test_a_hostile_line_is_skipped(finished_run: Path, line: str) -> None:
    note_episodes(finished_run, label("good"))
    with Layout(finished_run).episode_notes.open("a") as file:
        file.write(line + "\n")
    note_episodes(finished_run, label("short"))
    noted = read_episode_notes(finished_run)
    assert noted.of(0, "t00000000-00000").labels == ("good", "short")


def test_too_many_labels_are_refused_all_together(finished_run: Path) -> None:
    full = [label(f"l{number}") for number in range(MAX_LABELS)]
    with pytest.raises(AnnotationError, match="at most 16 labels"):
        note_episodes(finished_run, *full, label("one more"))
    for number in range(MAX_RUN_LABELS):
        episode = {"attempt": 0, "episode": f"t00000000-{number:05d}"}
        note_episodes(finished_run, label(f"r{number}", **episode))
    with pytest.raises(AnnotationError, match="at most 64 different labels"):
        note_episodes(finished_run, label("one more", attempt=0, episode="t00000000-00099"))


def test_what_is_not_ours_is_refused(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(NotARunError):
        note_episodes(tmp_path, label("good"))
    path = Layout(finished_run).episode_notes
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"episode_notes\.ndjson"):
        note_episodes(finished_run, label("good"))
    path.unlink()
    path.write_bytes(b"\n" * MAX_FILE_BYTES)
    with pytest.raises(StoreError, match="more than 4194304"):
        note_episodes(finished_run, label("good"))
