"""Every page on a recorded run, an empty root, a broken run and with nonsense in the address."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from app_text import app_text
from made_run import make_run
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.page import links

OpenPage = Callable[..., AppTest]
PAGES = list(links.PAGES)
OF_SEVERAL = ("runs", "compare", "evaluations", "panels")
"""Pages that show more than one run."""
WITH_RUN = [name for name in PAGES if name not in OF_SEVERAL]
HOSTILE = "<img src=x onerror=alert(1)> **b** [a](http://evil.example) `x` :smile: $x$"


def test_all_pages_are_there() -> None:
    assert [name for name in PAGES if not links.script(name).is_file()] == []


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_a_recorded_run_is_shown(name: str, recorded_root: Path, open_page: OpenPage) -> None:
    page = open_page(name, recorded_root, run="tiny")
    assert not page.exception
    assert page.title[0].value == links.PAGES[name]


@pytest.mark.parametrize("name", PAGES)
def test_an_empty_root_says_how_to_make_a_run(
    name: str, tmp_path: Path, open_page: OpenPage
) -> None:
    page = open_page(name, tmp_path)
    assert not page.exception
    assert any("echoscope demo --root" in code.value for code in page.code), app_text(page)


@pytest.mark.parametrize("name", PAGES)
def test_a_root_that_does_not_exist_says_so(name: str, tmp_path: Path, open_page: OpenPage) -> None:
    page = open_page(name, tmp_path / "nowhere")
    assert not page.exception
    assert "nowhere" in app_text(page)


@pytest.mark.parametrize("name", PAGES)
def test_a_run_without_a_step_is_shown(name: str, tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "young", 0, status="interrupted")
    assert not open_page(name, tmp_path, run="young").exception


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_RUN)
@pytest.mark.parametrize("asked", ["nope", "../secret", "a/b", ".", "x" * 400])
def test_a_run_that_is_gone_is_not_replaced_by_another_one(
    name: str, asked: str, tmp_path: Path, open_page: OpenPage
) -> None:
    make_run(tmp_path / "real")
    page = open_page(name, tmp_path, run=asked)
    assert not page.exception
    assert page.query_params["run"] == asked
    assert page.selectbox[0].value is None
    assert not page.button
    assert "Choose another run." in app_text(page) or "under the root" in app_text(page)
    page.selectbox[0].select("real").run()
    assert page.query_params["run"] == "real"


def test_panels_leave_out_a_run_that_is_gone_and_say_so(
    tmp_path: Path, open_page: OpenPage
) -> None:
    make_run(tmp_path / "real")
    page = open_page("panels", tmp_path, run="nope")
    assert not page.exception
    assert "there is no run 'nope'; it is not shown" in app_text(page).replace("\\", "")
    assert "Choose a run above." in app_text(page)


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_RUN)
def test_a_run_that_is_deleted_while_somebody_looks_leaves_an_empty_page(
    name: str, tmp_path: Path, open_page: OpenPage
) -> None:
    make_run(tmp_path / "other")
    gone = make_run(tmp_path / "gone")
    page = open_page(name, tmp_path, run="gone")
    shutil.rmtree(gone)
    page.run()
    assert not page.exception
    assert page.query_params["run"] == "gone"
    assert "There is no run 'gone' under" in app_text(page)


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("run_id", ["ppo__lr1e-4__seed0", "___", "a__"])
def test_a_folder_may_have_two_underscores_in_its_name(
    name: str, run_id: str, tmp_path: Path, open_page: OpenPage
) -> None:
    make_run(tmp_path / run_id, values=lambda step: {"policy/entropy": 0.5, "odd__name/x__y": step})
    page = open_page(name, tmp_path, run=run_id, section="odd__name")
    assert not page.exception
    assert page.title[0].value == links.PAGES[name]


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_nonsense_in_the_address_is_no_error(
    name: str, recorded_root: Path, open_page: OpenPage
) -> None:
    keys = ("step", "trajectory", "turn", "family", "x", "smooth", "log", "clip", "runs")
    nonsense = dict.fromkeys(keys, HOSTILE)
    page = open_page(name, recorded_root, run="tiny", filter="(", q=HOSTILE, **nonsense)
    assert not page.exception


@pytest.mark.parametrize("name", WITH_RUN)
def test_a_damaged_journal_is_explained(name: str, tmp_path: Path, open_page: OpenPage) -> None:
    run = make_run(tmp_path / "hurt")
    (run / "journal.ndjson").write_bytes(b"\x00\xff not a journal\n" * 10)
    page = open_page(name, tmp_path, run="hurt")
    assert not page.exception
    assert page.code or page.text


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_a_newer_schema_is_explained(name: str, tmp_path: Path, open_page: OpenPage) -> None:
    run = make_run(tmp_path / "future")
    text = (run / "run.json").read_text(encoding="utf-8")
    (run / "run.json").write_text(text.replace('"1.0"', '"9.0"'), encoding="utf-8")
    page = open_page(name, tmp_path, run="future")
    assert not page.exception


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_missing_files_are_left_out_and_named(
    name: str, tmp_path: Path, open_page: OpenPage
) -> None:
    run = make_run(tmp_path / "torn")
    for path in (run / "seg" / "turns").glob("*.parquet"):
        path.unlink()
    assert not open_page(name, tmp_path, run="torn").exception


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_hostile_names_stay_text(name: str, tmp_path: Path, open_page: OpenPage) -> None:
    folder = HOSTILE.replace("/", "")
    make_run(tmp_path / folder, name=HOSTILE, tags=[HOSTILE], text=HOSTILE)
    page = open_page(name, tmp_path, run=folder)
    assert not page.exception
    for element in page.markdown:
        assert "<img src=x" not in element.value
        assert "[a](http" not in element.value
