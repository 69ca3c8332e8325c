"""Levels of groups and their differences: intervals that hold the truth as often as they say."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable

import numpy as np
import pytest

from echoscope.dashboard.data.comparing import levels
from echoscope.dashboard.data.comparing.levels import (
    NUM_STRETCHES,
    Gap,
    GroupLevel,
    RunLevel,
    Trials,
    gap_between,
    gap_words,
    level_of,
    level_words,
    mean_bands,
    share_bands,
    summary,
)
from echoscope.diagnostics.measure.outcomes import mean_estimate, rate_estimate
from echoscope.store.query.metric_keys import ENTROPY, SUCCESS_RATE

STEP_TIME = "time/step_s"


def run(
    mean: float, seed: int = 0, *, episodes: int = 0, tasks: int = 0, played: str | None = "lake"
) -> RunLevel:
    return RunLevel(
        run=f"s{seed}",
        seed=str(seed),
        stretches=(mean, mean),
        mean=mean,
        num_points=10,
        num_episodes=episodes,
        num_tasks=tasks,
        played=played,
    )


def group(key: str, *means: float, first_seed: int = 0, episodes: int = 160) -> GroupLevel:
    return level_of(
        key, [run(mean, first_seed + n, episodes=episodes) for n, mean in enumerate(means)]
    )


def test_bands_are_the_estimates_that_eval_has_step_by_step() -> None:
    random = np.random.default_rng(0)
    shares_RS = random.uniform(0.1, 0.9, (5, 20))
    mean, low, high = share_bands(shares_RS, Trials(num=500.0, is_known=True))
    for step, rates in enumerate(shares_RS.T):
        expected = rate_estimate(rates.tolist(), 500)
        assert (mean[step], low[step], high[step]) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )
    mean, low, high = mean_bands(shares_RS)
    for step, values in enumerate(shares_RS.T):
        expected = mean_estimate(values.tolist())
        assert (mean[step], low[step], high[step]) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )


def test_a_share_never_leaves_0_to_1_and_a_run_alone_has_no_band() -> None:
    shares_RS = np.array([[0.0, 1.0, 0.9, 0.5], [0.0, 1.0, 1.0, np.nan], [0.1, 1.0, 1.0, np.nan]])
    _, low, high = share_bands(shares_RS, Trials(num=48.0, is_known=True))
    assert (low[:3] >= 0).all()
    assert (high[:3] <= 1).all()
    assert np.isnan(low[3])
    assert np.isnan(high[3])


def test_runs_without_any_spread_count_with_all_of_their_episodes() -> None:
    assert level_words(group(SUCCESS_RATE, 0.0, 0.0, 0.0, episodes=640)) == "0.0 % (0.0 to 1.0)"


def test_one_sixteenth_against_three_sixteenths_cannot_be_told_apart() -> None:
    """The complaint of users: a step of 1/16 against one of 3/16 was told as +200 %."""
    few, more = (level_of(SUCCESS_RATE, [run(share, episodes=16)]) for share in (1 / 16, 3 / 16))
    gap = gap_between(more, few)
    assert not gap.is_apart
    assert gap_words(gap).startswith("cannot be told apart: +12.5 points (")
    assert gap.ratio is None


def test_a_difference_of_shares_is_in_points_and_one_of_amounts_also_a_ratio() -> None:
    low, high = (
        group(SUCCESS_RATE, 0.1, 0.12, 0.11),
        group(SUCCESS_RATE, 0.5, 0.55, 0.6, first_seed=5),
    )
    assert gap_words(gap_between(high, low)).startswith("higher: +44.0 points (+")
    quick, slow = group(STEP_TIME, 9.0, 10.0, 11.0), group(STEP_TIME, 19.0, 20.0, 21.0)
    gap_text = gap_words(gap_between(slow, quick))
    assert gap_text.startswith("higher: +10 (+")
    assert " s; 2.01 times (" in gap_text
    nats = gap_between(group(ENTROPY, 2.0, 2.1, 2.2), group(ENTROPY, 1.0, 1.1, 1.2))
    assert "times" not in gap_words(nats)


def test_equal_seeds_are_compared_seed_by_seed() -> None:
    """What a seed does to both groups cancels."""
    luck = [0.1, 0.3, 0.5, 0.7]
    base = group(SUCCESS_RATE, *luck)
    better = group(SUCCESS_RATE, *(value + 0.1 + 0.01 * n for n, value in enumerate(luck)))
    paired = gap_between(better, base)
    assert (paired.is_paired, paired.is_apart) == (True, True)
    others = group(SUCCESS_RATE, *(value + 0.1 for value in luck), first_seed=10)
    unpaired = gap_between(others, base)
    assert (unpaired.is_paired, unpaired.is_apart) == (False, False)


def test_seeds_pair_only_where_both_played_the_same_tasks() -> None:
    """Five seeds of 64 tasks, one world with lakes and one with boxes."""
    lake, boxes = (
        level_of(
            "eval/all/success_rate",
            [run(share + 0.01 * n, n, tasks=64, played=world) for n in range(5)],
        )
        for share, world in ((0.5, "lake"), (0.9, "sokoban"))
    )
    gap = gap_between(lake, boxes)
    assert not gap.is_paired
    noise_of_tasks = 1.96 * math.sqrt((0.52 * 0.48 + 0.92 * 0.08) / (5 * 64))
    assert (gap.difference.high - gap.difference.low) / 2 > noise_of_tasks
    unknown = level_of(SUCCESS_RATE, [run(0.1 * n, n, played=None) for n in range(5)])
    assert not gap_between(unknown, unknown).is_paired


def test_the_interval_of_one_evaluated_run_is_over_its_tasks() -> None:
    level = level_of("eval/all/success_rate", [run(0.25, tasks=32)])
    assert level_words(level) == "25.0 % (13.3 to 42.1)"


def test_a_metric_that_a_group_lacks_is_said_to_be_missing() -> None:
    nothing = RunLevel(run="a", seed="0", stretches=(), mean=math.nan, num_points=0)
    level = level_of(ENTROPY, [nothing])
    assert level_words(level) == "not measured"
    assert gap_words(gap_between(level, group(ENTROPY, 1.0, 2.0))) == "not measured in both"


def test_the_summary_names_the_highest_and_counts_the_others() -> None:
    of = {
        "a": group(SUCCESS_RATE, 0.1, 0.12, 0.11),
        "b": group(SUCCESS_RATE, 0.11, 0.13, 0.1, first_seed=3),
        "c": group(SUCCESS_RATE, 0.8, 0.82, 0.81, first_seed=6),
    }
    gaps: dict[str, Gap] = {name: gap_between(of[name], of["a"]) for name in ("b", "c")}
    assert summary(SUCCESS_RATE, of, gaps, "a") == (
        f"Success in training is highest for c: {level_words(of['c'])}. "
        "Against a: 1 group is higher, 1 group cannot be told apart from it."
    )


def coverage(draw: Callable[[np.random.Generator], GroupLevel], truth: float, times: int) -> float:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(times):
        estimate = draw(random).estimate
        hits += estimate.low <= truth <= estimate.high
    return hits / times


def test_the_interval_of_one_noisy_run_holds_the_truth_as_often_as_it_says() -> None:
    """Neighbouring steps are alike (AR(1), 0.5): with 40 of them four stretches are enough."""

    def one_run(random: np.random.Generator) -> GroupLevel:
        noise = random.normal(size=60)
        for step in range(1, 60):
            noise[step] += 0.5 * noise[step - 1]
        parts = np.array_split(noise[20:], NUM_STRETCHES)
        stretches = tuple(float(part.mean()) for part in parts)
        mean = float(noise[20:].mean())
        of = RunLevel(run="a", seed="0", stretches=stretches, mean=mean, num_points=40)
        return level_of(ENTROPY, [of])

    assert coverage(one_run, 0.0, 600) > 0.92


def test_the_interval_over_seeds_holds_the_truth_as_often_as_it_says() -> None:
    """Five seeds, each with a rate of its own around 20 %."""

    def five_seeds(random: np.random.Generator) -> GroupLevel:
        rates = random.beta(4, 16, size=5)
        return group(
            SUCCESS_RATE, *(random.binomial(320, rate) / 320 for rate in rates), episodes=320
        )

    assert coverage(five_seeds, 0.2, 600) > 0.92


def test_examples_in_the_docstrings_hold() -> None:
    results = doctest.testmod(levels)
    assert results.attempted > 0
    assert results.failed == 0
