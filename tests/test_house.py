"""The layout of the code: a folder is a question, a file one answer, a name has one home."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "text",
    "envs",
    "store",
    "diagnostics",
    "recorder",
    "watch",
    "core",
    "dashboard",
    "notebook",
    "cli",
)
MOST_ENTRIES = 13
"""Of a folder, `__init__.py` left out: about twelve, so that a person reads all names at once."""
COMMANDS = "cli"
"""One file a command, as many as there are commands."""

FOLDERS = sorted(
    path
    for package in PACKAGES
    for path in [ROOT / package, *(ROOT / package).rglob("*")]
    if path.is_dir() and any(path.glob("*.py"))
)
MODULES = sorted(path for folder in FOLDERS for path in folder.glob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted(path: Path) -> str:
    parts = ["echoscope", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts).removesuffix(".__init__")


HOMES = {dotted(path): path for path in MODULES}


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_names(path: Path) -> list[tuple[int, str, str]]:
    """(line, module, name) of everything that a file takes from another module of ours."""
    package = dotted(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    out = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            out += [(node.lineno, module, alias.name) for alias in node.names]
    return [found for found in out if found[1].startswith("echoscope")]


@cache
def names_defined(path: Path) -> set[str]:
    """What a file defines itself: not what it imports."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.TypeAlias if hasattr(ast, "TypeAlias") else ()):
            found.add(node.name.id)
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_a_folder_can_be_read_at_a_glance(folder: Path) -> None:
    entries = [p for p in folder.iterdir() if p.name not in ("__init__.py", "__pycache__")]
    if name(folder) != COMMANDS:
        assert len(entries) <= MOST_ENTRIES, sorted(p.name for p in entries)


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_a_folder_says_its_question_and_hands_nothing_on(folder: Path) -> None:
    tree = tree_of(folder / "__init__.py")
    assert ast.get_docstring(tree)
    if name(folder) != COMMANDS:
        assert len(tree.body) == 1, "only a docstring: names are imported from where they stand"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_name_is_imported_from_where_it_is_defined(path: Path) -> None:
    for line, module, wanted in imported_names(path):
        home = HOMES.get(module)
        if home is None or f"{module}.{wanted}" in HOMES or wanted == "*":
            continue
        assert wanted in names_defined(home), f"{name(path)}:{line}: {wanted} is not of {module}"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_nothing_is_imported_only_to_be_handed_on(path: Path) -> None:
    tree = tree_of(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            for alias in node.names:
                assert alias.asname is None or alias.asname != alias.name, alias.name
        targets = node.targets if isinstance(node, ast.Assign) else []
        handed_on = any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets)
        assert not handed_on, f"{name(path)} lists names to hand on"


def test_every_folder_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["setuptools"]["packages"]
    assert sorted(packages) == sorted(["echoscope", *map(dotted, FOLDERS)])


@pytest.mark.parametrize("path", sorted((ROOT / "dashboard" / "views").glob("*.py")), ids=name)
def test_a_script_of_the_dashboard_imports_by_full_name(path: Path) -> None:
    """Streamlit runs a view as a script, which belongs to no package."""
    tree = tree_of(path)
    assert [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level] == []
