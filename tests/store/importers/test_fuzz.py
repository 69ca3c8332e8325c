"""Damaged copies of every fixture: imported, partly imported, or refused with a sentence."""

from __future__ import annotations

import pytest
from harness_seed import draw, told

from .fuzzing import FOLDERS, outcomes


@pytest.mark.parametrize("name", FOLDERS)
def test_a_damaged_copy_never_ends_in_an_error(name: str) -> None:
    assert len(list(outcomes(name, 2, seed=2))) == 2


@pytest.mark.long
@pytest.mark.parametrize("name", FOLDERS)
def test_other_damaged_copies_each_time(name: str) -> None:
    assert len(list(outcomes(name, 10, draw()))) == 10, told()
