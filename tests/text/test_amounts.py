"""Durations, sizes and counts as people say them."""

from __future__ import annotations

import doctest
import math

import pytest

from echoscope.text import amounts
from echoscope.text.amounts import clock, counted, duration, fixed


def test_the_examples() -> None:
    assert doctest.testmod(amounts).failed == 0


@pytest.mark.parametrize(
    ("seconds", "duration_text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.5, "1 min"),
        (89, "1 min"),
        (90, "2 min"),
        (3569, "59 min"),
        (3570, "1.0 h"),
        (5400, "1.5 h"),
        (172_800, "2.0 days"),
    ],
)
def test_durations(seconds: float, duration_text: str) -> None:
    assert duration(seconds) == duration_text
    assert duration(math.nan) == "unknown"


def test_a_time_that_runs_down_never_grows() -> None:
    """It went from "about 2 min" to "89 s": the number grew and the unit changed."""
    units = ("days", "h", "min", "s")
    durations = [duration(seconds).split() for seconds in range(200_000, -1, -7)]
    ranks = [(units.index(unit), -float(number)) for number, unit in durations]
    assert ranks == sorted(ranks)
    assert all(float(number) < 60 for number, unit in durations if unit in ("min", "s"))


def test_fixed_digits_and_clocks() -> None:
    assert (fixed(1.23456), fixed(math.nan), fixed(0.5, 1)) == ("1.235", "-", "0.5")
    assert (clock(0), clock(75.2), clock(3600)) == ("0:00", "1:15", "60:00")


def test_counts_have_a_noun_that_fits() -> None:
    assert (counted(0, "row"), counted(1, "row"), counted(2, "row")) == (
        "0 rows",
        "1 row",
        "2 rows",
    )
