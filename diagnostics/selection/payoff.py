"""Whether selecting groups by reward spread pays, by how much spreads differ between groups.

RAGEN-2 (arXiv 2604.06268), table 8: where the standard deviation of the groups' reward std over its
mean was 1.29 and 1.16, filtering gained 4.6 and 3.2 points of success; at 0.33 it lost 5.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from echoscope.text.sentences import capitalised

MIN_GROUPS = 8
"""Fewer groups say nothing about how spreads differ."""
PAYS_ABOVE = 1.0
COSTS_BELOW = 0.5
"""Nothing was measured between 0.33 and 1.16: the upper border is the published one, this ours."""


class Worth(StrEnum):
    PAYS = "pays"
    UNCLEAR = "unclear"
    COSTS = "costs"
    NOISE = "noise"
    """Randomness decides the reward: a filter keeps the groups with the most noise."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payoff:
    """The ratio, and what it suggests in words."""

    worth: Worth
    ratio: float
    """Std over mean of the groups' reward std; NaN if not known."""
    num_groups: int
    text: str


def payoff_of(reward_std_P: NDArray[np.float64], *, luck: str = "") -> Payoff:
    """Judge the reward stds of groups (P,), pooled over steps; NaN entries do not count.

    Args:
        luck: What shows that randomness decides the reward, as a sentence without its end; empty
            where nothing does. Then the spread is noise, whatever the ratio is.

    >>> payoff_of(np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5])).worth.value
    'pays'
    """
    std = reward_std_P[np.isfinite(reward_std_P)]
    mean = float(std.mean()) if std.size else math.nan
    ratio = float(std.std(ddof=1)) / mean if std.size > 1 and mean > 0 else math.nan
    worth, text = _judged(std.size, ratio, luck)
    known_ratio = math.nan if worth is Worth.UNKNOWN else ratio
    return Payoff(worth=worth, ratio=known_ratio, num_groups=std.size, text=text)


def _judged(num_groups: int, ratio: float, luck: str) -> tuple[Worth, str]:
    unknown = "Not known whether filtering by reward spread pays:"
    if num_groups < MIN_GROUPS:
        return Worth.UNKNOWN, f"{unknown} {num_groups} groups with a known reward std are too few."
    if math.isnan(ratio):
        return Worth.UNKNOWN, f"{unknown} none of {num_groups} groups has any reward spread."
    if luck:
        return Worth.NOISE, (
            "Do not filter by reward spread here: it would keep the groups with the most noise. "
            f"{capitalised(luck)}."
        )
    fact = f"the std of the reward std over {num_groups} groups is {ratio:.2f} times its mean"
    if ratio > PAYS_ABOVE:
        return Worth.PAYS, (
            f"Filtering by reward spread tends to pay here: {fact} (RAGEN-2 gained success at 1.16 "
            "and 1.29)."
        )
    if ratio > COSTS_BELOW:
        return Worth.UNCLEAR, (
            f"It is unclear whether filtering by reward spread pays here: {fact} (RAGEN-2 lost "
            "success at 0.33 and gained at 1.16)."
        )
    return Worth.COSTS, (
        f"Filtering by reward spread tends not to pay here: {fact}. The groups are much alike, so "
        "dropping a group drops signal (RAGEN-2 lost 5 points of success at 0.33)."
    )
