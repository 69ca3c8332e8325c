"""Every documented example of the diagnostics runs, and the main entry points have one."""

from __future__ import annotations

import doctest
import importlib

import pytest
from documented import modules_with_examples, run_examples


@pytest.mark.parametrize("module", modules_with_examples("diagnostics"))
def test_examples_run(module: str) -> None:
    run_examples(module)


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
    sources = [code.source.strip() for code in examples]
    assert line in sources
    names = line.rpartition(" import ")[2].split(", ")
    rest = [code for code in sources if code != line]
    assert all(any(f"{name}(" in code or f"{name}." in code for code in rest) for name in names)
