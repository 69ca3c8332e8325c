"""A KL penalty in the reward.

Legend: **B** rows, **T** row length. The reward of a sampled token becomes r - coef * k, where k
estimates its KL to the reference policy from log p(old) - log p(reference) (Ziegler et al. 2019,
arXiv 1909.08593; REINFORCE++, arXiv 2501.03262). The old policy is the one that sampled, or the
trainer before the update (`off_policy.old_logprobs`). No gradient runs through k.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..config.settings import KlRewardConfig
from .batch import TokenBatch
from .kl import kl_value, log_ratio


def penalize(batch: TokenBatch, settings: KlRewardConfig) -> TokenBatch:
    """The batch with `token_rewards` less the penalty of each sampled token.

    Raises:
        ValueError: the batch has no reference log-probs.
    """
    kl_BT = kl_of_tokens(batch, settings)
    return replace(batch, token_rewards=batch.token_rewards - settings.coef * kl_BT)


def kl_of_tokens(batch: TokenBatch, settings: KlRewardConfig) -> Tensor:
    """(B, T) nats, 0 outside the loss mask."""
    if batch.ref_logprobs is None:
        raise ValueError("reward.kl is set, but the batch has no reference log-probs")
    old_BT = batch.behaviour_logprobs if batch.old_logprobs is None else batch.old_logprobs
    difference_BT = log_ratio(old_BT, batch.ref_logprobs)
    return kl_value(difference_BT, settings.estimator) * batch.loss_mask


def mean_kl(batch: TokenBatch, settings: KlRewardConfig) -> float:
    """Nats per token: the mean over trajectories of each one's mean; NaN without sampled tokens."""
    if not batch.num_rows:
        return math.nan
    kl_B = kl_of_tokens(batch, settings).double().sum(1)
    share_B = kl_B / batch.trajectory_num_tokens.double()
    return float(share_B.sum()) / len(torch.unique(batch.trajectory_index))
