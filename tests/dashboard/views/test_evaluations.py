"""The page Evaluations, and what the pages about trainings show of an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_text import app_text
from made_evaluation import make_evaluation, open_evaluation
from made_run import make_run
from streamlit.testing.v1 import AppTest
from tables import columns_of

from echoscope.dashboard.data import queries

from .test_pages import HOSTILE

OpenPage = Callable[..., AppTest]
HALF = ["11", "00"] * 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two evaluations of the same tasks, one of them better beyond chance; one of other tasks."""
    make_evaluation(tmp_path / "good", {"lake": ["11"] * 10}, who="qwen", temperature=0.5)
    make_evaluation(tmp_path / "bad", {"lake": HALF}, who="tiny", cost=0.5)
    make_evaluation(tmp_path / "other", {"lake": ["11"] * 10}, seed=3)
    return tmp_path


def tables_of_page(page: AppTest) -> list[dict[str, list[Any]]]:
    return [{name: [*t.value[name]] for name in t.value.columns} for t in page.dataframe]


def test_the_same_tasks_are_ranked(root: Path, open_page: OpenPage) -> None:
    page = open_page("evaluations", root)
    assert not page.exception
    ranked, alone = tables_of_page(page)
    assert ranked["run"] == ["good", "bad"]
    assert ranked["who"] == ["qwen at temperature 0.5", "tiny at temperature 1"]
    assert ranked["success"][0] == "100.0 % (66.1 to 100.0)"
    assert ranked["pass@2"] == [100.0, 50.0]
    assert ranked["pass^2"] == [100.0, 50.0]
    assert ranked["difference"][0] == "best"
    assert ranked["difference"][1].startswith("-50.0 (")
    assert ranked["difference"][1].endswith("), lower")
    assert ranked["cost"][1] == 10.0  # dollars, of 20 episodes
    assert ranked["replay"] == ["/replay?run=good", "/replay?run=bad"]
    assert alone["run"] == ["other"]
    assert not {"place", "difference", "cost"} & set(alone)
    text = app_text(page)
    assert "Best: qwen at temperature 0.5 (good), success 100.0 % (66.1 to 100.0)." in text
    assert "Lower: tiny at temperature 1 (bad)." in text
    assert "Only tiny at temperature 1 (other) played these tasks" in text


def test_what_cannot_be_told_apart_is_said(tmp_path: Path, open_page: OpenPage) -> None:
    make_evaluation(tmp_path / "a", {"lake": ["11"] * 9 + ["10"]}, who="one")
    make_evaluation(tmp_path / "b", {"lake": ["11"] * 8 + ["10"] * 2}, who="two")
    page = open_page("evaluations", tmp_path)
    why = "because the interval of the difference holds 0"
    assert f"Cannot be told apart from it, {why}: two at temperature 1 (b)." in app_text(page)
    (ranked,) = tables_of_page(page)
    assert ranked["difference"][1].endswith("), not told apart")


def test_the_group_of_the_run_in_the_address_comes_first(root: Path, open_page: OpenPage) -> None:
    page = open_page("evaluations", root, run="other")
    assert [table["run"] for table in tables_of_page(page)] == [["other"], ["good", "bad"]]


def test_of_two_worlds_each_leads_to_its_own_episodes(tmp_path: Path, open_page: OpenPage) -> None:
    make_evaluation(tmp_path / "e", {"lake": ["11"], "it's": ["00"]})
    links = [table["replay"][0] for table in tables_of_page(open_page("evaluations", tmp_path))]
    assert links == [
        "/replay?run=e&where=tag+%3D+%27lake%27",
        "/replay?run=e&where=tag+%3D+%27it%27%27s%27",
    ]
    assert "1 trajectory" not in app_text(open_page("evaluations", tmp_path))
    replay = open_page("replay", tmp_path, run="e", where="tag = 'it''s'")
    assert not replay.exception


def test_a_part_of_the_episodes_is_said_to_be_a_part(tmp_path: Path, open_page: OpenPage) -> None:
    make_evaluation(tmp_path / "cut", {"lake": ["11", "10"]}, planned=60, status="stopped")
    make_evaluation(tmp_path / "none", {"lake": []}, planned=60, status="failed")
    page = open_page("evaluations", tmp_path)
    assert not page.exception
    assert tables_of_page(page)[0]["episodes"] == ["4 of 120"]
    assert "cut is not complete: 4 of 120 episodes were played, stopped." in app_text(page)
    assert "none is not complete: 0 of 60 episodes were played, failed." in app_text(page)
    commands = "".join(element.body for element in page.get("html"))
    assert f"echoscope eval --resume {tmp_path}/cut" in commands


def test_a_live_evaluation_is_live_and_has_no_command(tmp_path: Path, open_page: OpenPage) -> None:
    writer = open_evaluation(tmp_path / "e", {"lake": ["11", "10"]}, planned=60)
    try:
        page = open_page("evaluations", tmp_path)
        assert "e is not complete: 4 of 120 episodes were played, live." in app_text(page)
        assert "--resume" not in "".join(element.body for element in page.get("html"))
        assert columns_of(open_page("runs", tmp_path))["status"] == ["live"]
    finally:
        writer.close(status="stopped")


def test_without_evaluations_the_page_says_how_to_make_one(
    tmp_path: Path, open_page: OpenPage
) -> None:
    make_run(tmp_path / "training")
    page = open_page("evaluations", tmp_path)
    assert not page.exception
    (code,) = page.code
    assert code.value == (
        f"echoscope eval tiny --env frozen_lake --tasks 60 --siblings 4 --root {tmp_path}"
    )


@pytest.mark.parametrize("name", ["live", "diagnosis"])
def test_an_evaluation_is_not_shown_as_a_training(
    name: str, root: Path, open_page: OpenPage
) -> None:
    page = open_page(name, root, run="bad")
    assert not page.exception
    assert "This is an evaluation of tiny, not a training, so there is no verdict." in app_text(
        page
    )
    assert "20 episodes were played." in app_text(page)
    assert queries.known_verdict("bad") is None
    assert not page.button
    assert not page.expander


def test_the_page_runs_lists_it_without_judging_it(root: Path, open_page: OpenPage) -> None:
    make_run(root / "training")
    columns = columns_of(open_page("runs", root))
    state = dict(zip(columns["run"], columns["verdict"], strict=True))
    assert {state[name] for name in ("good", "bad", "other")} == {"evaluation"}
    assert queries.known_verdict("good") is None
    assert dict(zip(columns["run"], columns["env"], strict=True))["good"] == "lake"


def test_hostile_words_stay_words(tmp_path: Path, open_page: OpenPage) -> None:
    worlds = {HOSTILE: ["11", "10"]}
    make_evaluation(tmp_path / "a", worlds, who=HOSTILE, planned=9, status="stopped")
    make_evaluation(tmp_path / "b", worlds, who="\u202eodd\x00")
    page = open_page("evaluations", tmp_path)
    assert not page.exception
    assert "\\[a\\]" in page.subheader[0].value
    assert any("[NUL]" in name for name in tables_of_page(page)[0]["who"])
    assert not open_page("live", tmp_path, run="a").exception


def test_a_read_only_page_writes_nothing(root: Path, open_page: OpenPage) -> None:
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in root.rglob("*")}

    before = files()
    page = open_page("evaluations", root, options={"is_read_only": True})
    assert not page.exception
    assert len(page.dataframe) == 2
    assert files() == before
