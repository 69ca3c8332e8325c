"""The first page leads to every other, and what prose names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from echoscope.diagnostics.judge.alarms import ALL_RULES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.name for page in DOCS.glob("*.md") if page.name != "index.md")
PACKAGES = (
    *("cli", "core", "dashboard", "diagnostics", "envs"),
    *("notebook", "recorder", "store", "text", "watch"),
)
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
DOTTED = re.compile(r"`((?:cli|core|dashboard|store)(?:\.[A-Za-z]\w*)+)`")
"""The other packages have names of settings, too, which are written alike."""
FILE = re.compile(r"`([a-z_]+\.py)`")


@pytest.mark.parametrize("page", PAGES)
def test_the_first_page_links_every_page(page: str) -> None:
    links = re.findall(r"\]\(([\w-]+\.md)[)#]", (DOCS / "index.md").read_text(encoding="utf-8"))
    assert page in links


def test_the_readme_counts_the_alarms() -> None:
    counts = re.findall(r"(\d+) alarms \(", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert counts == [str(len(ALL_RULES))]


def test_a_file_named_in_prose_exists() -> None:
    pages = {path.name for path in SOURCES}
    wrong = [
        f"{path.relative_to(ROOT)}: {file}"
        for path in (*SOURCES, DOCS / "architecture.md")
        for file in FILE.findall(path.read_text(encoding="utf-8"))
        if file not in pages
    ]
    assert wrong == []


def test_a_module_or_name_in_prose_exists() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {dotted}"
        for path in SOURCES
        for dotted in DOTTED.findall(path.read_text(encoding="utf-8"))
        if not exists(dotted)
    ]
    assert wrong == []


def exists(dotted: str) -> bool:
    """Whether it is a package, a module, or a name that stands in one."""
    *folders, last = dotted.split(".")
    above = ROOT.joinpath(*folders)
    if (above / last).is_dir() or (above / f"{last}.py").is_file():
        return True
    home = above / "__init__.py" if above.is_dir() else above.with_suffix(".py")
    return home.is_file() and bool(re.search(rf"\b{last}\b", home.read_text(encoding="utf-8")))


def test_the_tests_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+)`", page)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []
