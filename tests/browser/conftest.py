"""A real Chromium on a real dashboard. `make test-browser` fails without one; others skip."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import PATIENCE_S, DashboardProcess, Watch, find_chromium
from held_run import HeldRun

playwright_api = pytest.importorskip("playwright.sync_api")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Debian's Chromium, headless."""
    path = find_chromium()
    if path is None:
        reason = "no Chromium here: apt-get install chromium, or name one in ECHOSCOPE_CHROMIUM"
        if os.environ.get("ECHOSCOPE_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with playwright_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def page(browser: object, watch: Watch) -> Iterator[object]:
    """A page of a fresh visitor. Whatever a test does: no console error, no foreign request."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})  # type: ignore[attr-defined]
    context.set_default_timeout(1000 * PATIENCE_S)
    opened = context.new_page()
    watch.on(opened)
    yield opened
    context.close()
    assert watch.errors == []
    assert watch.foreign == []


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., DashboardProcess]]:
    """Start dashboards that end with the test: `serve(root, "--read-only")`."""
    begun: list[DashboardProcess] = []

    def start(root: Path, *options: str, **more: Any) -> DashboardProcess:
        output = tmp_path / f"dashboard-{len(begun)}.log"
        begun.append(DashboardProcess(root, output, *options, **more))
        return begun[-1]

    yield start
    for process in begun:
        process.close()


@pytest.fixture(scope="session")
def recorded_root(
    make_config: Callable[..., object], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A root with one finished run, `tiny`, that a trainer recorded."""
    from echoscope.core.run.launch import start
    from echoscope.core.run.observers import SilentEvents

    root = tmp_path_factory.mktemp("recorded")
    config = make_config("steps=6", "eval.every=3")
    assert start(config, root / "tiny", SilentEvents()) == "finished"
    return root


@pytest.fixture(scope="session")
def dashboard(
    recorded_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DashboardProcess]:
    """The dashboard that most tests share. A test puts runs of its own names under its root."""
    output = tmp_path_factory.mktemp("dashboard") / "log"
    process = DashboardProcess(recorded_root, output)
    yield process
    process.close()


@pytest.fixture(scope="session")
def read_only(
    recorded_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DashboardProcess]:
    """The same root, served read-only."""
    output = tmp_path_factory.mktemp("read_only") / "log"
    process = DashboardProcess(recorded_root, output, "--read-only")
    yield process
    process.close()


@pytest.fixture
def hold(dashboard: DashboardProcess) -> Iterator[Callable[..., HeldRun]]:
    """`hold("name")`: a live run under the shared root that the test writes; ended afterwards."""
    held: list[HeldRun] = []

    def make(name: str, **options: Any) -> HeldRun:
        held.append(HeldRun(dashboard.root / name, **options))
        return held[-1]

    yield make
    for run in held:
        run.close()
