"""Estimates of KL divergences from sampled tokens, and a KL penalty whose gradient is right.

With d = log pi(x) - log pi_ref(x) at a sampled token x ~ pi, three estimates of KL(pi || pi_ref)
are in use (Schulman 2020): k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. Differentiated as they stand
they pull in three directions: k1 nowhere on average, k3 along the gradient of the *other* KL,
KL(pi_ref || pi), and only k2 along the gradient of KL(pi || pi_ref), which is E[d grad log pi].
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..config.settings import KlRewardConfig
from .batch import TokenBatch

KlEstimator = Literal["k1", "k2", "k3"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to plus and minus this before they are exponentiated."""
MAX_KL_WEIGHT = 10.0
"""Importance weights of the KL penalty stop growing here."""


def log_ratio(logprobs: Tensor, other: Tensor) -> Tensor:
    """log p - log q, clamped. Without gradient where the clamp is active."""
    return (logprobs - other).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def kl_value(difference: Tensor, estimator: KlEstimator) -> Tensor:
    """The estimate of KL(p || q) at tokens sampled from p, from their log p - log q."""
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return 0.5 * difference.square()
    return torch.expm1(-difference) + difference


def kl_penalty(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    estimator: KlEstimator,
    *,
    behaviour_logprobs: Tensor,
    correction: Tensor | None = None,
) -> Tensor:
    """Per-token KL(pi || pi_ref): the estimator's value with the gradient of the KL itself.

    The gradient of every estimator is w d grad log pi, with d = log pi - log pi_ref and
    w = pi / behaviour, the importance weight of a token that an older policy sampled. Its
    expectation over the sampled token is exactly grad KL(pi || pi_ref) of that token's context
    (with the contexts held fixed, as in every per-token penalty). The value is w times the
    estimator's.

    Args:
        logprobs: Of the policy, with gradient.
        ref_logprobs: Of the reference policy, same shape.
        estimator: What the value is; it does not touch the gradient.
        behaviour_logprobs: Of the policy that sampled. Weights above 10 count as 10.
        correction: What pi / behaviour is multiplied by where the behaviour policy is only close
            to the one that sampled (see `off_policy.py`); None for 1.
    """
    difference = log_ratio(logprobs, ref_logprobs).detach()
    weight = log_ratio(logprobs, behaviour_logprobs).detach().exp()
    if correction is not None:
        weight = weight * correction
    weight = weight.clamp(max=MAX_KL_WEIGHT)
    pull = weight * difference * logprobs
    return weight * kl_value(difference, estimator) + pull - pull.detach()


def mismatch_kl(trainer_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor) -> float:
    """KL(behaviour || trainer) per sampled token, k3 in float64: sampler against trainer.

    Mean over the masked tokens of r - 1 - log r with r = trainer / behaviour. NaN without tokens,
    infinite where the trainer gives a sampled token probability 0.
    """
    difference = behaviour_logprobs[mask].double() - trainer_logprobs[mask].double()
    return float(kl_value(difference, "k3").mean())


# -- a penalty in the reward; B rows, T row length ---------------------------------------------


def penalize(batch: TokenBatch, settings: KlRewardConfig) -> TokenBatch:
    """The batch with `token_rewards` less the penalty of each sampled token: r - coef * k.

    k estimates its KL to the reference policy from log p(old) - log p(reference), without gradient
    (Ziegler et al. 2019, arXiv 1909.08593; REINFORCE++, arXiv 2501.03262). The old policy is the
    one that sampled, or the trainer before the update (`off_policy.old_logprobs`).
    """
    kl_BT = kl_of_tokens(batch, settings)
    return replace(batch, token_rewards=batch.token_rewards - settings.coef * kl_BT)


def kl_of_tokens(batch: TokenBatch, settings: KlRewardConfig) -> Tensor:
    """(B, T) nats, 0 outside the loss mask."""
    assert batch.ref_logprobs is not None
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
