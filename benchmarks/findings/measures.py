"""The numbers that claims compare: each reads one number from one result."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from .training import SUCCESS, Result

LAST_EVALUATIONS = 2
"""Evaluations at the end that the final success averages."""
WINDOW = 3
"""Steps or measurements in a row: one value may be chance."""
START_STEPS = 5
HALF = 0.5
JUMP = 3.0
CHANGED = 1.5
ENTROPY_UP, ENTROPY_DOWN = "entropy, up", "entropy, down"

INFORMATION = "info/first_turn/mutual_information"
ENTROPY = "policy/entropy"
SPREAD = "reward/group_std_mean"
GRADIENT = "optim/grad_norm"
RETURN = "reward/return_mean"
LENGTH = "rollout/reasoning_length_mean"
FORMAT = "rollout/format_valid_frac"
DUPLICATES = "text/near_duplicate_frac"

Floats = NDArray[np.float64]
Measure = Callable[[Result], float]


def final_success(result: Result) -> float:
    """Mean of the last two evaluations, in percent."""
    return 100 * float(np.mean(result.curve(SUCCESS)[1][-LAST_EVALUATIONS:]))


def peak_success(result: Result) -> float:
    """Highest mean of two evaluations in a row, in percent."""
    values = result.curve(SUCCESS)[1]
    return 100 * float(((values[1:] + values[:-1]) / 2).max())


def mean_success(result: Result) -> float:
    """Mean of all evaluations after the first step, in percent: how much and how early."""
    return 100 * float(np.mean(result.curve(SUCCESS)[1][1:]))


def fall(result: Result) -> float:
    """Peak less final success, in points."""
    return peak_success(result) - final_success(result)


def halved_between(result: Result) -> tuple[int, int] | None:
    """The evaluations before and at which success first was below half of its running peak.

    None where it never was. Success may come back: RAGEN-2, too, calls a run collapsed once its
    validation success was too low at one evaluation.
    """
    steps, values = result.curve(SUCCESS)
    low = np.flatnonzero(values < HALF * np.maximum.accumulate(values))
    return (int(steps[low[0] - 1]), int(steps[low[0]])) if len(low) else None


def collapsed(result: Result) -> float:
    """100 for a run whose success halved, else 0: a mean is a share in percent."""
    return 100.0 * (halved_between(result) is not None)


def steps_kept(result: Result) -> float:
    """Share of the run before success had halved, in percent; 100 where it did not."""
    halved = halved_between(result)
    return 100.0 if halved is None else 100.0 * halved[1] / result.steps


def length_ratio(result: Result) -> float:
    """Tokens of reasoning over the last five steps, as a share of the first five, in percent."""
    values = result.curve(LENGTH)[1]
    return 100 * float(np.mean(values[-START_STEPS:]) / np.mean(values[:START_STEPS]))


def entropy_ratio(result: Result) -> float:
    """Entropy per token over the last five steps, as a share of the first five, in percent."""
    values = result.curve(ENTROPY)[1]
    return 100 * float(np.mean(values[-START_STEPS:]) / np.mean(values[:START_STEPS]))


def information_late(result: Result) -> float:
    """I(X;Z) of the first turn in nats, mean of the last three measurements."""
    return float(np.mean(result.curve(INFORMATION)[1][-WINDOW:]))


MEASURES: Mapping[str, tuple[Measure, str]] = {
    "final success": (final_success, "points"),
    "peak success": (peak_success, "points"),
    "mean success": (mean_success, "points"),
    "fall from the peak": (fall, "points"),
    "runs whose success halved": (collapsed, "%"),
    "share of the run before success halved": (steps_kept, "points"),
    "reasoning length at the end": (length_ratio, "% of the start"),
    "entropy at the end": (entropy_ratio, "% of the start"),
    "I(X;Z) at the end": (information_late, "nats"),
}
"""Function and unit by the words of the page."""


def first_move(result: Result, metric: str) -> int | None:
    """First step from which a metric shows trouble; None if never.

    | metric | trouble | steps in a row |
    | --- | --- | --- |
    | reward spread | below half of the mean of the first five steps | 3 |
    | return in training | below half of its highest mean of three steps | 3 |
    | gradient norm | above three times the median of the first ten steps | 1: a spike |
    | entropy, up or down | 1.5 times the mean of the first five steps, or divided by it | 3 |
    | I(X;Z) | below half of its highest value so far | 1: every fifth step measures it |
    """
    key = {"entropy, up": ENTROPY, "entropy, down": ENTROPY}.get(metric, metric)
    steps, values = result.curve(key)
    window = 1 if metric in (GRADIENT, INFORMATION) else WINDOW
    if len(values) < window + 1:
        return None
    start = float(np.mean(values[:START_STEPS]))
    if metric == SPREAD:
        is_past = values < HALF * start
    elif metric == RETURN:
        is_past = values < HALF * _running_best(values, WINDOW)
    elif metric == GRADIENT:
        is_past = values > JUMP * float(np.median(values[: 2 * START_STEPS]))
    elif metric == ENTROPY_UP:
        is_past = values > CHANGED * start
    elif metric == ENTROPY_DOWN:
        is_past = values < start / CHANGED
    elif metric == INFORMATION:
        is_past = values < HALF * _running_best(values, window)
    else:
        raise ValueError(f"no rule says when {metric} shows trouble")
    runs = np.convolve(is_past, np.ones(window), mode="valid")
    ends = np.flatnonzero(runs == window)
    return int(steps[ends[0]]) if len(ends) else None


def _running_best(values: Floats, window: int) -> Floats:
    """Highest mean of so many values in a row, up to and including each value."""
    means = np.convolve(values, np.full(window, 1 / window), mode="valid")
    padded = np.concatenate([np.full(window - 1, means[0]), means])
    return np.maximum.accumulate(padded)


def success_lost(result: Result) -> float | None:
    """Step half way between the two evaluations between which success halved."""
    halved = halved_between(result)
    return None if halved is None else sum(halved) / 2
