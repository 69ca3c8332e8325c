"""Files of other trainers in a real browser: opened by a click, and what each page says of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from browsing import table_rows, text_of, until, visit

from echoscope.diagnostics.tools.importing import import_path

FIXTURES = Path(__file__).parents[1] / "store" / "importers" / "fixtures"
FORMATS = ("ragen", "verl", "trl", "verifiers", "messages")


def test_a_click_makes_a_run_of_a_folder_and_the_next_one_leads_to_it(
    tmp_path: Path, serve: Any, page: Any
) -> None:
    root = tmp_path / "runs"
    shutil.copytree(FIXTURES / "verl", root / "my-verl")
    visit(page, serve(root).url)
    page.get_by_text("rollouts, 3 files").wait_for()
    button = page.locator("[class*=st-key-foreign_]").get_by_role("button", name="Import").first
    opened = page.get_by_text("imported as the run my-verl-imported")
    button.click()
    opened.wait_for(timeout=60_000)
    until(lambda: "my-verl-imported" in str(table_rows(page)), "run in the list", page=page)
    page.get_by_text("What was imported, guessed and skipped").click()
    page.get_by_text("Reconstructed in 4 episodes").first.wait_for()
    page.get_by_role("link", name="Open the run").click()
    page.get_by_role("heading", name="Live").wait_for()
    page.get_by_text("imported, step 10").wait_for()


def test_the_command_line_opens_a_folder_of_another_trainer(
    tmp_path: Path, serve: Any, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FIXTURES / "trl", tmp_path / "my-trl")
    monkeypatch.chdir(tmp_path)
    visit(page, serve(tmp_path / "my-trl").url)
    page.get_by_text("imported as the run my-trl").wait_for(timeout=60_000)
    assert (tmp_path / "runs" / "my-trl" / "run.json").is_file()


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imported")
    for name in FORMATS:
        import_path(FIXTURES / name, root / name, is_packing=False)
    rows = [{"step": step, "critic/score/mean": 0.4} for step in range(12)]
    (root / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    import_path(root / "log.jsonl", root / "numbers", is_packing=False)
    return root


@pytest.mark.long
def test_every_format_shows_verdict_turns_groups_and_rewards(
    imported: Path, serve: Any, page: Any
) -> None:
    url = serve(imported).url
    for name in FORMATS:
        visit(page, f"{url}/live?run={name}&panel=true")
        page.get_by_text("Too early to tell").first.wait_for()
        page.get_by_text("so it takes no commands").wait_for()
        assert not page.get_by_role("button", name="Stop").count()
        visit(page, f"{url}/replay?run={name}")
        page.locator(".es-turn").first.get_by_text("Turn 0").wait_for()
        page_text = text_of(page)
        for wrong in ("nan", "pending", "no update has used it", "ended by unknown", "executed"):
            assert wrong not in page_text.split("\n"), (name, wrong)
        visit(page, f"{url}/diagnosis?run={name}")
        page.get_by_text("Groups and their rewards").wait_for()


def test_a_run_of_metrics_alone_says_what_it_has_not(imported: Path, serve: Any, page: Any) -> None:
    url = serve(imported).url
    visit(page, f"{url}/live?run=numbers")
    tile = page.locator(".es-tile", has_text="Mean reward")
    until(lambda: tile.count() == 1, "the mean reward, which is no success", page=page)
    assert tile.locator(".es-value").inner_text() == "0.4"
    visit(page, f"{url}/replay?run=numbers")
    page.get_by_text("metrics and no rollouts, so there is nothing to replay").wait_for()
    visit(page, f"{url}/diagnosis?run=numbers")
    page.get_by_text("cannot be seen without the text").wait_for()
