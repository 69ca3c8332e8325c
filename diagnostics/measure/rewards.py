"""What the rewards of a step can teach: spread within groups, and how much of it is luck.

A group without reward spread teaches nothing under a group baseline, and there are opposite reasons
for it: all succeed (solved), or all fail (hopeless). They are counted apart, because a solved task
is not a collapse.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from echoscope.store.query.metric_keys import HOPELESS_FRAC, LUCK_FRAC, SOLVED_FRAC, ZERO_STD
from echoscope.store.records import BoolArray, FloatArray64, RolloutBatch

from ..config import SelectionConfig
from ..judge.rules.task import TERM_AGREEMENT, TERM_SHARE
from ..selection.filter import select_groups

NAN = float("nan")


def reward_metrics(batch: RolloutBatch) -> dict[str, float]:
    """`reward/...` of a step, beside the means that every step has. NaN if not defined.

    Shares of the groups with at least two siblings that can train.
    """
    groups = select_groups(batch, SelectionConfig())
    defined_P = np.isfinite(groups.reward_std_P)

    def share(holds_P: BoolArray) -> float:
        return float(holds_P[defined_P].mean()) if defined_P.any() else NAN

    return {
        ZERO_STD: share(groups.reward_std_P == 0),
        SOLVED_FRAC: share(groups.solved_P),
        HOPELESS_FRAC: share(groups.hopeless_P),
        LUCK_FRAC: luck_share(batch),
        **_term_metrics(batch),
    }


def term_shares(batch: RolloutBatch) -> dict[str, float]:
    """How much of the reward's differences between siblings each term makes.

    The variance of a term (`Trajectory.reward_terms`) between the siblings of a group that can
    train, summed over the groups, as a share of all terms' sum. Empty where no term differs.
    """
    totals = {name: float(apart_N @ apart_N) for name, apart_N in _apart(batch).items()}
    whole = sum(totals.values())
    if not 0 < whole < math.inf:
        return {}
    return {name: spread / whole for name, spread in totals.items()}


def term_agreement(batch: RolloutBatch) -> dict[str, float]:
    """Does a term pay the siblings that the environment pays? Correlation with its reward.

    Within groups that can train; without terms that do not differ. Empty where the environment's
    own reward does not.
    """
    apart: dict[str, FloatArray64] = {}
    for name, apart_N in _apart(batch).items():
        largest = float(np.abs(apart_N).max(initial=0.0))
        if 0 < largest < math.inf:
            apart[name] = apart_N / largest  # so that no square of a huge reward overflows
    env_N = apart.pop("env", None)
    if env_N is None:
        return {}
    return {
        name: float(apart_N @ env_N / np.sqrt((apart_N @ apart_N) * (env_N @ env_N)))
        for name, apart_N in apart.items()
    }


def _apart(batch: RolloutBatch) -> dict[str, FloatArray64]:
    """Each term's deviations from the mean of the group, over the root of the group's size, (N,).

    Their squares add up to the variances of the groups, whatever their sizes.
    """
    groups = [
        [t.reward_terms for t, good in zip(group, trainable, strict=True) if good]
        for group, trainable in zip(batch.groups, batch.trainable_PG, strict=True)
    ]
    apart: dict[str, list[FloatArray64]] = {}
    for name in sorted({name for group in groups for terms in group for name in terms}):
        for group in groups:
            values_G = np.array([terms.get(name, 0.0) for terms in group])
            if len(group):
                centred_G = (values_G - values_G.mean()) / math.sqrt(len(group))
                apart.setdefault(name, []).append(centred_G)
    return {name: np.concatenate(parts) for name, parts in apart.items()}


def _term_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Of a run that adds something to the environment's reward."""
    shares, agreement = term_shares(batch), term_agreement(batch)
    if not shares.keys() - {"env", "format"}:
        return {}
    return {f"{TERM_SHARE}{name}": share for name, share in shares.items()} | {
        f"{TERM_AGREEMENT}{name}": correlation for name, correlation in agreement.items()
    }


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
