"""Banner and tiles of runs whose truth is known: they print what the verdict claims."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from browsing import PATIENCE_S, DashboardProcess, Watch, until, visit
from recorded_courses import COURSES, RETURN, SUCCESS, record
from trainer_process import TrainerProcess

from echoscope.dashboard.charts.tiles import claim_words
from echoscope.dashboard.words import value_words
from echoscope.diagnostics.judge.claims import Change, Dip, Fate, Level, Lost
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.judge.verdict_text import verdict_parts
from echoscope.diagnostics.read.table import table_of_run
from echoscope.store.reader import open_run

TILES = {SUCCESS: "Training success", RETURN: "Mean reward"}
"""Metric to the name of its tile; any other here is of an evaluation."""
WITH_FATE = {"crashed", "killed_at_10", "paused"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One run of each course."""
    folder = tmp_path_factory.mktemp("verdicts")
    held = []
    for name, course in COURSES.items():
        if course.end == "killed":
            died = TrainerProcess(folder.parent / f"{name}.log", record, folder, name)
            assert died.join() == 1, died.text
        else:
            held.append(record(folder, name))
    yield folder
    for writer in held:
        if writer is not None:
            writer.close(status="finished")


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    process = DashboardProcess(root, tmp_path_factory.mktemp("verdicts_log") / "log")
    yield process
    process.close()


@pytest.fixture(scope="module")
def verdicts(root: Path) -> Mapping[str, Verdict]:
    return {name: diagnose(root / name) for name in COURSES}


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """One visitor for all courses: nothing is loaded twice, nothing of one run is left on another.

    It makes no error on its console, and no foreign request.
    """
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(1000 * PATIENCE_S)
    opened, watch = context.new_page(), Watch()
    watch.on(opened)
    yield opened
    context.close()
    assert (watch.errors, watch.foreign) == ([], [])


ONE_OF_EACH_STATE = {"flat", "collapsed", "recovering", "replies_without_prompt", "three_signals"}
ONE_OF_EACH_STATE |= {"length_pays", "crashed", "paused"}
EACH_COURSE = [
    pytest.param(name, marks=[] if name in ONE_OF_EACH_STATE else pytest.mark.long)
    for name in COURSES
]


def judged(page: Any, server: DashboardProcess, name: str) -> None:
    """The page Live of a run, when its verdict is there."""
    visit(page, f"{server.url}/live?run={name}")
    headline = page.locator(".es-headline")
    until(lambda: headline.count() == 1, "a banner", page=page)
    until(lambda: "being judged" not in headline.inner_text(), "a verdict", page=page)
    until(lambda: page.locator(".es-tile").count() == 6, "six tiles", page=page)


@pytest.mark.parametrize("name", EACH_COURSE)
def test_banner_and_tile_say_what_is_claimed_and_what_is_true(
    server: DashboardProcess, page: Any, verdicts: Mapping[str, Verdict], root: Path, name: str
) -> None:
    judged(page, server, name)
    verdict = verdicts[name]
    assert verdict.state is COURSES[name].state
    look_at_banner(page, verdict, name)
    look_at_tile(page, verdict, root / name)
    never = re.compile(COURSES[name].never)
    for text in (page.locator("body").inner_text(), verdict.text):
        assert never.search(plain(text)) is None


def look_at_banner(page: Any, verdict: Verdict, name: str) -> None:
    course = COURSES[name]
    headline = plain(page.locator(".es-headline").inner_text())
    assert re.match(course.says, headline)
    assert plain(verdict_parts(verdict.text)[0][1]).startswith(headline)
    facts = [plain(fact.inner_text()) for fact in page.locator(".es-facts span").all()]
    for fact in facts:
        assert fact.lower() in plain(verdict.text).lower()
        assert fact.count("(") == fact.count(")")  # no interval is cut from its steps
    assert page.locator(f".st-key-verdict_bar_{course.colour}").count() == 1

    def to_do() -> str:
        return plain(page.locator(".es-do").inner_text())

    until(lambda: re.search(course.to_do, to_do()), "advice", page=page)
    if verdict.actions:
        assert plain(verdict.actions[0].text) in to_do()
    fate = next((claim for claim in verdict.claims if isinstance(claim, Fate)), None)
    assert (fate is not None) == (name in WITH_FATE)
    if fate is not None:
        assert headline.startswith(plain(fate.words))


def look_at_tile(page: Any, verdict: Verdict, run: Path) -> None:
    course = COURSES[run.name]
    of_it = [claim for claim in verdict.claims if claim.metric == course.key]
    claim = next(each for each in of_it if isinstance(each, Level | Change | Lost | Dip))
    tile_text = claim_words(claim)
    assert re.fullmatch(course.tile, tile_text)
    tile = page.locator(".es-tile", has_text=TILES.get(course.key, "Evaluation success"))
    until(lambda: tile.locator(".es-change").inner_text() == tile_text, tile_text, page=page)
    last = [row[course.key] for _, row in table_of_run(open_run(run)).rows() if course.key in row]
    assert tile.locator(".es-value").inner_text() == value_words(course.key, last[-1])


@pytest.mark.parametrize("name", [name for name, course in COURSES.items() if course.why])
def test_the_page_diagnosis_tells_the_cause_that_is_known(
    server: DashboardProcess, page: Any, name: str
) -> None:
    visit(page, f"{server.url}/diagnosis?run={name}")
    until(lambda: page.locator(".es-verdict").count() == 1, "a verdict", page=page)
    body = page.locator("body")

    def is_told() -> bool:
        page.evaluate("document.querySelectorAll('details').forEach(list => { list.open = true })")
        return re.search(COURSES[name].why, plain(body.inner_text())) is not None

    until(is_told, "the cause", page=page)
    assert re.search(COURSES[name].never, plain(body.inner_text())) is None


def plain(text: str) -> str:
    """Without the marks of what is typed, and with single blanks."""
    return re.sub(r"\s+", " ", text.replace("`", "")).strip()
