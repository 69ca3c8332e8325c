"""Every documented example of the diagnostics runs, and the main entry points have one."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import echoscope.diagnostics

FOLDER = Path(echoscope.diagnostics.__file__).parent
NAMES = sorted(
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"echoscope.diagnostics.{name}"))
    assert not found.failed


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (
            "measure.information.estimate",
            "from echoscope.diagnostics.measure.information.estimate import CrossScores, estimate",
        ),
        ("judge.verdict", "from echoscope.diagnostics.judge.verdict import diagnose"),
        ("selection.filter", "from echoscope.diagnostics.selection.filter import select_groups"),
    ],
)
def test_the_entry_points_are_shown_in_use(module: str, line: str) -> None:
    imported = importlib.import_module(f"echoscope.diagnostics.{module}")
    examples = doctest.DocTestParser().get_examples(imported.__doc__ or "")
    sources = [one.source.strip() for one in examples]
    assert line in sources
    names = line.rpartition(" import ")[2].split(", ")
    rest = [one for one in sources if one != line]
    assert all(any(f"{name}(" in one or f"{name}." in one for one in rest) for name in names)
