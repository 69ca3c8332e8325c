"""Every documented example of the command line runs."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import echoscope.cli

NAMES = sorted(
    path.stem
    for path in Path(echoscope.cli.__file__).parent.glob("*.py")
    if ">>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"echoscope.cli.{name}"))
    assert found.attempted
    assert not found.failed
