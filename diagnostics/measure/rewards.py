"""What the rewards of a step can teach: spread within groups, and where the signal sits.

A group without reward spread teaches nothing under a group baseline, and there are three opposite
reasons for it: all succeed (solved), all fail (hopeless), or the returns are equal for another
reason (constant). They are counted apart, because a solved task is not a collapse.

Legend: **P** groups, **G** siblings.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from echoscope.store.records import BoolArray, FloatArray64, RolloutBatch

from ..selection.filter import RELATIVE_NOISE

NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewardStats:
    """Rewards of one step. Siblings that cannot train count in nothing."""

    std_P: FloatArray64  # (P,) unbiased; NaN with fewer than two siblings that can train
    mean_P: FloatArray64  # (P,)
    min_P: FloatArray64  # (P,)
    max_P: FloatArray64  # (P,)
    solved_P: BoolArray  # (P,) equal returns, all succeeded
    hopeless_P: BoolArray  # (P,) equal returns, all failed
    constant_P: BoolArray  # (P,) equal returns for another reason, or success is not known
    identical_P: BoolArray  # (P,) all siblings wrote the same
    advantage_share_P: FloatArray64  # (P,) share of the total of |advantage|; NaN without any
    positive_frac: float
    """Share of positive ones among advantages that are not zero; NaN without any."""
    luck_frac: float
    """Reward variance between siblings with the same actions, over that between all siblings."""

    @property
    def defined_P(self) -> BoolArray:
        return np.asarray(np.isfinite(self.std_P))

    @property
    def num_effective_groups(self) -> float:
        """1 / sum of squared advantage shares: P if all count alike, 1 if one group is all."""
        squares = float((self.advantage_share_P**2).sum())
        return 1 / squares if squares > 0 else 0.0 if squares == 0 else NAN

    @property
    def std_over_mean(self) -> float:
        """Std over mean of the reward std of groups: above 1, selection by spread tends to pay.

        RAGEN-2 (arXiv 2604.06268), table 8.
        """
        std = self.std_P[self.defined_P]
        mean = float(std.mean()) if std.size else 0.0
        return float(std.std(ddof=1)) / mean if std.size > 1 and mean > 0 else NAN

    def metrics(self) -> dict[str, float]:
        """`reward/...` of this step, beside the means that every step has. NaN if not defined."""
        known = self.defined_P
        std = self.std_P[known]
        share = self.advantage_share_P
        return {
            "reward/group_std_min": float(std.min()) if std.size else NAN,
            "reward/group_std_max": float(std.max()) if std.size else NAN,
            "reward/group_std_ratio": self.std_over_mean,
            "reward/zero_std_frac": _mean(std == 0),
            "reward/solved_frac": _mean(self.solved_P[known]),
            "reward/hopeless_frac": _mean(self.hopeless_P[known]),
            "reward/constant_frac": _mean(self.constant_P[known]),
            "reward/identical_frac": _mean(self.identical_P[known]),
            "reward/num_effective_groups": self.num_effective_groups,
            "reward/advantage_top_frac": float(share.max())
            if share.size and np.isfinite(share).all()
            else NAN,
            "reward/positive_frac": self.positive_frac,
            "reward/luck_frac": self.luck_frac,
        }


def reward_stats(batch: RolloutBatch, advantages_PG: FloatArray64 | None = None) -> RewardStats:
    """Measure the rewards of a step.

    Args:
        batch: All groups, before selection.
        advantages_PG: (P, G) what the update weighs each trajectory by; the return less the mean
            of its group where not given.

    Raises:
        ValueError: `advantages_PG` has another shape than the batch.
    """
    returns_PG, trainable_PG = batch.returns_PG, batch.trainable_PG
    if advantages_PG is not None and advantages_PG.shape != returns_PG.shape:
        raise ValueError(
            f"advantages have shape {advantages_PG.shape}, but the batch is {returns_PG.shape}"
        )
    good_PG = trainable_PG & np.isfinite(returns_PG)
    rows = [row[good] for row, good in zip(returns_PG, good_PG, strict=True)]
    std_P = np.array([_std(row) for row in rows])
    mean_P = np.array([float(row.mean()) if row.size else NAN for row in rows])
    if advantages_PG is None:
        advantages_PG = np.where(std_P[:, None] > 0, returns_PG - mean_P[:, None], 0.0)
    success_PG = batch.success_PG
    equal_P = std_P == 0
    solved_P = equal_P & ((success_PG == 1) | ~good_PG).all(axis=1)
    hopeless_P = equal_P & ((success_PG == 0) | ~good_PG).all(axis=1)
    share_P, positive_frac = _advantage_mass(advantages_PG, good_PG)
    return RewardStats(
        std_P=std_P,
        mean_P=mean_P,
        min_P=np.array([float(row.min()) if row.size else NAN for row in rows]),
        max_P=np.array([float(row.max()) if row.size else NAN for row in rows]),
        solved_P=solved_P,
        hopeless_P=hopeless_P,
        constant_P=equal_P & ~solved_P & ~hopeless_P,
        identical_P=np.array([_are_identical(batch, p) for p in range(batch.num_groups)], bool),
        advantage_share_P=share_P,
        positive_frac=positive_frac,
        luck_frac=luck_share(batch),
    )


def luck_share(batch: RolloutBatch) -> float:
    """How much of the reward differs between siblings although they did the same.

    Mean squared difference of the environment's return between siblings one of whose actions,
    turn by turn, begin with all of the other's, over that between any siblings of a group; at
    most 1. Where the world is deterministic, such siblings are the same episode and earn the
    same: 0. Where luck alone decides it is 1. NaN without two siblings that did the same, or
    without any difference.
    """
    same: list[float] = []
    every: list[float] = []
    for group, trainable in zip(batch.groups, batch.trainable_PG, strict=True):
        played = [
            (tuple(turn.actions for turn in t.turns), t.env_return)
            for t, good in zip(group, trainable, strict=True)
            if good and math.isfinite(t.env_return)
        ]
        for (a, x), (b, y) in itertools.combinations(played, 2):
            every.append((x - y) ** 2)
            if any(a) and any(b) and a[: len(b)] == b[: len(a)]:
                same.append((x - y) ** 2)
    if not same or not any(every):
        return NAN
    return min(float(np.mean(same)) / float(np.mean(every)), 1.0)


def _advantage_mass(advantages_PG: FloatArray64, good_PG: BoolArray) -> tuple[FloatArray64, float]:
    used_PG = np.where(good_PG & np.isfinite(advantages_PG), advantages_PG, 0.0)
    mass_P = np.abs(used_PG).sum(axis=1)
    total = float(mass_P.sum())
    num_signed = int((used_PG != 0).sum())
    if total <= 0 or not num_signed:
        return np.full(len(mass_P), NAN), NAN
    return mass_P / total, float((used_PG > 0).sum() / num_signed)


def _std(values: FloatArray64) -> float:
    if values.size < 2:
        return NAN
    std = float(values.std(ddof=1))
    return 0.0 if std <= RELATIVE_NOISE * float(np.abs(values).max()) else std


def _are_identical(batch: RolloutBatch, p: int) -> bool:
    """All siblings wrote the same text in every turn."""
    group = batch.groups[p]
    texts = {tuple(turn.response for turn in trajectory.turns) for trajectory in group}
    return len(group) > 1 and len(texts) == 1


def _mean(values: BoolArray) -> float:
    return float(values.mean()) if values.size else math.nan
