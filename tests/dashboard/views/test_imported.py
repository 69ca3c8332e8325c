"""Pages of a run that was imported: what another trainer did not write is not shown as known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

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
    assert "Observation of turn 0" in html_of(page)
    assert "not valid" not in html_of(page), "nobody said so"
    assert "nan" not in html_of(page).lower().replace("tenant", "")


def test_guesses_are_named_on_the_page(imported_root: Path, open_page: OpenPage) -> None:
    page = open_page("replay", imported_root, run="verl", trajectory="i00000010-00000")
    assert not page.exception
    assert "reconstructed: turns were split at role names in plain text" in html_of(page)
    assert "rollouts/10.jsonl" in html_of(page)
