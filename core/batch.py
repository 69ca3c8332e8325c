"""Rows of tokens that train: from trajectories to padded tensors.

Legend: **B** rows, **T** padded row length. Column t describes `input_ids[:, t]`: its log-prob is
log p(x_t | x_<t). `loss_mask` is True exactly on sampled tokens; column 0 is never True.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenBatch:
    """Padded rows, right-padded. A trajectory is one row while each prompt extends the last.

    Rows of one trajectory stand together, in the order of their turns; every sampled token stands
    in exactly one row.
    """

    input_ids: Tensor  # (B, T) int64
    attention_mask: Tensor  # (B, T) bool, False on padding
    loss_mask: Tensor  # (B, T) bool, True exactly on sampled tokens
    turn_index: Tensor  # (B, T) int64, turn of a sampled token, -1 elsewhere
    behaviour_logprobs: Tensor  # (B, T) float32, 0 outside the loss mask
    token_rewards: Tensor  # (B, T) float32, 0 except on tokens that end a credited turn
    trajectory_index: Tensor  # (B,) int64, index into the packed trajectories
    group_index: Tensor  # (B,) int64
    trajectory_num_tokens: Tensor  # (B,) int64, sampled tokens of the row's whole trajectory
    ref_logprobs: Tensor | None = None  # (B, T) float32
    values: Tensor | None = None  # (B, T) float32, V before the token is sampled
    advantages: Tensor | None = None  # (B, T) float32
    returns: Tensor | None = None  # (B, T) float32, targets of the critic

    @property
    def num_rows(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def num_loss_tokens(self) -> int:
        return int(self.loss_mask.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyOutputs:
    """What one forward pass says about the tokens of a batch. Zero outside the loss mask."""

    logprobs: Tensor  # (B, T) float32, at the sampling temperature
    entropies: Tensor  # (B, T) float32, nats
    values: Tensor | None = None  # (B, T) float32
