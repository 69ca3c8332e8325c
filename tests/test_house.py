"""The layout of the code: a folder is a question, a file one answer, a name has one home.

Each test looks at every file and lists all faults at once.
"""

from __future__ import annotations

import ast
from pathlib import Path

from own_sources import FOLDERS, MODULES, ROOT, dotted, imports, name, tree_of

MOST_ENTRIES = 13
"""Of a folder, `__init__.py` left out: about twelve, so that a person reads all names at once."""
MOST_LINES = 700
"""Of a file. More than 500 are a reason to look, not a fault."""
COMMANDS = "cli"
"""One file a command, as many as there are commands."""

HOMES = {dotted(path): path for path in MODULES}


def names_defined(path: Path) -> set[str]:
    """What a file defines itself: not what it imports."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_a_folder_can_be_read_at_a_glance() -> None:
    entries = {
        name(folder): sum(p.name not in ("__init__.py", "__pycache__") for p in folder.iterdir())
        for folder in FOLDERS
        if name(folder) != COMMANDS
    }
    assert {folder: count for folder, count in entries.items() if count > MOST_ENTRIES} == {}


def test_a_folder_says_its_question_and_hands_nothing_on() -> None:
    trees = {name(folder): tree_of(folder / "__init__.py") for folder in FOLDERS}
    assert [folder for folder, tree in trees.items() if not ast.get_docstring(tree)] == []
    more = [folder for folder, tree in trees.items() if len(tree.body) > 1 and folder != COMMANDS]
    assert more == [], "only a docstring: names are imported from where they stand"


def test_a_name_is_imported_from_where_it_is_defined() -> None:
    defined = {module: names_defined(path) for module, path in HOMES.items()}
    handed_on = [
        f"{name(path)}:{line}: {imported} is not of {module}"
        for path in MODULES
        for line, module, imported in imports(path)
        if imported not in (None, "*")
        and module in HOMES
        and f"{module}.{imported}" not in HOMES
        and imported not in defined[module]
    ]
    assert handed_on == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name(path))
    assert {of: paths for of, paths in homes.items() if len(paths) > 1} == {}


def test_nothing_is_imported_only_to_be_handed_on() -> None:
    faults = []
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom | ast.Import):
                faults += [
                    f"{name(path)}:{node.lineno}: {alias.name} as itself"
                    for alias in node.names
                    if alias.asname is not None and alias.asname == alias.name
                ]
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                faults.append(f"{name(path)}:{node.lineno}: lists names to hand on")
    assert faults == []


def test_a_script_of_the_dashboard_imports_by_full_name() -> None:
    """Streamlit runs a view as a script, which belongs to no package."""
    relative = [
        f"{name(path)}:{node.lineno}"
        for path in (ROOT / "dashboard" / "views").glob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_files_stay_small_enough_to_read() -> None:
    lines = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {file: count for file, count in lines.items() if count > MOST_LINES} == {}, (
        "split it by what one would change"
    )
