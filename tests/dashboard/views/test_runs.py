"""The page Runs: what its table shows, and what people note."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from browsing import until
from made_run import CONFIG, add_steps, make_run, open_writer
from shown_figures import shown_figures
from streamlit.testing.v1 import AppTest
from tables import columns_of

from echoscope.dashboard.data import queries
from echoscope.dashboard.data.comparing.levels import evaluated_estimate
from echoscope.dashboard.data.run_table.facts import TableVerdict
from echoscope.dashboard.data.run_table.groups import grouped, ordered
from echoscope.dashboard.data.run_table.saved_views import save_view
from echoscope.dashboard.data.run_table.table import root_runs
from echoscope.dashboard.page.run_table import state
from echoscope.dashboard.page.run_table.actions import note_changes
from echoscope.dashboard.page.run_table.table import verdict_words
from echoscope.dashboard.web.settings import settings
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
    columns = columns_of(open_page("runs", tmp_path))
    assert columns["run"] == ["new", "old"]
    assert columns["status"] == ["failed", "finished"]
    assert columns["step"] == ["4", "2"]
    assert columns["success"] == ["50 %", "50 %"]
    assert columns["env"] == ["frozen_lake"] * 2
    assert columns["history"] == [[0.5] * 5, [0.5] * 3]


def test_filter_and_sort_are_in_the_address(tmp_path: Path, open_page: OpenPage) -> None:
    for name, steps in (("a1", 2), ("a2", 4), ("b1", 3)):
        make_run(tmp_path / name, steps)
    assert columns_of(open_page("runs", tmp_path, filter="^a"))["run"] == ["a2", "a1"]
    assert columns_of(open_page("runs", tmp_path, sort="-step"))["run"] == ["a2", "b1", "a1"]
    assert columns_of(open_page("runs", tmp_path, sort="step"))["run"] == ["a1", "b1", "a2"]
    assert columns_of(open_page("runs", tmp_path, sort="run"))["run"] == ["a1", "a2", "b1"]


def test_a_filter_that_matches_nothing_or_is_none(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "a")
    assert open_page("runs", tmp_path, filter="zzz").text[0].value == "No run matches the filter."
    for wrong, message in (("(", "is not a regular expression"), ("lrr > 1", "no column 'lrr'")):
        page = open_page("runs", tmp_path, filter=wrong)
        assert not page.exception
        assert message in page.text[0].value


@pytest.mark.long
def test_many_runs_come_in_pages(tmp_path: Path, open_page: OpenPage) -> None:
    for number in range(30):
        make_run(tmp_path / f"run-{number:02d}", 1)
    assert len(columns_of(open_page("runs", tmp_path, sort="run"))["run"]) == 25
    second = open_page("runs", tmp_path, sort="run", page="2")
    assert columns_of(second)["run"] == [f"run-{number}" for number in range(25, 30)]


def looked_at(page: AppTest) -> AppTest:
    """The page once the files below the root were looked at, beside it."""
    sources = queries._sources_of(settings().root, settings().sources)
    until(lambda: sources._next > 0, "look at the files")
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
    columns = columns_of(open_page("runs", tmp_path))
    status = dict(zip(columns["run"], columns["status"], strict=True))
    assert status["paused"].startswith("paused by ann for ")
    assert status["killed"] == "crashed"
    filtered = columns_of(open_page("runs", tmp_path, filter="^paused$"))
    assert filtered["run"] == ["paused"]


def test_the_verdict_has_its_column_from_the_start(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "a", 2)
    assert "verdict" in columns_of(open_page("runs", tmp_path))


def make_sweep(root: Path, num_seeds: int) -> None:
    """Two rates; the success of a run is a tenth of its seed, and a half more for the high rate."""
    for rate in (1e-6, 1e-4):
        for seed in range(num_seeds):
            success = 0.1 * (seed % 5) + (0.5 if rate > 1e-5 else 0.0)
            make_run(
                root / f"lr{rate:g}-s{seed}",
                1,
                config={**CONFIG, "optim": {"lr": rate}, "seed": seed},
                values=lambda step, success=success: {"eval/all/success_rate": success},
            )


def colours_of_curves(page: AppTest) -> list[str]:
    (figure,) = shown_figures(page).values()
    return [trace["line"]["color"] for trace in json.loads(figure.text)["data"] if trace["name"]]


@pytest.mark.long
def test_curves_of_one_page_have_colours_of_their_own(tmp_path: Path, open_page: OpenPage) -> None:
    for number in range(17):
        make_run(tmp_path / f"run-{number:02d}", 2)
    page = open_page("runs", tmp_path, curves="policy/entropy")
    until(lambda: len(colours_of_curves(page.run())) == 17, "17 curves")
    assert len(set(colours_of_curves(page))) == 17


def test_a_page_says_of_how_many_runs_its_curves_are(tmp_path: Path, open_page: OpenPage) -> None:
    """4 of 30 curves were drawn, and nothing said so."""
    for number in range(30):
        make_run(tmp_path / f"run-{number:02d}", 1)
    page = open_page("runs", tmp_path)

    def says(sentence: str) -> bool:
        return any(part.value == sentence for part in page.run().caption)

    until(lambda: says("Drawn: 25 of 30 runs, those of this page."), "curves of the page")
    page.query_params["group"] = "algo"
    of_groups = (
        "Drawn: 1 of 1 groups of this page, as means with 95 % intervals, from 30 of 30 runs."
    )
    until(lambda: says(of_groups), "curves of the group")


def test_groups_and_sorting_are_over_the_runs_of_all_pages(
    tmp_path: Path, open_page: OpenPage
) -> None:
    make_sweep(tmp_path, 15)  # more than a page has rows
    cells = columns_of(open_page("runs", tmp_path, group="lr", sort="-eval_success"))
    by_name = dict(zip(cells["run"], cells["eval_success"], strict=True))
    assert {name: value_text.partition(" (")[0] for name, value_text in by_name.items()} == {
        "▸ lr 1e-06  (15)": "20 %",
        "▸ lr 0.0001  (15)": "70 %",
    }
    rates = columns_of(open_page("runs", tmp_path, sort="lr", cols="optim.lr"))["optim.lr"]
    assert rates == 15 * ["1e-06"] + 10 * ["0.0001"]


def test_a_group_has_the_interval_of_the_page_compare(tmp_path: Path, open_page: OpenPage) -> None:
    """Three runs of equal success on 64 tasks: not certain, although nothing is spread."""
    for seed in range(3):
        values = {"eval/all/success_rate": 0.5, "eval/all/num_tasks": 64.0}
        make_run(
            tmp_path / f"s{seed}",
            2,
            config={**CONFIG, "seed": seed},
            values=lambda step, values=values: values,
        )
    page = open_page("runs", tmp_path, group="algo")
    estimate = evaluated_estimate([0.5] * 3, [64] * 3)
    expected = f"50 % ({100 * estimate.low:.0f} to {100 * estimate.high:.0f})"
    assert columns_of(page)["eval_success"] == [expected]


def test_a_group_opens_to_its_runs(tmp_path: Path, open_page: OpenPage) -> None:
    make_sweep(tmp_path, 2)
    page = open_page("runs", tmp_path, group="seeds", sort="-eval_success")
    (digest, _) = open_digests(page)
    opened = open_page("runs", tmp_path, group="seeds", sort="-eval_success", open=digest)
    assert columns_of(opened)["run"] == [
        "▾ lr 0.0001  (2)",
        "\u2003lr0.0001-s1",
        "\u2003lr0.0001-s0",
        "▸ lr 1e-06  (2)",
    ]


def open_digests(page: AppTest) -> list[str]:
    """What an address calls the groups of a page, in their order."""
    runs = root_runs()
    table = runs.table(queries.runs())
    groups = grouped(table, table.filtered(""), state.groups_of(table, [state.SEEDS]))
    return [group.digest for group in ordered(table, groups, "-eval_success")]


def test_any_setting_or_metric_is_a_column(tmp_path: Path, open_page: OpenPage) -> None:
    make_sweep(tmp_path, 1)
    names = "optim.lr,eval/all/success_rate,max(eval_success),nope"
    page = open_page("runs", tmp_path, cols=names, sort="lr", curves="0")
    cells = columns_of(page)
    assert [*cells] == ["run", "optim.lr", "eval/all/success_rate", "max(eval_success)"]
    assert cells["optim.lr"] == ["1e-06", "0.0001"]
    assert cells["eval/all/success_rate"] == ["0 %", "50 %"]
    assert any("there is no column" in part.value for part in page.info)


def test_ticks_hold_over_filters_and_pages(tmp_path: Path, open_page: OpenPage) -> None:
    make_sweep(tmp_path, 1)
    page = open_page("runs", tmp_path, filter="1e-06")
    page.session_state["_runs_ticked"] = ("lr1e-06-s0", "lr0.0001-s0")
    page.run()
    assert "2 ticked, 1 of them outside of the filter" in [part.value for part in page.text]
    assert [part.label for part in page.button if part.label == "Untick all"]


@pytest.mark.long
def test_ticks_of_a_page_become_those_of_all_runs_and_a_part_is_said(
    tmp_path: Path, open_page: OpenPage
) -> None:
    make_sweep(tmp_path, 15)
    page = open_page("runs", tmp_path, sort="run")
    page.session_state["_runs_ticked"] = tuple(columns_of(page)["run"])
    (button,) = [part for part in page.run().button if part.label.startswith("Tick all")]
    assert button.label == "Tick all 30"
    button.click().run()
    assert "30 ticked" in [part.value for part in page.text]
    links = [part.value.partition("]")[0] for part in page.markdown if "runs=" in part.value]
    assert links == ["[Compare", "[Panels 6 of 30"]


def test_whoever_comes_back_finds_the_table_as_it_was_left(
    tmp_path: Path, open_page: OpenPage
) -> None:
    make_sweep(tmp_path, 1)
    page = open_page("runs", tmp_path, filter="lr > 1e-5", cols="optim.lr", sort="run")
    for name in ("filter", "cols", "sort"):
        del page.query_params[name]
    page.run()
    assert len(columns_of(page)["run"]) == 2  # it was cleared on the page itself
    page.query_params["cols"] = "optim.lr"
    page.run()
    del page.query_params["cols"]
    page.session_state["_arrived"] = True
    assert [*columns_of(page.run())][-1] == "optim.lr"
    assert page.query_params["cols"] in ("optim.lr", ["optim.lr"])


def test_what_a_replaced_menu_or_table_sends_again_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a browser does that has not yet drawn the page anew."""
    monkeypatch.setattr(st, "session_state", {})
    before = state.widget_key("order", "-started")
    st.session_state[before] = "-step"
    assert state.note_choice("order", before)
    assert state.widget_key("order", "-step") == before  # the menu's own choice: it goes on
    after = state.widget_key("order", "-success")
    assert not state.note_choice("order", before)
    assert state.widget_key("order", "-success") == after

    state.show_table("table:1")
    assert state.is_table_shown("table:1")
    state.show_table("table:2")
    assert not state.is_table_shown("table:1")


def test_a_saved_view_is_an_address(tmp_path: Path, open_page: OpenPage) -> None:
    make_sweep(tmp_path, 1)
    save_view(tmp_path, "high only", {"filter": "lr > 1e-5", "cols": "optim.lr"})
    cells = columns_of(open_page("runs", tmp_path, view="high only"))
    assert (cells["run"], cells["optim.lr"]) == (["lr0.0001-s0"], ["0.0001"])
    gone = open_page("runs", tmp_path, view="no such")
    assert any("there is no saved view" in part.value for part in gone.info)


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
    ("verdict", "verdict_text"),
    [
        ({"state": "collapsed", "regime": "diverse", "since": 20}, "collapsed since step 20"),
        ({"state": "collapsed in part", "since": 20}, "collapsed in part since step 20"),
        ({"state": "healthy", "regime": "diverse"}, "healthy, diverse"),
        ({"state": "converged", "regime": "low entropy collapse"}, "converged"),
        ({"state": ""}, ""),
    ],
)
def test_a_verdict_says_since_when_and_nothing_that_contradicts_it(
    verdict: dict[str, Any], verdict_text: str
) -> None:
    whole = {"mark": (0.0, 0.0, 0), "regime": "", "since": None, "kind": ""} | verdict
    assert verdict_words(TableVerdict(**whole)) == verdict_text


def test_files_of_other_trainers_are_listed_and_open_by_a_click(
    tmp_path: Path, open_page: OpenPage
) -> None:
    fixtures = Path(__file__).parents[2] / "store" / "importers" / "fixtures"
    shutil.copytree(fixtures / "trl", tmp_path / "<b>my trl")

    def page(**options: Any) -> AppTest:
        return looked_at(open_page("runs", tmp_path, options=options))

    listed = page()
    assert "Files of other trainers" in [part.value for part in listed.subheader]
    captions = " ".join(caption.value for caption in listed.caption).replace("\\", "")
    assert "rollouts, 1 file" in captions
    assert [part.label for part in listed.button] == ["Import"]
    read_only = page(is_read_only=True)
    assert [part.label for part in read_only.button] == []
    assert "nothing is imported from here" in " ".join(part.value for part in read_only.caption)


def test_an_import_that_was_stopped_can_be_continued(tmp_path: Path, open_page: OpenPage) -> None:
    fixtures = Path(__file__).parents[2] / "store" / "importers" / "fixtures"
    shutil.copytree(fixtures / "verl", tmp_path / "verl")

    def interrupt(done: int, of: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_path(tmp_path / "verl", tmp_path / "verl-imported", writing=interrupt)
    page = looked_at(open_page("runs", tmp_path))
    captions = " ".join(caption.value for caption in page.caption).replace("\\", "")
    assert "imported only in part as the run verl-imported" in captions
    (button,) = [part for part in page.button if part.label == "Import"]
    assert button.help.replace("\\", "") == "Imports it as the run verl-imported."
