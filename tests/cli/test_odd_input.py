"""Wrong configurations, odd calls and damaged metrics files, made at random: see `odd_input`.

`make test-harness` makes more of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness_seed import draw, told

sys.path.insert(0, str(Path(__file__).parent))
import odd_input

NUM_CONFIGURATIONS, NUM_CALLS, NUM_FILES = 90, 110, 60


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("configurations", (NUM_CONFIGURATIONS, 0, 0)),
        ("calls", (0, NUM_CALLS, 0)),
        ("metrics files", (0, 0, NUM_FILES)),
    ],
)
def test_odd_input_is_refused_in_one_line_or_answered(
    kind: str, numbers: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    counts = odd_input.tables(tmp_path, numbers, draw())[kind]
    assert odd_input.failures(counts) == [], told()
    assert counts.total() == sum(numbers)
