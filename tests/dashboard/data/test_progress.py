"""Pace, time to go, and progress in words."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from echoscope.dashboard.data.progress import pace, progress_words
from echoscope.store.status import RunStatus, Status


def steps(wall: list[float], attempts: list[int] | None = None) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step": range(1, len(wall) + 1),
            "attempt": attempts or [1] * len(wall),
            "wall_time": wall,
            "step_s": [2.0] * len(wall),
        }
    )


def test_the_pace_is_the_median_from_step_to_step() -> None:
    # 3, 3 and a pause of 100 seconds
    assert pace(steps([0.0, 3.0, 6.0, 106.0])) == 3.0


def test_one_step_alone_counts_by_its_own_time() -> None:
    assert pace(steps([5.0])) == 2.0


def test_steps_that_were_written_at_once_have_no_pace_unless_they_say_how_long_they_took() -> None:
    written = steps([0.0, 0.0001, 0.0002, 0.0003])
    assert pace(written) == pytest.approx(0.0001)
    assert math.isnan(pace(written.assign(step_s=math.nan)))


def test_an_earlier_attempt_does_not_count() -> None:
    assert pace(steps([0.0, 1.0, 500.0, 504.0], [1, 1, 2, 2])) == 4.0


def test_no_step_no_pace() -> None:
    assert math.isnan(pace(steps([])))


def test_a_run_that_trains_says_what_is_left() -> None:
    live = RunStatus(status=Status.LIVE)
    progress = progress_words(live, 2.0, last_step=30, steps=80)
    assert progress == ("30 / 80", "2 s a step, 2 min left")


def test_a_paused_run_has_no_time_left() -> None:
    paused = RunStatus(status=Status.PAUSED, by="root", since=0.0)
    assert progress_words(paused, 2.0, last_step=30, steps=80) == ("30 / 80", "2 s a step")


def test_a_run_without_a_plan_says_its_step() -> None:
    live = RunStatus(status=Status.LIVE)
    assert progress_words(live, math.nan, last_step=3, steps=0) == ("3", "")
