"""The law of imports: packages know only those below them, and the heavy libraries stay out."""

from __future__ import annotations

import ast

from own_sources import MODULES, PACKAGES, ROOT, imports, name, tree_of

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
    "store/importers/spooled/pickled.py",  # in a child process, for files that only torch reads
}
IS_A_HOOK_OF = {
    "recorder/trl.py": "transformers",
    "recorder/trl_settings.py": "transformers",
    "recorder/verl.py": "torch",
}
"""A hook of another trainer is a class of that trainer's, or takes its batches (verl's: torch)."""
HEAVY = {"torch", "transformers", "duckdb", "pyarrow", "numpy", "sklearn", "streamlit"}
LIGHT = {"echoscope.text.extras"}
VIEWS_OF_COMMANDS = {"training_view.py", "watch_view.py"}
"""Imported by commands only, so they may import what they draw."""


def test_every_package_has_its_place() -> None:
    assert set(PACKAGES) == set(MAY_IMPORT) == set(NEVER)


def test_imports_point_one_way() -> None:
    faults = []
    for path in MODULES:
        package = path.relative_to(ROOT).parts[0]
        allowed = {package, *MAY_IMPORT[package]}
        for line, module, imported in imports(path):
            parts = [*module.split("."), *([imported] if module == "echoscope" else [])]
            if parts[0] == "echoscope" and len(parts) > 1 and parts[1] in PACKAGES:
                if parts[1] not in allowed:
                    faults.append(f"{name(path)}:{line}: {package} may not import {parts[1]}")
            elif parts[0] in NEVER[package]:
                is_free = name(path) in MAY_USE_TORCH and parts[0] == "torch"
                if not is_free and IS_A_HOOK_OF.get(name(path)) != parts[0]:
                    faults.append(f"{name(path)}:{line}: imports {parts[0]}")
    assert faults == []


def test_the_command_line_imports_nothing_heavy_before_a_command_runs() -> None:
    faults = []
    for path in (ROOT / "cli").glob("*.py"):
        if path.name in VIEWS_OF_COMMANDS:
            continue
        at_start = {
            n.lineno for n in tree_of(path).body if isinstance(n, ast.Import | ast.ImportFrom)
        }
        for line, module, _ in imports(path):
            is_outside = module.startswith("echoscope.") and module not in LIGHT
            is_outside &= not module.startswith("echoscope.cli")
            if line in at_start and (is_outside or module.split(".")[0] in HEAVY):
                faults.append(f"{name(path)}:{line}: import {module} inside the command")
    assert faults == []
