"""What a verdict says moved over the same steps as success."""

from __future__ import annotations

import random

import pytest

from echoscope.diagnostics.judge.claims import Change, Level
from echoscope.diagnostics.judge.rules.meanwhile import Surroundings


def level(value: float, first: int, last: int) -> Level:
    return Level(
        metric="rollout/success_rate",
        value=value,
        low=value,
        high=value,
        steps=(first, last),
        num_points=last - first + 1,
    )


FALL = Change(before=level(0.6, 0, 19), after=level(0.1, 30, 49), low=-0.55, high=-0.45)


def moved(key: str, early: float, late: float, noise: float = 0.02) -> list[str]:
    beside, generator = Surroundings(), random.Random(0)
    for step in range(50):
        mean = early if step < 25 else late
        beside.observe(step, {key: mean * (1 + noise * generator.gauss(0, 1))})
    return beside.moved(FALL)


@pytest.mark.parametrize(
    ("key", "early", "late", "text"),
    [
        ("rollout/num_turns_mean", 6.0, 1.0, "turns: 6 -> 1"),
        ("rollout/length_limited_frac", 0.04, 0.5, "replies cut at the length limit: 4 % -> 50 %"),
        ("loss/value", 0.1, 40.0, "value loss: 0.1 -> 40"),
    ],
)
def test_what_moved_is_told_with_its_numbers(
    key: str, early: float, late: float, text: str
) -> None:
    assert moved(key, early, late, noise=0.0) == [text]


def test_less_than_counts_or_may_be_chance_is_not_told() -> None:
    assert moved("rollout/num_turns_mean", 6.0, 5.0) == []  # less than a factor of 1.5
    assert moved("rollout/length_limited_frac", 0.04, 0.1) == []  # less than 10 points
    assert moved("loss/value", 0.1, 0.2, noise=3.0) == []  # not beyond its own scatter


def test_one_spike_is_no_move() -> None:
    beside = Surroundings()
    for step in range(50):
        beside.observe(step, {"optim/grad_norm": 1e6 if step == 40 else 0.3 + 0.01 * (step % 3)})
    assert beside.moved(FALL) == []


def test_at_most_three_and_the_most_first() -> None:
    beside = Surroundings()
    for step in range(50):
        is_late, wobble = step >= 25, 0.001 * (step % 2)
        beside.observe(
            step,
            {
                "rollout/num_turns_mean": (2.0 if is_late else 4.0) + wobble,
                "rollout/response_length_mean": (10.0 if is_late else 1000.0) + wobble,
                "optim/grad_norm": (9.0 if is_late else 1.0) + wobble,
                "policy/ref_kl": (0.2 if is_late else 0.1) + wobble,
            },
        )
    assert [text.split(":")[0] for text in beside.moved(FALL)] == [
        "response length",
        "gradient norm",
        "turns",
    ]
