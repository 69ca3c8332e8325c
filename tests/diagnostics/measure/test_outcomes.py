"""Rates over tasks, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from echoscope.diagnostics.measure.outcomes import (
    CountedEpisode,
    differences,
    mean_estimate,
    paired_estimate,
    pass_all_k,
    pass_at_k,
    rate_estimate,
    tables_of,
)


def outcome(
    task: str, is_success: bool | None, *, tag: str = "lake", **more: object
) -> CountedEpisode:
    values = {
        "tag": tag,
        "env_id": tag,
        "task": task,
        "is_success": is_success,
        "episode_return": float(bool(is_success)),
        "num_turns": 2,
        "valid_frac": 1.0,
        "effective_frac": 0.5,
        "num_tokens": 10,
        "is_failure": False,
    } | more
    return CountedEpisode(**values)  # type: ignore[arg-type]


def test_a_table_by_hand() -> None:
    """Task a: 1 of 2; task b: 2 of 2; task c: its world failed once, and 0 of 1."""
    (table,) = tables_of(
        [
            outcome("a", True),
            outcome("a", False, num_turns=4),
            outcome("b", True),
            outcome("b", True),
            outcome("c", None, is_failure=True, num_turns=99),
            outcome("c", False),
        ]
    )
    assert (table.num_tasks, table.num_episodes, table.num_unknown) == (3, 6, 1)
    assert table.success.value == pytest.approx((0.5 + 1 + 0) / 3)
    assert {k: each.value for k, each in table.pass_at.items()} == pytest.approx({1: 0.5, 2: 1.0})
    assert {k: each.value for k, each in table.pass_all.items()} == pytest.approx({1: 0.5, 2: 0.5})
    assert table.num_turns.value == pytest.approx((3 + 2 + 2) / 3)


def test_several_worlds_have_a_table_over_all() -> None:
    tables = tables_of([outcome("a", True), outcome("a", False, tag="bandit")])
    assert [table.tag for table in tables] == ["lake", "bandit", "all"]
    assert tables[-1].num_tasks == 2
    assert tables[-1].success.value == 0.5


def test_pass_at_k_is_the_closed_form() -> None:
    for n in range(1, 7):
        for c in range(n + 1):
            for k in range(1, n + 1):
                miss = math.comb(n - c, k) / math.comb(n, k)
                assert pass_at_k(n, c, k) == pytest.approx(1 - miss)
                assert pass_all_k(n, c, k) == pytest.approx(math.comb(c, k) / math.comb(n, k))


def test_one_attempt_a_task_is_wilsons_interval() -> None:
    estimate = rate_estimate([1.0] * 43 + [0.0] * 57, 100)
    assert (round(estimate.low, 2), round(estimate.high, 2)) == (0.34, 0.53)


def test_siblings_that_agree_count_as_one() -> None:
    agreeing = rate_estimate([1.0] * 20 + [0.0] * 20, 160)
    single = rate_estimate([1.0] * 20 + [0.0] * 20, 40)
    varied = rate_estimate([0.5] * 40, 160)
    assert agreeing.high - agreeing.low == pytest.approx(single.high - single.low)
    assert varied.high - varied.low < 0.6 * (single.high - single.low)


def test_nothing_played_is_unknown() -> None:
    assert math.isnan(rate_estimate([], 0).value)
    assert math.isnan(mean_estimate([math.nan]).value)
    assert tables_of([]) == []


def test_a_difference_is_over_the_tasks_that_both_played() -> None:
    first = [outcome("a", True), outcome("b", True), outcome("only first", False)]
    second = [outcome("a", False), outcome("b", True), outcome("only second", True)]
    (difference,) = differences(first, second)
    assert difference.num_tasks == 2
    assert (difference.first, difference.second) == (1.0, 0.5)
    assert difference.difference.value == 0.5


def test_a_difference_the_other_way_round_is_the_same_one_mirrored() -> None:
    there = paired_estimate([0.5, 1.0, 0.0, 0.25, -0.5])
    back = paired_estimate([-0.5, -1.0, -0.0, -0.25, 0.5])
    assert (back.value, back.low, back.high) == (-there.value, -there.high, -there.low)


def test_other_tasks_are_not_compared() -> None:
    assert differences([outcome("a", True)], [outcome("b", True)]) == []


def covered(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits)


@pytest.mark.parametrize(
    ("num_tasks", "siblings", "a", "b"),
    [(200, 4, 1, 1), (50, 4, 0.5, 0.5), (100, 1, 2, 1), (100, 4, 0.3, 2), (30, 8, 2, 2)],
)
def test_intervals_of_clustered_rates_cover(
    num_tasks: int, siblings: int, a: float, b: float
) -> None:
    random, truth = np.random.default_rng(7), a / (a + b)
    hits = []
    for _ in range(1000):
        chances = random.beta(a, b, size=num_tasks)
        rates = random.binomial(siblings, chances) / siblings
        estimate = rate_estimate(rates.tolist(), num_tasks * siblings)
        hits.append(estimate.low <= truth <= estimate.high)
    assert 0.93 <= covered(hits) <= 0.97


@pytest.mark.long
@pytest.mark.parametrize(("num_tasks", "siblings"), [(200, 4), (100, 1), (30, 4)])
def test_intervals_of_paired_differences_cover(num_tasks: int, siblings: int) -> None:
    """Two players of the same tasks: what is hard for one is mostly hard for the other."""
    random = np.random.default_rng(3)

    def chance(ease: np.ndarray, skill: float) -> np.ndarray:
        return 1 / (1 + np.exp(-2 * (ease + skill)))

    ease = random.normal(size=1_000_000)
    truth = float(np.mean(chance(ease, 0.3) - chance(ease, -0.2)))
    hits = []
    for _ in range(600):
        shared = random.normal(size=num_tasks)
        rates = [
            random.binomial(
                siblings, chance(0.7 * shared + 0.714 * random.normal(size=num_tasks), skill)
            )
            / siblings
            for skill in (0.3, -0.2)
        ]
        estimate = paired_estimate((rates[0] - rates[1]).tolist())
        hits.append(estimate.low <= truth <= estimate.high)
    assert 0.93 <= covered(hits) <= 0.97
