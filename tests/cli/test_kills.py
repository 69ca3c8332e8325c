"""Programs that write runs are killed at random calls: `make test-harness` does it 200 times."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness_seed import draw, told
from killing import kills, small_config

NUM_KILLED = {"import": 6, "watch": 6, "recorder": 4, "trainer": 2}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NUM_KILLED)
def test_a_killed_program_goes_on_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    config = small_config() if name == "trainer" else ""
    _, wrong = kills(tmp_path, {name: NUM_KILLED[name]}, draw(), config)
    assert wrong == [], told()
