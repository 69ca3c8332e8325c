"""Weights for samples that are not of the trainer's policy: stale, or of another implementation.

Three policies take part. **mu** sampled, and its log-probs are on record. **pi_old** is the trainer
before the update, and the surrogate's ratio is pi / pi_old. **pi** is the trainer now. The weight
of a sample is made from rho = pi_old / mu and carries no gradient. With rollouts of older weights
this is decoupled PPO (Hilton et al. 2022, "Batch size-invariance for policy optimization"; Fu et
al. 2025, AReaL); with rollouts of another implementation it is truncated importance sampling (Yao
et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
training").

Legend: **B** rows, **T** row length, **L** sampled tokens, flat. A sequence is a whole trajectory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..config.settings import OffPolicyConfig
from .batch import PolicyOutputs, TokenBatch
from .kl import MAX_LOG_RATIO, log_ratio


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """What the loss of each sampled token is multiplied by. Without gradient."""

    surrogate_L: Tensor | None
    """(L,) weights of the clipped surrogate; None for 1 everywhere."""
    token_L: Tensor | None
    """(L,) weights of what concerns one token in its context, such as its KL penalty."""
    sums: Mapping[str, Tensor]
    maxima: Mapping[str, Tensor]


def needs_old_logprobs(batch: TokenBatch, config: OffPolicyConfig) -> bool:
    """Whether the weights of a single optimizer step need log-probs from before the update.

    A pass over a row gives all that its own tokens need. A trajectory of several rows has one
    weight, and its rows may fall into different microbatches.
    """
    if config.correction == "none" or config.level == "token":
        return False
    return len(set(batch.trajectory_index.tolist())) < batch.num_rows


def with_old_logprobs(batch: TokenBatch, logprobs_BT: Tensor) -> TokenBatch:
    """The batch with the trainer's log-probs from before the update. Trajectories must be whole."""
    gap_BT = (logprobs_BT - batch.behaviour_logprobs).double() * batch.loss_mask
    _, owner_B = batch.trajectory_index.unique(return_inverse=True)
    total = torch.zeros_like(owner_B, dtype=torch.float64).index_add(0, owner_B, gap_BT.sum(1))
    return replace(batch, old_logprobs=logprobs_BT, trajectory_log_ratio=total[owner_B])


def old_logprobs(outputs: PolicyOutputs, batch: TokenBatch, config: OffPolicyConfig) -> Tensor:
    """(B, T) what the surrogate's ratio is taken to, without gradient.

    `trainer`: those of `with_old_logprobs`. A batch without them is the only one of its step: then
    the weights have not moved since, and they are the pass's own.
    """
    if config.old_logprobs == "sampler":
        return batch.behaviour_logprobs
    return outputs.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs


def correct(old_L: Tensor, batch: TokenBatch, config: OffPolicyConfig) -> Correction:
    """The weights of the sampled tokens of some rows, from rho = pi_old / mu.

    tis: min(rho, cap), with rho of the token, or the product over its trajectory. mis, token: rho
    inside [low, high], else 0 (IcePop; Ling team 2025). mis, sequence: 1 for a trajectory whose
    geometric mean of rho lies in [low, high], else 0: it filters and does not weigh.

    Args:
        old_L: Log-probs of pi_old at the sampled tokens of `batch`.
    """
    if config.correction == "none":
        return Correction(surrogate_L=None, token_L=None, sums={}, maxima={})
    mask = batch.loss_mask
    row_L = mask.nonzero()[:, 0]
    rho_L = log_ratio(old_L, batch.behaviour_logprobs[mask]).detach().exp()
    ones_L = torch.ones_like(rho_L)
    if config.level == "token":
        weight_L, is_cut_L = _cut(rho_L, rho_L, config)
        token_L = weight_L
        sums = _sums("off_policy", weight_L, is_cut_L, ones_L, config)
    else:
        log_B, num_B = _log_ratios(old_L, row_L, batch), batch.trajectory_num_tokens
        mean_B = (log_B / num_B.clamp(min=1)).exp()
        weight_B, is_cut_B = _cut(log_B.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(), mean_B, config)
        if config.correction == "mis":
            weight_B = (~is_cut_B).to(weight_B.dtype)
        weight_L, is_cut_L = weight_B[row_L].to(rho_L.dtype), is_cut_B[row_L]
        kept_L = ones_L if config.correction == "tis" else weight_L
        token_L = kept_L * (rho_L if config.cap is None else rho_L.clamp(max=config.cap))
        sums = _sums("off_policy", weight_L, is_cut_L, ones_L, config)
        # The rows of a trajectory add up to one.
        sums |= _sums("off_policy_sequence", weight_B, is_cut_B, mask.sum(1) / num_B, config)
    largest = (
        weight_L.double().max() if len(weight_L) else weight_L.new_zeros((), dtype=torch.double)
    )
    return Correction(
        surrogate_L=weight_L, token_L=token_L, sums=sums, maxima={"off_policy_weight": largest}
    )


def _cut(rho: Tensor, judged: Tensor, config: OffPolicyConfig) -> tuple[Tensor, Tensor]:
    """Truncated or masked ratios, and which of them were."""
    if config.correction == "mis":
        is_cut = (judged < config.low) | (judged > config.high)
        return rho.masked_fill(is_cut, 0), is_cut
    if config.cap is None:
        return rho, torch.zeros_like(rho, dtype=torch.bool)
    return rho.clamp(max=config.cap), rho > config.cap


def _log_ratios(old_L: Tensor, row_L: Tensor, batch: TokenBatch) -> Tensor:
    """(B,) log pi_old - log mu, summed over the trajectory of each row.

    A trajectory of several rows has had its old log-probs from before the update, see
    `needs_old_logprobs`.
    """
    if batch.trajectory_log_ratio is not None:
        return batch.trajectory_log_ratio
    gap_L = (old_L - batch.behaviour_logprobs[batch.loss_mask]).detach().double()
    return gap_L.new_zeros(batch.num_rows).index_add(0, row_L, gap_L)


def _sums(
    prefix: str, weight: Tensor, is_cut: Tensor, count: Tensor, config: OffPolicyConfig
) -> dict[str, Tensor]:
    """Sums for the metrics. `count` says how much each weight counts."""
    weight, count = weight.double(), count.double()
    cut = "masked" if config.correction == "mis" else "truncated"
    return {
        f"{prefix}_count": count.sum(),
        f"{prefix}_weight": (weight * count).sum(),
        f"{prefix}_weight_squared": (weight.square() * count).sum(),
        f"{prefix}_{cut}": (is_cut * count).sum(),
    }
