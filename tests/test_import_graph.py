"""The law of imports: packages know only those below them, and the heavy libraries stay out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
MAY_IMPORT = {
    "text": set(),
    "envs": {"text"},
    "store": {"text"},
    "diagnostics": {"text", "store"},
    "recorder": {"text", "store", "diagnostics"},
    "watch": {"text", "store", "diagnostics", "recorder"},
    "core": {"text", "envs", "store", "diagnostics"},
    "dashboard": {"text", "store", "diagnostics"},
    "notebook": {"text", "store", "diagnostics", "dashboard"},
    "cli": {"text", "envs", "store", "diagnostics", "watch", "core", "dashboard"},
}
NEVER = {
    "text": {"torch", "transformers", "streamlit", "numpy", "pydantic"},
    "envs": {"torch", "transformers", "streamlit"},
    "store": {"torch", "transformers", "streamlit"},
    "diagnostics": {"torch", "transformers", "streamlit"},
    "recorder": {"torch", "transformers", "streamlit"},
    "watch": {"torch", "transformers", "streamlit"},
    "core": {"streamlit"},
    "dashboard": {"torch", "transformers"},
    "notebook": {"torch", "transformers", "streamlit"},
    "cli": set(),
}
MAY_USE_TORCH = {
    "diagnostics/measure/information/scoring.py",
    "diagnostics/measure/gradients.py",
    "diagnostics/measure/gradient_norms.py",
}
IS_A_HOOK_OF = {"recorder/trl.py": "transformers"}
"""A hook of another trainer is a class of that trainer's."""
MAX_LINES = 700


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module a file imports, wherever it does."""
    here = ("echoscope", *path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = list(here[: -node.level]) if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sources(), ids=name)
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for line, module in imported_modules(path):
        parts = module.split(".")
        if parts[0] == "echoscope" and len(parts) > 1 and parts[1] in PACKAGES:
            is_allowed = parts[1] == package or parts[1] in MAY_IMPORT[package]
            assert is_allowed, f"{name(path)}:{line}: {package} may not import {parts[1]}"
        is_free = name(path) in MAY_USE_TORCH and parts[0] == "torch"
        is_free |= IS_A_HOOK_OF.get(name(path)) == parts[0]
        assert is_free or parts[0] not in NEVER[package], f"{name(path)}:{line}: imports {parts[0]}"


@pytest.mark.parametrize("path", sorted((ROOT / "cli").glob("*.py")), ids=name)
def test_the_command_line_imports_nothing_heavy_before_a_command_runs(path: Path) -> None:
    if path.name in ("training_view.py", "watch_view.py"):
        pytest.skip("imported by commands only")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in top:
        if isinstance(node, ast.ImportFrom):
            is_ours = (node.module or "").startswith("echoscope")
            outside = node.level >= 2 or (is_ours and not node.level)
            assert not outside, f"{name(path)}:{node.lineno}: import inside the command"
            modules = [node.module or ""] if not node.level else []
        else:
            modules = [alias.name for alias in node.names]
        heavy = {"torch", "transformers", "duckdb", "pyarrow", "numpy", "sklearn", "streamlit"}
        assert not heavy & {module.split(".")[0] for module in modules}, name(path)


@pytest.mark.parametrize("path", sources(), ids=name)
def test_files_stay_small_enough_to_read(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{name(path)} has {lines} lines: split it by what one would change"
