"""Generalised advantage estimation over the sampled tokens of whole trajectories.

Legend: **B** rows, **T** row length, **N** trajectories, **L** sampled tokens of the longest one,
**K** turns. Everything here is numpy in float64; the policy's tensors come and go through
`SampledTokens`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from echoscope.store.records import BoolArray, FloatArray64, IntArray64

from .batch import TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledTokens:
    """Where the sampled tokens of each trajectory stand: its rows in order, one after the other."""

    row: IntArray64  # (n,) row of each sampled token
    column: IntArray64  # (n,)
    owner: IntArray64  # (n,) its trajectory, counted 0..N-1 in the order of first appearance
    position: IntArray64  # (n,) its place among the sampled tokens of its trajectory
    num_trajectories: int
    max_length: int

    @classmethod
    def of(cls, batch: TokenBatch) -> SampledTokens:
        row, column = np.nonzero(batch.loss_mask.cpu().numpy())
        trajectories, first, rank = np.unique(
            batch.trajectory_index.cpu().numpy()[row], return_index=True, return_inverse=True
        )
        in_order = np.empty(trajectories.size, dtype=np.int64)
        in_order[np.argsort(first)] = np.arange(trajectories.size)
        owner = in_order[rank]
        by_owner = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=trajectories.size)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        position = np.empty(owner.size, dtype=np.int64)
        position[by_owner] = np.arange(owner.size) - starts
        return cls(
            row=row,
            column=column,
            owner=owner,
            position=position,
            num_trajectories=trajectories.size,
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
