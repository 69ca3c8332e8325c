"""Roots of runs for the pages, and pages as a browser would ask for them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.data import queries
from echoscope.dashboard.page import links, ui
from echoscope.dashboard.web import settings

APP = Path(ui.__file__).parents[1] / "app.py"
PATIENCE_S = 60.0
logging.getLogger("streamlit").setLevel(logging.ERROR)  # it misses its server in every test

OpenPage = Callable[..., AppTest]


@pytest.fixture(scope="session", autouse=True)
def _one_scan_of_packages() -> Iterator[None]:
    """Streamlit looks for components in every installed package, once a process; but a test's page
    is a process to it, and four fifths of drawing a page would be that search."""
    with pytest.MonkeyPatch.context() as patch:
        scan = cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        yield


@pytest.fixture(autouse=True)
def _fresh_queries() -> Iterator[None]:
    """No test finds what another one read."""
    queries.forget()
    yield
    queries.forget()


@pytest.fixture(autouse=True)
def _own_main() -> Iterator[None]:
    """Drawing a page makes it `__main__`, which processes started by later tests would run."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before


@pytest.fixture
def serve_root() -> Callable[..., None]:
    """Says which root the pages serve: `serve_root(path, is_read_only=True)`."""

    def serve(root: Path, **options: Any) -> None:
        settings.configure(settings.DashboardSettings(root=root, **options))

    return serve


@pytest.fixture
def open_page(serve_root: Callable[..., None]) -> OpenPage:
    """Draws one page by itself: `open_page("sql", root, run="tiny", step="3")`.

    The page Live has its panel open, where most of what a test looks for stands.
    """

    def open_it(name: str, root: Path, /, *, options: Any = None, **params: str) -> AppTest:
        serve_root(root, **(options or {}))
        page = AppTest.from_file(str(links.script(name)), default_timeout=PATIENCE_S)
        if name == "live":
            params.setdefault("panel", "true")
        for key, value in params.items():
            page.query_params[key] = value
        page.run()
        return page

    return open_it
