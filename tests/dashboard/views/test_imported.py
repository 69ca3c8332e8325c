"""Pages of a run that was imported: what another trainer did not write is not shown as known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.report.report import make_report
from echoscope.store.importers.importing import import_run

OpenPage = Callable[..., AppTest]
FIXTURES = Path(__file__).parents[2] / "store" / "importers" / "fixtures"
FORMATS = ("ragen", "verl", "tinker")


@pytest.fixture(scope="module")
def imported_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imported")
    for name in FORMATS:
        import_run(FIXTURES / name, root / name)
    return root


def html_of(page: AppTest) -> str:
    return "".join(element.proto.body for element in page.get("html"))


@pytest.mark.parametrize("view", ["live", "diagnosis", "evaluations"])
def test_pages_of_an_imported_run(view: str, imported_root: Path, open_page: OpenPage) -> None:
    page = open_page(view, imported_root, run="verl")
    assert not page.exception


@pytest.mark.parametrize("name", FORMATS)
def test_episodes_of_each_format_are_replayed(
    name: str, imported_root: Path, open_page: OpenPage
) -> None:
    page = open_page("replay", imported_root, run=name)
    assert not page.exception
    text = "the file holds no text of this turn" if name == "tinker" else "Observation of turn 0"
    assert text in html_of(page)
    assert "empty response" not in html_of(page), "nobody said so"
    assert "not valid" not in html_of(page), "nobody said so"
    assert "nan" not in html_of(page).lower().replace("tenant", "")


def test_guesses_are_named_on_the_page(imported_root: Path, open_page: OpenPage) -> None:
    page = open_page("replay", imported_root, run="verl", trajectory="i00000010-00000")
    assert not page.exception
    assert "reconstructed: turns were split at role names in plain text" in html_of(page)
    assert "rollouts/10.jsonl" in html_of(page)


def texts_of(page: AppTest) -> str:
    """All captions and plain texts of a page."""
    return "\n".join(one.value for one in [*page.caption, *page.text]).replace("\\", "")


def test_an_imported_run_offers_no_control_and_says_why(
    imported_root: Path, open_page: OpenPage
) -> None:
    page = open_page("live", imported_root, run="verl")
    assert not [one for one in page.button if "steer" in str(one.key)]
    assert "This run was imported from files of verl, so it takes no commands." in texts_of(page)
    assert "The weights of this run are with another trainer" in texts_of(page)
    assert "Not in the data of this run: Policy entropy, Reasoning" in texts_of(page)
    assert "Queue and staleness" not in texts_of(page), "only our trainer has one"


def test_pages_of_an_imported_run_say_what_it_cannot_have(
    imported_root: Path, open_page: OpenPage
) -> None:
    alarms = open_page("alarms", imported_root, run="ragen")
    assert "This run was imported afterwards, so it has none" in texts_of(alarms)
    diagnosis = open_page("diagnosis", imported_root, run="ragen")
    assert "the weights are with the other trainer" in texts_of(diagnosis)


def test_the_report_of_an_imported_run_has_no_empty_chart(
    imported_root: Path, serve_root: Callable[..., None]
) -> None:
    serve_root(imported_root)
    text = make_report("verl")
    assert "Not in the data of this run: Policy entropy, Reasoning" in text
    assert "this run was imported afterwards" in text
    for missing in ("The sampler reported no entropies", "collection.mode=async"):
        assert missing not in text
