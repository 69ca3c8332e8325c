"""Banner and tiles of recorded runs whose truth is known: they print what the verdict claims."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, until, visit
from recorded_courses import COURSES, record
from trainer_process import TrainerProcess

from echoscope.dashboard.charts.tiles import claim_words
from echoscope.dashboard.labels import value_words
from echoscope.diagnostics.judge.claims import Change, Dip, Fate, Level, Lost
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.sentences import verdict_parts
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.store.reader import open_run

SUCCESS = "rollout/success_rate"
COLOURS = {
    "flat": "green",
    "rose": "green",
    "collapsed": "red",
    "crashed": "orange",
    "recovering": "orange",
}
KINDS: Mapping[str, type] = {
    "flat": Level,
    "rose": Change,
    "collapsed": Lost,
    "crashed": Change,
    "recovering": Dip,
}
"""What is claimed of success first."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of each course."""
    folder = tmp_path_factory.mktemp("verdicts")
    for name in COURSES:
        if name == "crashed":
            died = TrainerProcess(folder.parent / "crashed.log", record, folder, name)
            assert died.join() == 1, died.text
        else:
            record(folder, name)
    return folder


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    process = DashboardProcess(root, tmp_path_factory.mktemp("verdicts_log") / "log")
    yield process
    process.close()


@pytest.fixture(scope="module")
def verdicts(root: Path) -> dict[str, Verdict]:
    return {name: diagnose(root / name) for name in COURSES}


def judged(page: Any, server: DashboardProcess, name: str) -> None:
    """The page Live of a run, when its verdict is there."""
    visit(page, f"{server.url}/live?run={name}")
    headline = page.locator(".es-headline")
    until(lambda: headline.count() == 1, "a banner", page=page)
    until(lambda: "being judged" not in headline.inner_text(), "a verdict", page=page)
    until(lambda: page.locator(".es-tile").count() == 6, "six tiles", page=page)


@pytest.mark.parametrize("name", COURSES)
def test_the_banner_is_the_verdict_in_its_colour(
    server: DashboardProcess, page: Any, verdicts: Mapping[str, Verdict], name: str
) -> None:
    verdict = verdicts[name]
    judged(page, server, name)
    headline = page.locator(".es-headline").inner_text()
    assert headline
    assert plain(verdict_parts(verdict.text)[0][1]).startswith(plain(headline))
    facts = [plain(fact.inner_text()) for fact in page.locator(".es-facts span").all()]
    for fact in facts:
        assert fact.lower() in plain(verdict.text).lower()
        assert fact.count("(") == fact.count(")")  # no interval is cut from its steps
    assert page.locator(f".st-key-verdict_bar_{COLOURS[name]}").count() == 1
    to_do = page.locator(".es-do").inner_text()
    if verdict.actions:
        assert plain(verdict.actions[0].text) in plain(to_do)
    fate = next((claim for claim in verdict.claims if isinstance(claim, Fate)), None)
    assert (fate is not None) == (name == "crashed")
    if fate is not None:
        assert plain(headline).startswith(plain(fate.words))
        assert "nothing" not in to_do


@pytest.mark.parametrize("name", COURSES)
def test_the_tile_of_success_says_what_is_claimed_of_it(
    server: DashboardProcess, page: Any, verdicts: Mapping[str, Verdict], root: Path, name: str
) -> None:
    claims = [claim for claim in verdicts[name].claims if claim.metric == SUCCESS]
    assert isinstance(claims[0], KINDS[name])
    last = float(open_run(root / name).metrics(SUCCESS)[1][-1])
    judged(page, server, name)
    tile = page.locator(".es-tile", has_text="Training success")
    words = claim_words(claims[0])
    until(lambda: tile.locator(".es-change").inner_text() == words, words, page=page)
    assert tile.locator(".es-value").inner_text() == value_words(SUCCESS, last)
    is_proof = "es-evidence" in (tile.get_attribute("class") or "")
    assert is_proof == any(one.metric == SUCCESS for one in verdicts[name].evidence)


def plain(text: str) -> str:
    """Without the marks of what is typed, and with single blanks."""
    return re.sub(r"\s+", " ", text.replace("`", "")).strip()
