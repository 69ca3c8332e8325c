"""Damaged files of every kind: `make test-harness` is the long form."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from harness_seed import draw, told


@pytest.fixture(scope="module")
def fuzzing() -> ModuleType:
    path = Path(__file__).with_name("fuzzing.py")
    spec = importlib.util.spec_from_file_location("fuzzing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzzing"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_damage_is_silently_accepted(fuzzing: ModuleType, tmp_path: Path) -> None:
    _, failures = fuzzing.fuzz(tmp_path, 110, draw())
    assert failures == [], told()
