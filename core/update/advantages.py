"""From rewards to advantages: how much better than expected each sampled token was.

Legend: **P** groups, **G** siblings, **B** rows, **T** row length, **N** trajectories, **L**
sampled tokens of the longest one, **K** turns. docs/algorithms.md has the formulas and says when to
use which. Generalised advantage estimation goes over the sampled tokens of whole trajectories, in
numpy and float64; the policy's tensors come and go through `SampledPositions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echoscope.store.records import BoolArray, FloatArray64, IntArray64, RolloutBatch

from ..config.settings import (
    AdvantageConfig,
    BiLevelGaeConfig,
    CustomAdvantageConfig,
    GaeConfig,
    GroupRelativeConfig,
    ReinforcePpConfig,
)
from ..plugins.calls import AdvantageInputs, estimate
from .batch import TokenBatch, credit_rewards


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledPositions:
    """Where the sampled tokens of each trajectory stand: its rows in order, one after the other."""

    row: IntArray64  # (n,) row of each sampled token
    column: IntArray64  # (n,)
    owner: IntArray64  # (n,) its trajectory, counted 0..N-1 in the order of first appearance
    position: IntArray64  # (n,) its place among the sampled tokens of its trajectory
    num_trajectories: int
    max_length: int

    @classmethod
    def of(cls, batch: TokenBatch) -> SampledPositions:
        row, column = np.nonzero(batch.loss_mask.cpu().numpy())
        trajectory = batch.trajectory_index.cpu().numpy()[row]  # those of one stand together
        owner = np.cumsum(np.diff(trajectory, prepend=trajectory[:1]) != 0)
        counts = np.bincount(owner)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        return cls(
            row=row,
            column=column,
            owner=owner,
            position=np.arange(owner.size) - starts,
            num_trajectories=counts.size,
            max_length=int(counts.max(initial=0)),
        )

    @property
    def mask_NL(self) -> BoolArray:
        mask = np.zeros((self.num_trajectories, self.max_length), dtype=np.bool_)
        mask[self.owner, self.position] = True
        return mask

    def gather(self, values_BT: Tensor, fill: float = 0.0) -> FloatArray64:
        """(B, T) to (N, L), with `fill` behind the end of a trajectory."""
        out = np.full((self.num_trajectories, self.max_length), fill, dtype=np.float64)
        values = values_BT.detach().to("cpu", torch.float64).numpy()
        out[self.owner, self.position] = values[self.row, self.column]
        return out

    def scatter(self, values_NL: FloatArray64, like: TokenBatch) -> Tensor:
        """(N, L) to (B, T) float32 on the batch's device, 0 outside the loss mask."""
        out = np.zeros(tuple(like.loss_mask.shape), dtype=np.float32)
        out[self.row, self.column] = values_NL[self.owner, self.position]
        return torch.from_numpy(out).to(like.loss_mask.device)


def gae(
    rewards: FloatArray64,
    values: FloatArray64,
    mask: BoolArray,
    *,
    gamma: float,
    lam: float,
    ends: BoolArray | None = None,
) -> FloatArray64:
    """Advantages of right-padded sequences (Schulman et al. 2015, equation 16).

    Args:
        rewards: (N, L), received after each step.
        values: (N, L), of the state before each step. Behind the last step the value is 0: an
            episode that a limit cut is treated as ended.
        mask: (N, L), False on padding.
        gamma: Discount of one step.
        lam: Weight of longer returns.
        ends: (N, L), steps behind which nothing is looked at any more.
    """
    advantages = np.zeros_like(rewards)
    next_value = np.zeros(rewards.shape[0])
    carry = np.zeros(rewards.shape[0])
    for t in reversed(range(rewards.shape[1])):
        if ends is not None:
            next_value = np.where(ends[:, t], 0.0, next_value)
            carry = np.where(ends[:, t], 0.0, carry)
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        carry = np.where(mask[:, t], delta + gamma * lam * carry, 0.0)
        next_value = np.where(mask[:, t], values[:, t], 0.0)
        advantages[:, t] = carry
    return advantages


def bi_level_gae(
    rewards: FloatArray64,
    values: FloatArray64,
    turns: IntArray64,
    mask: BoolArray,
    *,
    gamma: float,
    lam: float,
    turn_gamma: float,
) -> FloatArray64:
    """Advantages over turns first, then inside each turn (Wang et al. 2025, VAGEN).

    Turn i ends at token e_i, the last one with its turn index. Over the turns,
    delta_i = r_i + turn_gamma V(e_{i+1}) - V(e_i) and H_i = delta_i + turn_gamma lam H_{i+1}.
    Inside the turn the reward at e_i is then H_i + V(e_i), and plain GAE stops there.

    Args:
        rewards: (N, L); a turn's reward is the sum over its tokens.
        values: (N, L)
        turns: (N, L), turn index of every token.
        mask: (N, L), False on padding.
        gamma: Discount of one token inside a turn.
        lam: Weight of longer returns, on both levels.
        turn_gamma: Discount of one turn.
    """
    ends = mask.copy()
    ends[:, :-1] &= (turns[:, 1:] != turns[:, :-1]) | ~mask[:, 1:]
    ordinal: IntArray64 = np.cumsum(ends, axis=1) - ends
    owner, position = np.nonzero(mask)
    shape = (mask.shape[0], int(ends.sum(axis=1).max(initial=0)))
    turn_rewards_NK = np.zeros(shape)
    np.add.at(turn_rewards_NK, (owner, ordinal[mask]), rewards[owner, position])
    end_owner, end_position = np.nonzero(ends)
    end_ordinal: IntArray64 = ordinal[ends]
    end_values_NK = np.zeros(shape)
    end_values_NK[end_owner, end_ordinal] = values[end_owner, end_position]
    exists_NK = np.zeros(shape, dtype=np.bool_)
    exists_NK[end_owner, end_ordinal] = True
    high_NK = gae(turn_rewards_NK, end_values_NK, exists_NK, gamma=turn_gamma, lam=lam)
    low_rewards = np.zeros_like(rewards)
    low_rewards[end_owner, end_position] = (high_NK + end_values_NK)[end_owner, end_ordinal]
    return gae(low_rewards, values, mask, gamma=gamma, lam=lam, ends=ends)


def whiten(values: FloatArray64, mask: BoolArray) -> FloatArray64:
    """Mean 0 and standard deviation 1 (n - 1) over all masked entries; 0 elsewhere.

    A single entry becomes 0.
    """
    chosen = values[mask]
    out = np.zeros_like(values)
    if chosen.size > 1:
        out[mask] = (chosen - chosen.mean()) / np.sqrt(chosen.var(ddof=1) + 1e-8)
    return out


Credit = Literal["trajectory", "turn"]
Normalization = Literal["arpo", "brpo", "grpo", "mean", "asym_clip"]
LeftOut = Mapping[int, Sequence[FloatArray64]]
"""Group index to the rewards by turn of its trainable siblings that are not in the batch."""

FLOAT32_NOISE = 1e-6
"""Scores of a group that differ by less than this share of their size count as equal."""
ASYM_CLIP = (-1.0, 3.0)
GRPO_EPS = 1e-6
"""Added to a group's standard deviation before GRPO divides by it."""


def normalize_returns(
    returns_PG: NDArray[np.floating],
    mode: Normalization,
    *,
    trainable_PG: NDArray[np.bool_] | None = None,
) -> FloatArray64:
    """Episode returns on the scale that trains (RAGEN's reward normalisation).

    `arpo` leaves them, `brpo` standardises over the batch, `grpo` over the group, `mean` subtracts
    the group's mean, `asym_clip` is `grpo` clamped to [-1, 3]. Standard deviations divide by n - 1
    and are enlarged by 1e-6; equal returns, and a return without another to compare with,
    become 0.

    Args:
        returns_PG: (P, G) episode returns.
        mode: One of the five.
        trainable_PG: (P, G) which returns count; all by default. The others become 0.

    Raises:
        ValueError: the mode compares siblings, but groups have one member.
    """
    returns = np.asarray(returns_PG, dtype=np.float64)
    trainable = np.ones(returns.shape, np.bool_) if trainable_PG is None else trainable_PG
    by_group = mode in ("grpo", "mean", "asym_clip")
    if by_group and returns.shape[1] == 1:
        raise ValueError(
            f"reward normalization {mode!r} compares siblings, but groups have one member: set "
            "envs.group_size to 2 or more, or reward.normalization to arpo or brpo"
        )
    out = np.zeros_like(returns)
    if mode == "arpo":
        out[trainable] = returns[trainable]
        return out
    rule = _centre if mode == "mean" else _standardize
    for rows in range(len(returns)) if by_group else [slice(None)]:
        counts = trainable[rows]
        out[rows][counts] = rule(returns[rows][counts])
    return np.clip(out, *ASYM_CLIP) if mode == "asym_clip" else out


def _centre(values: FloatArray64) -> FloatArray64:
    return values - values.mean() if values.size else values


def _standardize(values: FloatArray64) -> FloatArray64:
    if values.size < 2:
        return np.zeros_like(values)
    std = float(values.std(ddof=1))
    if std <= max(1e-6, 1e-9 * float(np.abs(values).max())):
        return np.zeros_like(values)
    out: FloatArray64 = (values - values.mean()) / (std + 1e-6)
    return out


def left_out_rewards(
    batch: RolloutBatch,
    keep_PG: NDArray[np.bool_],
    returns_PG: NDArray[np.floating],
    credit: Credit,
) -> dict[int, list[FloatArray64]]:
    """What `estimate_advantages` needs to know of siblings that selection left out.

    A baseline over the kept siblings only would be a baseline over those that selection liked.

    Args:
        batch: All trajectories of the step.
        keep_PG: (P, G) those that were packed.
        returns_PG: (P, G) normalised returns, as used for the packed ones (`trajectory` credit).
        credit: As in `estimate_advantages`.
    """
    left_out: dict[int, list[FloatArray64]] = {}
    wanted_PG = batch.trainable_PG & ~keep_PG & keep_PG.any(axis=1, keepdims=True)
    for p, g in zip(*np.nonzero(wanted_PG), strict=True):
        trajectory = batch.groups[p][g]
        rewards_K = credit_rewards(trajectory, float(returns_PG[p, g]), credit)
        left_out.setdefault(trajectory.group_index, []).append(rewards_K)
    return left_out


def estimate_advantages(
    batch: TokenBatch,
    config: AdvantageConfig,
    *,
    credit: Credit = "trajectory",
    left_out: LeftOut | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Advantages of the sampled tokens, and the targets of the critic.

    Estimators see trajectories: the sampled tokens of all rows of one trajectory in their order,
    with the prompts between them skipped.

    Args:
        batch: All rows of the step. `gae` and `bi_level_gae` need `batch.values`.
        config: The estimator.
        credit: `turn` makes the group-relative estimators compare returns-to-go turn by turn;
            `trajectory` makes them compare whole returns.
        left_out: Trainable siblings that the batch does not hold, for the group-relative
            estimators; see `left_out_rewards`.

    Returns:
        (B, T) float32 advantages and (B, T) float32 returns, 0 outside the loss mask. Returns are
        None if the batch has no values.

    Raises:
        UserCodeError: an estimator of the user's own failed.
    """
    tokens = SampledPositions.of(batch)
    rewards = tokens.gather(batch.token_rewards)
    if isinstance(config, GaeConfig | BiLevelGaeConfig):
        advantages, returns = _with_critic(batch, tokens, rewards, config)
        return tokens.scatter(advantages, batch), tokens.scatter(returns, batch)
    gamma = config.gamma if isinstance(config, ReinforcePpConfig) else 1.0
    returns = gae(rewards, np.zeros_like(rewards), tokens.mask_NL, gamma=gamma, lam=1.0)
    if isinstance(config, ReinforcePpConfig):
        advantages = whiten(returns, tokens.mask_NL)
    elif isinstance(config, CustomAdvantageConfig):
        siblings = (left_out or {}).items()
        inputs = AdvantageInputs(
            rewards_NL=rewards.copy(),
            values_NL=None if batch.values is None else tokens.gather(batch.values),
            logprobs_NL=tokens.gather(batch.behaviour_logprobs),
            mask_NL=tokens.mask_NL,
            turns_NL=tokens.gather(batch.turn_index).astype(np.int64),
            groups_N=_groups(batch, tokens),
            left_out={group: [own.copy() for own in each] for group, each in siblings},
        )
        advantages, own_targets = estimate(config, inputs)
        returns = returns if own_targets is None else own_targets
    else:
        advantages = _group_relative(batch, tokens, rewards, config, credit, left_out or {})
        if config.kind == "reinforce_pp_baseline":
            advantages = whiten(advantages, tokens.mask_NL)
    targets = None if batch.values is None else tokens.scatter(returns, batch)
    return tokens.scatter(advantages, batch), targets


def _with_critic(
    batch: TokenBatch,
    tokens: SampledPositions,
    rewards: FloatArray64,
    config: GaeConfig | BiLevelGaeConfig,
) -> tuple[FloatArray64, FloatArray64]:
    """(N, L) advantages and returns; the returns are those before whitening."""
    assert batch.values is not None
    mask = tokens.mask_NL
    values = tokens.gather(batch.values)
    gamma, lam = config.gamma, config.lam
    if isinstance(config, BiLevelGaeConfig):
        turns = tokens.gather(batch.turn_index, fill=-1).astype(np.int64)
        advantages = bi_level_gae(
            rewards, values, turns, mask, gamma=gamma, lam=lam, turn_gamma=config.turn_gamma
        )
    else:
        advantages = gae(rewards, values, mask, gamma=gamma, lam=lam)
    returns = advantages + values
    return (whiten(advantages, mask) if config.whiten else advantages), returns


def _groups(batch: TokenBatch, tokens: SampledPositions) -> IntArray64:
    """(N,) group of each trajectory."""
    group_of_N = np.zeros(tokens.num_trajectories, dtype=np.int64)
    group_of_N[tokens.owner] = batch.group_index.cpu().numpy()[tokens.row]
    return group_of_N


def _group_relative(
    batch: TokenBatch,
    tokens: SampledPositions,
    rewards: FloatArray64,
    config: GroupRelativeConfig,
    credit: Credit,
    left_out: LeftOut,
) -> FloatArray64:
    """(N, L) advantages that compare each trajectory with its siblings, each counted once."""
    num = tokens.num_trajectories
    if num == 0:
        return rewards
    turns = tokens.gather(batch.turn_index, fill=0).astype(np.int64)
    if credit == "trajectory":
        turns = np.zeros_like(turns)
    group_of_N = _groups(batch, tokens)
    turn_rewards_NK = np.zeros((num, int(turns.max(initial=0)) + 1))
    np.add.at(turn_rewards_NK, (np.arange(num)[:, None], turns), rewards)
    advantages_NK = np.zeros_like(turn_rewards_NK)
    for group in np.unique(group_of_N):
        members = np.flatnonzero(group_of_N == group)
        others = left_out.get(int(group), ())
        if credit == "trajectory":
            others = [rewards_K.sum(keepdims=True) for rewards_K in others]
        compared = _compare(_scores([*turn_rewards_NK[members], *others]), config)
        width = min(compared.shape[1], advantages_NK.shape[1])
        advantages_NK[members, :width] = compared[: members.size, :width]
    return np.where(tokens.mask_NL, np.take_along_axis(advantages_NK, turns, axis=1), 0.0)


def _scores(turn_rewards: Sequence[FloatArray64]) -> FloatArray64:
    """(n, K) returns-to-go by turn of n siblings. Behind the end of an episode they are 0."""
    scores = np.zeros((len(turn_rewards), max(map(len, turn_rewards))))
    for row, rewards in zip(scores, turn_rewards, strict=True):
        row[: len(rewards)] = np.cumsum(rewards[::-1])[::-1]
    return scores


def _compare(scores_nK: FloatArray64, config: GroupRelativeConfig) -> FloatArray64:
    """(n, K) scores of one group against its mean at each turn; a lone trajectory gets 0.

    GRPO divides by one scale for the whole group, the largest standard deviation (n - 1) of any
    turn, so that a turn where the siblings hardly differ is not blown up.
    """
    n = scores_nK.shape[0]
    if n < 2:
        return np.zeros_like(scores_nK)
    centred: FloatArray64 = scores_nK - scores_nK.mean(axis=0)
    if config.kind == "rloo":
        centred *= n / (n - 1)
        return centred
    if config.kind != "grpo":
        return centred
    std = float(scores_nK.std(axis=0, ddof=1).max())
    if std <= FLOAT32_NOISE * float(np.abs(scores_nK).max()):
        return np.zeros_like(scores_nK)
    centred /= std + GRPO_EPS
    return centred
