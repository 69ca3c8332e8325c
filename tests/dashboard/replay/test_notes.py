"""Labels and notes on the page Replay: given, filtered by, exported; and who may not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_run import make_run
from streamlit.testing.v1 import AppTest
from tables import columns_of

from echoscope.dashboard.replay import notes
from echoscope.store.log.layout import Layout
from echoscope.store.steer.episode_notes import AddLabel, EpisodeNote, note_episodes
from echoscope.store.steer.episode_notes import read_episode_notes as stored

OpenPage = Callable[..., AppTest]
FIRST, SECOND = "t00000001-00001", "t00000001-00003"
LABELS, NOTE = f"replay_labels_1_{FIRST}", f"replay_note_1_{FIRST}"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "made")


def label(run: Path, name: str, episode: str = FIRST, attempt: int = 1) -> None:
    note_episodes(run, AddLabel(author="ann", at=1.0, attempt=attempt, episode=episode, label=name))


def opened(open_page: OpenPage, run: Path, **params: Any) -> AppTest:
    page = open_page("replay", run.parent, **({"run": run.name, "trajectory": FIRST} | params))
    assert not page.exception
    return page


def headline(page: AppTest) -> str:
    bodies = (element.proto.body for element in page.get("html"))
    return next(body for body in bodies if body.startswith('<div class="es-facts">'))


def test_a_label_and_a_note_are_kept_and_shown(run: Path, open_page: OpenPage) -> None:
    page = opened(open_page, run)
    page.multiselect(key=LABELS).set_value([" good "]).run()
    page.text_area(key=NOTE).set_value("short,\nright").run()
    assert stored(run).of(1, FIRST) == EpisodeNote(labels=("good",), note="short,\nright")
    assert ">good</span>" in headline(page)
    assert columns_of(page)["labels"][0] == "good"
    page.multiselect(key=LABELS).set_value([]).run()
    assert stored(run).of(1, FIRST).labels == ()


def test_what_somebody_else_noted_meanwhile_stays(run: Path, open_page: OpenPage) -> None:
    label(run, "good")
    page = opened(open_page, run)
    label(run, "theirs")
    page.multiselect(key=LABELS).set_value(["good", "mine"]).run()
    assert stored(run).of(1, FIRST).labels == ("good", "theirs", "mine")
    assert page.multiselect(key=LABELS).value == ["good", "theirs", "mine"]


@pytest.mark.parametrize("name", ["\u202egood", "two\nlines", "x" * 65])
def test_a_label_that_is_not_allowed_is_refused_in_words(
    name: str, run: Path, open_page: OpenPage
) -> None:
    page = opened(open_page, run)
    page.multiselect(key=LABELS).set_value([name]).run()
    assert not page.exception
    (error,) = page.error
    assert "label" in error.value
    assert "\u202e" not in error.value
    assert stored(run).by_episode == {}
    assert page.multiselect(key=LABELS).value == []


def test_the_same_step_of_another_attempt_has_no_label(run: Path, open_page: OpenPage) -> None:
    label(run, "good", attempt=0)
    assert ">good</span>" not in headline(opened(open_page, run))


def test_a_label_lists_its_episodes_of_all_steps(run: Path, open_page: OpenPage) -> None:
    label(run, "good")
    label(run, "good", "t00000000-00002")
    label(run, "bad", SECOND)
    page = opened(open_page, run, trajectory="", label="good")
    assert columns_of(page)["step, group, sibling"] == ["1, 0, 1", "0, 1, 0"]
    assert "label 'good'" in page.caption[0].value.replace("\\", "")
    page = opened(open_page, run, trajectory="", label="bad", q="go up")
    assert columns_of(page)["step, group, sibling"] == ["1, 1, 1"]


@pytest.mark.parametrize("name", ["gone", "'; DROP TABLE x --", "<img src=x onerror=alert(1)>"])
def test_a_label_that_nobody_gave_lists_nothing(name: str, run: Path, open_page: OpenPage) -> None:
    page = opened(open_page, run, trajectory="", label=name)
    assert "No training trajectory matches." in [text.value for text in page.text]


def test_labelled_episodes_are_exported_as_json_lines(run: Path, open_page: OpenPage) -> None:
    label(run, "good")
    (row,) = map(json.loads, notes.exported(run, "messages", "good").splitlines())
    assert (row["id"], row["labels"]) == (FIRST, ["good"])
    (row,) = map(json.loads, notes.exported(run, "sft", "good").splitlines())
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    page = opened(open_page, run, label="good")
    assert page.get("download_button")[0].label == "Export labelled episodes"


def test_a_read_only_dashboard_refuses(
    run: Path, open_page: OpenPage, serve_root: Callable[..., None]
) -> None:
    label(run, "good")
    before = Layout(run).episode_notes.read_bytes()
    page = opened(open_page, run)
    page.multiselect(key=LABELS).set_value(["good", "late"])
    serve_root(run.parent, is_read_only=True)
    page.run()
    assert not page.exception
    assert not page.multiselect
    assert "This dashboard is read-only" in "".join(c.value for c in page.caption)
    assert Layout(run).episode_notes.read_bytes() == before
    assert ">good</span>" in headline(page)
