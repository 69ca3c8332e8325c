"""A KL penalty in the reward, with a fixed or an adaptive coefficient.

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

from ..config.settings import KlRewardConfig, RunConfig
from .batch import TokenBatch
from .kl import kl_value, log_ratio

_MAX_ERROR = 0.2
"""The relative distance from the target counts as no more than this (Ziegler et al. 2019)."""


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


def next_coef(settings: KlRewardConfig, kl: float, num_trajectories: int) -> float:
    """The coefficient of the next step.

    coef * (1 + e * n / horizon), where e = kl / target - 1 lies in [-0.2, 0.2] and n is the number
    of trajectories. A fixed coefficient, or a KL that is not known, changes nothing.
    """
    if settings.target is None or not math.isfinite(kl):
        return settings.coef
    error = min(max(kl / settings.target - 1, -_MAX_ERROR), _MAX_ERROR)
    return settings.coef * max(1 + error * num_trajectories / settings.horizon, 0.0)


def with_coef(config: RunConfig, coef: float | None) -> RunConfig:
    """The configuration of a step whose penalty has this coefficient; None leaves it."""
    settings = config.reward.kl
    if settings is None or coef is None:
        return config
    reward = config.reward.model_copy(update={"kl": settings.model_copy(update={"coef": coef})})
    return config.model_copy(update={"reward": reward})
