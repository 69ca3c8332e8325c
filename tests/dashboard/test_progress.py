"""Pace, time to go, and silence."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from echoscope.dashboard.progress import Pace, pace, remaining_s, silence


def steps(wall: list[float], attempts: list[int] | None = None) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step": range(1, len(wall) + 1),
            "attempt": attempts or [1] * len(wall),
            "wall_time": wall,
            "step_s": [2.0] * len(wall),
            "tokens_per_s": [100.0] * len(wall),
        }
    )


def test_the_pace_is_the_median_from_step_to_step() -> None:
    # 3, 3 and a pause of 100 seconds
    assert pace(steps([0.0, 3.0, 6.0, 106.0])) == Pace(step_s=3.0, tokens_per_s=100.0)


def test_one_step_alone_counts_by_its_own_time() -> None:
    assert pace(steps([5.0])).step_s == 2.0


def test_an_earlier_attempt_does_not_count() -> None:
    assert pace(steps([0.0, 1.0, 500.0, 504.0], [1, 1, 2, 2])).step_s == 4.0


def test_no_step_no_pace() -> None:
    assert math.isnan(pace(steps([])).step_s)


def test_time_to_go() -> None:
    assert remaining_s(pace(steps([0.0, 3.0])), step=10, steps=20) == 30.0
    assert remaining_s(pace(steps([0.0, 3.0])), step=25, steps=20) == 0.0


@pytest.mark.parametrize(
    ("step_s", "since", "expected"),
    [
        (1.0, 29.0, None),  # less than half a minute is nothing
        (1.0, 31.0, 31.0),
        (60.0, 599.0, None),
        (60.0, 601.0, 601.0),  # ten of its steps
        (math.nan, 299.0, None),
        (math.nan, 301.0, 301.0),
    ],
)
def test_silence_is_measured_in_steps(step_s: float, since: float, expected: float | None) -> None:
    found = silence(Pace(step_s=step_s, tokens_per_s=1.0), now=1000.0 + since, heard_at=1000.0)
    assert found == (None if expected is None else pytest.approx(expected))
