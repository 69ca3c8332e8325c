"""Which groups train: SNR-adaptive filtering (RAGEN-2, section 4), and the filters of DAPO.

Selection looks at whole trajectories before they are packed into rows. It keeps their order and
never repeats one. The rules that turn numbers into a choice stand in `rules.py`.

Legend: **P** groups, **G** siblings of a group.

    >>> import numpy as np
    >>> from echoscope.diagnostics.config import SelectionConfig
    >>> from echoscope.diagnostics.selection.filter import select_groups
    >>> from echoscope.store.records import RolloutBatch, Split, StopReason, Trajectory, Turn
    >>> def sibling(p, g, reward):
    ...     turn = Turn(index=0, observation="", response="up", reward=reward,
    ...         prompt_tokens=np.array([1]), response_tokens=np.array([2]))
    ...     return Trajectory(step=1, split=Split.TRAIN, index=2 * p + g, group_index=p,
    ...         sibling_index=g, env_id="lake", tag="lake", env_seed=p, noise_seed=0,
    ...         prompt_key=str(p), turns=(turn,), stop_reason=StopReason.TERMINATED)
    >>> rewards = [[1, 1], [0, 1], [0, 0]]  # solved, undecided, hopeless
    >>> batch = RolloutBatch(groups=tuple(
    ...     tuple(sibling(p, g, rewards[p][g]) for g in range(2)) for p in range(3)))
    >>> chosen = select_groups(batch, SelectionConfig(strategy="top_p", value=0.9))
    >>> chosen.keep_P.tolist(), chosen.reward_std_P.round(2).tolist()
    ([False, True, False], [0.0, 0.71, 0.0])
    >>> chosen.drop_reason(0, 1)
    'reward_std of the group is zero'
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from echoscope.store.query.metric_keys import NOTHING_SELECTED
from echoscope.store.records import (
    BoolArray,
    FloatArray64,
    RolloutBatch,
    Trajectory,
)

from ..config import SelectionConfig
from ..measure.rates import mean_of_arrays
from .rules import is_zero, keep_by_own_rule, select

RELATIVE_NOISE = 1e-9
"""Returns of a group that differ by less than this share of their size are the same return."""
_NOT_MIXED = {
    "return": "the siblings' returns are equal",
    "success": "the siblings' success is the same",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """What was kept, by which numbers, and in words why nothing was."""

    config: SelectionConfig
    keep_P: BoolArray  # (P,) groups with at least one kept trajectory
    keep_PG: BoolArray  # (P, G) trajectories that train
    trainable_PG: BoolArray  # (P, G) trajectories that could train
    values_P: FloatArray64  # (P,) metric of each group, NaN where it is not defined
    reward_std_P: FloatArray64  # (P,) whatever the metric; NaN with fewer than two siblings
    solved_P: BoolArray  # (P,) equal returns, and every sibling succeeded
    hopeless_P: BoolArray  # (P,) equal returns, and every sibling failed
    mixed_P: BoolArray  # (P,) what `config.mixed` asks for
    overlong_PG: BoolArray  # (P, G) left out for a reply that was cut at its longest
    surplus_P: BoolArray  # (P,) would train, but `config.max_groups` others came before
    reason: str = ""
    """Empty, or `empty: ...` with the rule that left nothing and the way out."""

    @property
    def is_empty(self) -> bool:
        return not self.keep_PG.any()

    @property
    def num_mixed(self) -> int:
        """Groups whose siblings differ in what `config.mixed` looks at, which is return for any."""
        mixed_P = self.reward_std_P > 0 if self.config.mixed == "any" else self.mixed_P
        return int(mixed_P.sum())

    def drop_reason(self, p: int, g: int) -> str | None:
        """Why trajectory g of group p does not train, in words; None if it does."""
        if self.keep_PG[p, g]:
            return None
        if not self.trainable_PG[p, g]:
            return "failed, or has no sampled tokens"
        if self.overlong_PG[p, g]:
            return "a reply was cut at its longest"
        if not self.mixed_P[p]:
            return _NOT_MIXED[self.config.mixed]
        if self.surplus_P[p]:
            return f"{self.config.max_groups} groups before it train"
        if self.config.strategy == "custom":
            return f"left out by the rule {self.config.function}"
        metric, value = self.config.metric, self.values_P[p]
        if not np.isfinite(value):
            return f"{metric} of the group is not defined"
        if not self.config.include_zero and is_zero(value):
            return f"{metric} of the group is zero"
        side = "below" if self.config.keep == "largest" else "above"
        if is_zero(self.values_P[self.keep_P] - value).any():
            side = "equal to some of"
        return f"{metric} of the group is {value:.4g}, {side} what {self.config.strategy} keeps"

    def metrics(self) -> dict[str, float]:
        """`selection/...` of this step. A mean over nothing is NaN."""
        values, keep = self.values_P, self.keep_P
        defined = np.isfinite(values)
        kept_values = values[keep]
        is_ranked = self.config.strategy not in ("none", "custom") and kept_values.size > 0
        last = kept_values.min if self.config.keep == "largest" else kept_values.max
        return {
            "selection/kept_frac": _mean(keep.astype(np.float64)),
            "selection/num_groups_kept": float(keep.sum()),
            "selection/num_undefined": float((~defined).sum()),
            "selection/num_zero": float(is_zero(values[defined]).sum()),
            "selection/num_zero_variance": float((self.reward_std_P == 0).sum()),
            "selection/num_solved": float(self.solved_P.sum()),
            "selection/num_hopeless": float(self.hopeless_P.sum()),
            "selection/num_mixed": float(self.num_mixed),
            "selection/num_overlong": float(self.overlong_PG.sum()),
            "selection/metric_mean": _mean(values[defined]),
            "selection/metric_mean_kept": _mean(values[defined & keep]),
            "selection/threshold": float(last()) if is_ranked else float("nan"),
            NOTHING_SELECTED: float(self.is_empty),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupArrays:
    """What selection looks at: numbers of each trajectory of a step.

    A group with fewer siblings than others is filled up with ones that cannot train.
    """

    returns_PG: FloatArray64  # (P, G) what is optimised
    success_PG: FloatArray64  # (P, G) 1, 0, or NaN where it is not defined
    trainable_PG: BoolArray  # (P, G)
    lengths_PG: FloatArray64  # (P, G) sampled tokens
    entropies_PG: FloatArray64  # (P, G) nats, see `mean_entropy`; NaN where not recorded
    overlong_PG: BoolArray  # (P, G) some reply was cut at its longest
    ties_PG: NDArray[np.uint64]  # (P, G) see `tie_key`
    tags_P: tuple[str, ...]  # (P,) environment of each group


def arrays_of(batch: RolloutBatch, metric: str) -> GroupArrays:
    """The numbers of a step's trajectories; entropies only with `metric` entropy."""
    no_entropies_PG = np.full((batch.num_groups, batch.group_size), np.nan)
    return GroupArrays(
        returns_PG=batch.returns_PG,
        success_PG=batch.success_PG,
        trainable_PG=batch.trainable_PG,
        lengths_PG=batch.array_PG(lambda t: float(t.num_sampled_tokens)),
        entropies_PG=batch.array_PG(mean_entropy) if metric == "entropy" else no_entropies_PG,
        overlong_PG=batch.array_PG(
            lambda t: any(turn.finish_reason.is_cut for turn in t.turns)
        ).astype(np.bool_),
        ties_PG=np.array(
            [
                [tie_key(t.env_seed, t.noise_seed, t.group_index, t.sibling_index) for t in group]
                for group in batch.groups
            ],
            dtype=np.uint64,
        ).reshape(batch.num_groups, batch.group_size),
        tags_P=tuple(group[0].tag if group else "" for group in batch.groups),
    )


def tie_key(
    env_seed: int | None, noise_seed: int | None, group_index: int, sibling_index: int
) -> int:
    """Where a trajectory ranks among its equals: a hash of its seeds and its place.

    The seeds follow from those of the run, so the order is the same in a resumed run and in
    `whatif`, and another at each step.
    """
    identity = f"{env_seed} {noise_seed} {group_index} {sibling_index}".encode()
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "little")


def select_groups(batch: RolloutBatch, config: SelectionConfig) -> Selection:
    """Choose what trains from a step's whole trajectories (see `select_from`)."""
    metric = "entropy" if config.strategy == "custom" else config.metric
    return select_from(arrays_of(batch, metric), config)


def select_from(arrays: GroupArrays, config: SelectionConfig) -> Selection:
    """Choose what trains, knowing the numbers of each trajectory.

    Siblings that cannot train (no sampled tokens, or a failed environment) count in no metric and
    are never kept. A group is kept as a whole otherwise, but for what `overlong` or a rule of the
    user's own drops. Strategy
    `none` keeps all that can train. `mixed` comes before the strategy, `max_groups` after it.

    Raises:
        UserCodeError: strategy `custom`, and the rule failed or is not loaded in this process.
    """
    trainable_PG, success_PG = arrays.trainable_PG, arrays.success_PG
    reward_std_P = _per_group(arrays.returns_PG, trainable_PG, _std)
    values_P = group_values(arrays, config.metric)
    mixed_P = _mixed(arrays, reward_std_P, config.mixed)
    overlong_PG = arrays.overlong_PG & trainable_PG & (config.overlong == "drop")
    keep_PG = trainable_PG & mixed_P[:, None] & ~overlong_PG
    if config.strategy == "custom":
        keep_PG = keep_PG & keep_by_own_rule(arrays, config)
    elif config.strategy != "none":
        candidates_P = np.where(keep_PG.any(axis=1), values_P, np.nan)
        ties_P = arrays.ties_PG[:, 0] if arrays.ties_PG.size else None
        keep_PG = keep_PG & select(candidates_P, config, ties=ties_P)[:, None]
    surplus_P = np.zeros(len(keep_PG), dtype=np.bool_)
    if config.max_groups:
        kept_P = keep_PG.any(axis=1)
        surplus_P = kept_P & (np.cumsum(kept_P) > config.max_groups)
        keep_PG = keep_PG & ~surplus_P[:, None]
    equal_P = reward_std_P == 0
    selection = Selection(
        config=config,
        keep_P=np.asarray(keep_PG.any(axis=1)),
        keep_PG=keep_PG,
        trainable_PG=trainable_PG,
        values_P=values_P,
        reward_std_P=reward_std_P,
        solved_P=equal_P & ((success_PG == 1) | ~trainable_PG).all(axis=1),
        hopeless_P=equal_P & ((success_PG == 0) | ~trainable_PG).all(axis=1),
        mixed_P=mixed_P,
        overlong_PG=overlong_PG,
        surplus_P=surplus_P,
    )
    return replace(selection, reason=_why_empty(selection)) if selection.is_empty else selection


def _mixed(
    arrays: GroupArrays, reward_std_P: FloatArray64, by: Literal["any", "return", "success"]
) -> BoolArray:
    if by == "any":
        return np.ones(len(reward_std_P), dtype=np.bool_)
    if by == "return":
        return np.asarray(reward_std_P > 0)
    success_PG = np.where(arrays.trainable_PG, arrays.success_PG, np.nan)
    return np.asarray((success_PG == 1).any(axis=1) & (success_PG == 0).any(axis=1))


def group_values(arrays: GroupArrays, metric: str) -> FloatArray64:
    """(P,) the metric of every group over its trainable siblings; NaN where it is not defined.

    reward_std: unbiased standard deviation of the episode returns, exactly 0 when they are equal;
    reward_mean, reward_sum: their mean and sum; entropy: mean over siblings of the mean recorded
    entropy (nats) of their sampled tokens; length: mean number of sampled tokens.
    """
    values_PG, statistic = {
        "reward_std": (arrays.returns_PG, _std),
        "reward_mean": (arrays.returns_PG, _mean),
        "reward_sum": (arrays.returns_PG, _sum),
        "entropy": (arrays.entropies_PG, _mean),
        "length": (arrays.lengths_PG, _mean),
    }[metric]
    return _per_group(values_PG, arrays.trainable_PG, statistic)


def mean_entropy(trajectory: Trajectory) -> float:
    """Mean recorded entropy of the sampled tokens, in nats; NaN if any turn has none recorded."""
    arrays = [turn.entropies for turn in trajectory.turns if turn.num_sampled_tokens]
    recorded = [array for array in arrays if array is not None]
    return mean_of_arrays(recorded) if len(recorded) == len(arrays) else float("nan")


def _per_group(
    values_PG: FloatArray64, mask_PG: BoolArray, statistic: Callable[[FloatArray64], float]
) -> FloatArray64:
    rows = zip(values_PG, mask_PG, strict=True)
    return np.array([statistic(values[mask]) for values, mask in rows], dtype=np.float64)


def _std(values: FloatArray64) -> float:
    if values.size < 2 or not np.isfinite(values).all():
        return float("nan")
    std = float(values.std(ddof=1))
    # Sums of the same rewards in another order differ in the last bits: that is not variance.
    return 0.0 if std <= RELATIVE_NOISE * float(np.abs(values).max()) else std


def _mean(values: FloatArray64) -> float:
    return float(values.mean()) if values.size else float("nan")


def _sum(values: FloatArray64) -> float:
    return float(values.sum()) if values.size else float("nan")


def _why_empty(selection: Selection) -> str:
    config, values = selection.config, selection.values_P
    if not selection.trainable_PG.any():
        return (
            f"empty: none of the {selection.trainable_PG.size} trajectories can train; each failed "
            "or has no sampled tokens"
        )
    if selection.overlong_PG[selection.trainable_PG].all():
        return (
            "empty: every episode had a reply that was cut at its longest; raise "
            "context.max_response_tokens, or set selection.overlong=keep"
        )
    if not selection.mixed_P.any():
        return (
            f"empty: {_NOT_MIXED[config.mixed]} in each of the {selection.mixed_P.size} groups "
            f"({int(selection.solved_P.sum())} solved, {int(selection.hopeless_P.sum())} "
            "hopeless); easier or harder tasks would give a signal, and so may a higher "
            "dynamic_sampling.max_rounds"
        )
    if config.strategy == "custom":
        return f"empty: the rule {config.function} keeps none of the {values.size} groups"
    defined = np.isfinite(values)
    if not defined.any():
        return f"empty: {config.metric} is not defined for any of the {values.size} groups; " + (
            "no entropies were recorded"
            if config.metric == "entropy"
            else "it needs at least two siblings that can train"
        )
    # Every rule keeps something where there is any mass, so there is none.
    return (
        f"empty: {config.metric} is zero for all {int(defined.sum())} groups where it is defined "
        f"({int(selection.solved_P.sum())} groups solved, {int(selection.hopeless_P.sum())} "
        "hopeless); easier or harder tasks would give a signal, and selection.strategy=none trains "
        "on them all the same"
    )
