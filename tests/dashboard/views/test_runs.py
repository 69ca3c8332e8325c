"""The page Runs: what its table shows, and what people note."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import until
from made_run import add_steps, make_run, open_writer
from streamlit.testing.v1 import AppTest
from tables import columns_of

from echoscope.dashboard.data import queries
from echoscope.dashboard.data import verdict_cache as judging
from echoscope.dashboard.page.runs_table import note_changes
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.regimes import Regime
from echoscope.diagnostics.tools.importing import import_path
from echoscope.store.errors import AnnotationError
from echoscope.store.query.listing import RunRow
from echoscope.store.records import CommandAck, CommandAction, CommandOutcome
from echoscope.store.steer.annotations import annotate, read_annotations
from echoscope.store.steer.commands import new_command

OpenPage = Callable[..., AppTest]
Serve = Callable[..., None]


def test_one_row_a_run(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "old", 3)
    make_run(tmp_path / "new", 5, status="failed")
    found = columns_of(open_page("runs", tmp_path))
    assert found["run"] == ["new", "old"]
    assert found["status"] == ["failed", "finished"]
    assert found["step"] == [4, 2]
    assert found["planned"] == [100, 100]
    assert found["success"] == [50.0, 50.0]  # per cent
    assert found["environment"] == ["frozen_lake"] * 2
    assert found["history"] == [[0.5] * 5, [0.5] * 3]


def test_filter_and_sort_are_in_the_address(tmp_path: Path, open_page: OpenPage) -> None:
    for name, steps in (("a1", 2), ("a2", 4), ("b1", 3)):
        make_run(tmp_path / name, steps)
    assert columns_of(open_page("runs", tmp_path, filter="^a"))["run"] == ["a2", "a1"]
    assert columns_of(open_page("runs", tmp_path, sort="steps"))["run"] == ["a2", "b1", "a1"]
    assert columns_of(open_page("runs", tmp_path, sort="name"))["run"] == ["a1", "a2", "b1"]


def test_a_filter_that_matches_nothing_or_is_none(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "a")
    assert open_page("runs", tmp_path, filter="zzz").text[0].value == "No run matches the filter."
    page = open_page("runs", tmp_path, filter="(")
    assert not page.exception
    assert "is not a regular expression" in page.text[0].value


@pytest.mark.long
def test_many_runs_come_in_pages(tmp_path: Path, open_page: OpenPage) -> None:
    for number in range(30):
        make_run(tmp_path / f"run-{number:02d}", 1)
    assert len(columns_of(open_page("runs", tmp_path, sort="name"))["run"]) == 25
    second = open_page("runs", tmp_path, sort="name", page="2")
    assert columns_of(second)["run"] == [f"run-{number}" for number in range(25, 30)]


def looked_at(page: AppTest) -> AppTest:
    """The page once the files below the root were looked at, beside it."""
    until(lambda: queries._sources().has_looked, "look at the files")
    return page.run()


def test_a_broken_run_is_listed_with_the_reason(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    page = open_page("runs", tmp_path)
    assert columns_of(page)["run"] == ["good"]
    broken = page.dataframe[1].value.iloc[0]
    assert (broken["folder"], broken["why"][:22]) == ("bad", "run.json: not JSON (Ex")
    assert any("echoscope runs verify" in code.value for code in page.code)


def test_a_live_run_says_so(tmp_path: Path, open_page: OpenPage) -> None:
    writer = open_writer(tmp_path / "a")
    add_steps(writer, "a", range(2))
    try:
        assert columns_of(open_page("runs", tmp_path))["status"] == ["live"]
        old = time.time() - 3600
        os.utime(tmp_path / "a" / "journal.ndjson", (old, old))
        queries.forget()
        assert columns_of(open_page("runs", tmp_path))["status"] == ["stale, no news for 1.0 h"]
    finally:
        writer.close(status="finished")


def test_the_list_has_the_word_of_the_store(tmp_path: Path, open_page: OpenPage) -> None:
    """A run that pauses, and one whose trainer was killed: both silent for an hour."""
    paused = open_writer(tmp_path / "paused")
    killed = open_writer(tmp_path / "killed")
    for writer in (paused, killed):
        add_steps(writer, writer.run_id, range(1, 3))
    command = new_command("paused", CommandAction.PAUSE, issued_by="ann")
    ack = CommandAck(command_id=command.command_id, step=3, outcome=CommandOutcome.APPLIED)
    paused.record_acks([ack], [command])
    paused.flush()
    killed._lock.release()  # as the system does when a process dies
    for name in ("paused", "killed"):
        os.utime(tmp_path / name / "journal.ndjson", (time.time() - 3600,) * 2)
    found = columns_of(open_page("runs", tmp_path))
    status = dict(zip(found["run"], found["status"], strict=True))
    assert status["paused"].startswith("paused by ann for ")
    assert status["killed"] == "crashed"
    filtered = columns_of(open_page("runs", tmp_path, filter="^paused$"))
    assert filtered["run"] == ["paused"]


def test_the_verdict_has_its_column_from_the_start(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "a", 2)
    assert "state" in columns_of(open_page("runs", tmp_path))


def row(**fields: object) -> RunRow:
    return RunRow(**{"run_id": "a", "path": Path("/a")} | fields)  # type: ignore[arg-type]


def test_what_is_noted(tmp_path: Path) -> None:
    changes = note_changes(
        row(tags=("old", "kept"), note="before"), ["old", "kept"], ["kept", " new "], "after", True
    )
    kinds = [(change.kind, getattr(change, "tag", "")) for change in changes]
    assert kinds == [("add_tag", "new"), ("remove_tag", "old"), ("set_note", ""), ("pin", "")]
    run = make_run(tmp_path / "a")
    annotate(run, *changes)
    noted = read_annotations(run)
    assert (noted.tags, noted.note, noted.is_pinned) == (("new",), "after", True)


def test_nothing_new_is_nothing_to_note() -> None:
    same = row(tags=("a",), note="n", is_pinned=True)
    assert note_changes(same, ["a"], ["a"], "n", True) == []
    assert note_changes(same, ["a"], ["a"], None, True) == []


def test_a_tag_that_would_hide_is_refused() -> None:
    with pytest.raises(AnnotationError, match="printable"):
        note_changes(row(), [], ["a\u202eb"], None, False)


@pytest.mark.parametrize(
    ("state", "said"),
    [(RunState.COLLAPSED, "collapsed"), (RunState.HEALTHY, "healthy, diverse")],
)
def test_a_collapse_is_not_said_to_be_diverse_as_well(
    tmp_path: Path,
    open_page: OpenPage,
    monkeypatch: pytest.MonkeyPatch,
    state: RunState,
    said: str,
) -> None:
    make_run(tmp_path / "a")
    verdict = replace(judging._nothing_yet(), state=state, regime=Regime.DIVERSE)
    monkeypatch.setattr(queries, "known_verdict", lambda run_id: verdict)
    assert columns_of(open_page("runs", tmp_path))["state"] == [said]


def test_files_of_other_trainers_are_listed_and_open_by_a_click(
    tmp_path: Path, open_page: OpenPage
) -> None:
    fixtures = Path(__file__).parents[2] / "store" / "importers" / "fixtures"
    shutil.copytree(fixtures / "trl", tmp_path / "<b>my trl")

    def page(**options: Any) -> AppTest:
        return looked_at(open_page("runs", tmp_path, options=options))

    listed = page()
    assert "Files of other trainers" in [one.value for one in listed.subheader]
    words = " ".join(one.value for one in listed.caption).replace("\\", "")
    assert "rollouts, 1 file" in words
    assert [one.label for one in listed.button] == ["Import"]
    read_only = page(is_read_only=True)
    assert [one.label for one in read_only.button] == []
    assert "nothing is imported from here" in " ".join(one.value for one in read_only.caption)


def test_an_import_that_was_stopped_can_be_continued(tmp_path: Path, open_page: OpenPage) -> None:
    fixtures = Path(__file__).parents[2] / "store" / "importers" / "fixtures"
    shutil.copytree(fixtures / "verl", tmp_path / "verl")

    def interrupt(done: int, of: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_path(tmp_path / "verl", tmp_path / "verl-imported", writing=interrupt)
    page = looked_at(open_page("runs", tmp_path))
    words = " ".join(one.value for one in page.caption).replace("\\", "")
    assert "imported only in part as the run verl-imported" in words
    (button,) = [one for one in page.button if one.label == "Import"]
    assert button.help.replace("\\", "") == "Imports it as the run verl-imported."
