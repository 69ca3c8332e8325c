"""The loss of an optimizer step, as separate terms that add up over microbatches.

Legend: **B** rows, **T** row length, **L** sampled tokens, flat. There is no second copy of the
loss: training sums the terms, the gradient diagnostics differentiate them one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.loss import (
    CispoLossConfig,
    ClipLossConfig,
    CustomLossConfig,
    GspoLossConfig,
    LossConfig,
)
from ..config.settings import OffPolicyConfig
from ..plugins.calls import LossInputs, token_losses
from .batch import PolicyOutputs, TokenBatch
from .kl import kl_penalty, kl_value, log_ratio
from .off_policy import correct, old_logprobs

AS_SAMPLED = OffPolicyConfig()
"""The policy that sampled is the old one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """What the sums of an optimizer step are divided by, whatever its microbatches look like."""

    num_tokens: int
    """Sampled tokens."""
    num_trajectories: int
    norm_tokens: int
    """Divisor of `seq_mean_token_sum_norm`: a constant of the run, see `RunConfig.norm_tokens`."""

    @classmethod
    def of(cls, batch: TokenBatch, norm_tokens: int) -> Denominators:
        """Of all rows of one optimizer step. Trajectories must be whole."""
        return cls(
            num_tokens=batch.num_loss_tokens,
            num_trajectories=len(set(batch.trajectory_index.tolist())),
            norm_tokens=norm_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossTerms:
    """Scalars, already weighted and divided by the optimizer step's denominators."""

    named: Mapping[str, Tensor]
    """`policy`; `kl`, `entropy` (minus the entropy bonus) and `value` where they are present."""
    metrics: Mapping[str, Tensor]
    """Detached sums; those of the microbatches are added up. See `metrics.py`."""
    maxima: Mapping[str, Tensor]
    """Detached maxima; the largest over the microbatches counts."""

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.named.values())).sum()


def compute_loss(
    outputs: PolicyOutputs,
    batch: TokenBatch,
    config: LossConfig,
    denominators: Denominators,
    off_policy: OffPolicyConfig = AS_SAMPLED,
) -> LossTerms:
    """The loss terms of some rows of an optimizer step.

    The sum over any split of the step's rows into microbatches is the loss of the whole step.

    Args:
        outputs: Of a forward pass over `batch`, with gradient.
        batch: With advantages; with `ref_logprobs` for a KL penalty, `returns` for a value loss.
        config: The loss. A coefficient of 0 leaves its term out.
        denominators: Of the whole optimizer step.
        off_policy: What the ratio is taken to, and how samples of another policy are weighted.

    Raises:
        UserCodeError: a loss of the user's own failed.
    """
    assert batch.advantages is not None
    tokens = batch.loss_mask.flatten().nonzero()[:, 0]

    def at_tokens(values_BT: Tensor) -> Tensor:
        return values_BT.flatten()[tokens]

    row_L = tokens // batch.loss_mask.shape[1]
    logprobs_L = at_tokens(outputs.logprobs)
    old_L = at_tokens(old_logprobs(outputs, batch, off_policy))
    correction = correct(old_L, batch, off_policy)
    entropies_L = at_tokens(outputs.entropies)
    weight_L = token_weights(batch, row_L, config, denominators)
    advantages_L = at_tokens(batch.advantages)
    if isinstance(config, CustomLossConfig):
        loss_L, ratio_L, cuts = own_loss(outputs, batch, old_L, config)
    else:
        loss_L, ratio_L, cuts = policy_loss(logprobs_L, old_L, advantages_L, row_L, config)
    # KL(old || policy) at tokens that the old policy sampled.
    drift_L = kl_value(log_ratio(old_L, logprobs_L).detach().double(), "k3")
    sums = {
        "num_tokens": _sum(torch.ones_like(ratio_L)),
        "ratio": _sum(ratio_L),
        "approx_kl": _sum(drift_L),
        "advantage": _sum(advantages_L),
        "advantage_squared": _sum(advantages_L.double().square()),
        "entropy": _sum(entropies_L),
        **cuts,
        **correction.sums,
    }
    if correction.surrogate_L is not None:
        loss_L = correction.surrogate_L * loss_L
    policy = (weight_L * loss_L).sum()
    entropy = kl = value = None
    if config.entropy_coef:
        entropy = -config.entropy_coef * (weight_L * entropies_L).sum()
    if batch.ref_logprobs is not None:
        ref_L = at_tokens(batch.ref_logprobs)
        kl_L = kl_penalty(
            logprobs_L,
            ref_L,
            config.kl_estimator,
            behaviour_logprobs=old_L,
            correction=correction.token_L,
        )
        sums["ref_kl"] = _sum(kl_L)
        if config.kl_coef:
            kl = config.kl_coef * (weight_L * kl_L).sum()
    if outputs.values is not None and batch.returns is not None:
        values_L, returns_L = at_tokens(outputs.values), at_tokens(batch.returns)
        old_values_L = None if batch.values is None else at_tokens(batch.values)
        sums |= value_sums(values_L if old_values_L is None else old_values_L, returns_L)
        if config.value_coef:
            value = value_loss(values_L, old_values_L, returns_L, config)
            value = value / max(denominators.num_tokens, 1)
    terms = {"policy": policy, "kl": kl, "entropy": entropy, "value": value}
    named = {name: term for name, term in terms.items() if term is not None}
    sums |= {f"loss_{name}": term.detach().double() for name, term in named.items()}
    maxima = {"ratio": _max(ratio_L), **correction.maxima}
    return LossTerms(named=named, metrics=sums, maxima=maxima)


def token_weights(
    batch: TokenBatch, row_L: Tensor, config: LossConfig, denominators: Denominators
) -> Tensor:
    """(L,) what each token's loss is multiplied by. A sequence is a whole trajectory.

    token_mean: 1 / tokens; seq_mean_token_sum: 1 / trajectories; seq_mean_token_mean:
    1 / (trajectories * tokens of its trajectory); seq_mean_token_sum_norm:
    1 / (trajectories * norm_tokens), a constant (Liu et al. 2025, Dr. GRPO).
    """
    num_trajectories = max(denominators.num_trajectories, 1)
    ones = torch.ones_like(row_L, dtype=batch.behaviour_logprobs.dtype)
    if config.aggregation == "token_mean":
        return ones / max(denominators.num_tokens, 1)
    if config.aggregation == "seq_mean_token_sum":
        return ones / num_trajectories
    if config.aggregation == "seq_mean_token_mean":
        return ones / (num_trajectories * batch.trajectory_num_tokens[row_L])
    return ones / (num_trajectories * denominators.norm_tokens)


def rows_with_gradient(batch: TokenBatch, config: LossConfig) -> Tensor:
    """(B,) False for rows whose loss terms all have a zero gradient, so that no pass is needed.

    The policy term of a token is proportional to its advantage. KL, entropy and value terms, and a
    loss of the user's own, act on every sampled token.
    """
    assert batch.advantages is not None
    acts_everywhere = (
        config.kl_coef
        or config.entropy_coef
        or (batch.values is not None and config.value_coef)
        or isinstance(config, CustomLossConfig)
    )
    chosen = batch.loss_mask if acts_everywhere else (batch.advantages * batch.loss_mask).ne(0)
    return chosen.any(1)


Losses = tuple[Tensor, Tensor, dict[str, Tensor]]
"""(L,) losses, not yet weighted; (L,) importance ratios; numbers of tokens that were cut."""


def importance_ratio(
    logprobs_L: Tensor, old_L: Tensor, row_L: Tensor, config: LossConfig
) -> Tensor:
    """(L,) pi / old, with gradient. GSPO: the geometric mean over the token's row.

    GSPO's ratio has the value s = exp(mean over the row of log pi - log old) at every token,
    and at token t the gradient s grad log pi_t (GSPO-token, Zheng et al. 2025, equation 13). With
    one advantage for the row this is exactly the gradient through the mean; with several, each
    token keeps its own.
    """
    log_ratio_L = log_ratio(logprobs_L, old_L)
    if not isinstance(config, GspoLossConfig) or row_L.numel() == 0:
        return log_ratio_L.exp()
    size = int(row_L.max()) + 1
    zeros = log_ratio_L.new_zeros(size)
    count = zeros.index_add(0, row_L, torch.ones_like(log_ratio_L)).clamp(min=1)
    mean = zeros.index_add(0, row_L, log_ratio_L.detach()) / count
    return (mean[row_L] + log_ratio_L - log_ratio_L.detach()).exp()


def policy_loss(
    logprobs_L: Tensor,
    old_L: Tensor,
    advantages_L: Tensor,
    row_L: Tensor,
    config: ClipLossConfig | GspoLossConfig | CispoLossConfig,
) -> Losses:
    """The surrogate at every token, to be minimised.

    clip: max(-A r, -A clip(r, 1 - low, 1 + high)), and for A < 0 no more than -A c with dual clip
    (Schulman et al. 2017; Ye et al. 2020). gspo: the same with the sequence's ratio, without dual
    clip. cispo: -A stop(clip(r)) log pi (MiniMax 2025): every token keeps a gradient. The paper has
    no lower bound, which is `clip_low` 1.
    """
    ratio_L = importance_ratio(logprobs_L, old_L, row_L, config)
    low, high = 1 - config.clip_low, 1 + config.clip_high
    clipped_L = ratio_L.clamp(low, high)
    if config.kind == "cispo":
        loss_L = -advantages_L * clipped_L.detach() * logprobs_L
        cut_low, cut_high = ratio_L < low, ratio_L > high
    else:
        loss_L = torch.maximum(-advantages_L * ratio_L, -advantages_L * clipped_L)
        cut_low = (ratio_L < low) & (advantages_L < 0)
        cut_high = (ratio_L > high) & (advantages_L > 0)
    cut_dual = torch.zeros_like(cut_low)
    if isinstance(config, ClipLossConfig) and config.dual_clip is not None:
        cut_dual = (ratio_L > config.dual_clip) & (advantages_L < 0)
        ceiling_L = -advantages_L * config.dual_clip
        loss_L = torch.where(advantages_L < 0, torch.minimum(loss_L, ceiling_L), loss_L)
    cuts = {"clip_low": _sum(cut_low), "clip_high": _sum(cut_high), "clip_dual": _sum(cut_dual)}
    return loss_L, ratio_L, cuts


def own_loss(
    outputs: PolicyOutputs, batch: TokenBatch, old_L: Tensor, config: CustomLossConfig
) -> Losses:
    """The user's loss at every token. What it clips is not known, so that is NaN."""
    mask = batch.loss_mask
    assert batch.advantages is not None
    inputs = LossInputs(
        logprobs_L=outputs.logprobs[mask],
        entropies_L=outputs.entropies[mask],
        old_logprobs_L=old_L,
        behaviour_logprobs_L=batch.behaviour_logprobs[mask],
        advantages_L=batch.advantages[mask],
        ref_logprobs_L=None if batch.ref_logprobs is None else batch.ref_logprobs[mask],
        rows_L=mask.nonzero()[:, 0],
        turns_L=batch.turn_index[mask],
    )
    logprobs_L = inputs.logprobs_L
    loss_L = token_losses(config, inputs) if logprobs_L.numel() else logprobs_L
    nan = logprobs_L.new_tensor(math.nan, dtype=torch.float64)
    cuts = dict.fromkeys(("clip_low", "clip_high", "clip_dual"), nan)
    return loss_L, log_ratio(logprobs_L, old_L).exp(), cuts


def value_loss(
    values_L: Tensor, old_values_L: Tensor | None, returns_L: Tensor, config: LossConfig
) -> Tensor:
    """value_coef / 2 times the sum over tokens of the larger of two squared errors.

    The second is that of the value kept within `value_clip` of the old one (Schulman et al. 2017).
    It is divided by the number of tokens whatever the aggregation: how the policy's loss is
    averaged says nothing about regression.
    """
    error_L = (values_L - returns_L).square()
    if config.value_clip is not None and old_values_L is not None:
        limit = config.value_clip
        near_L = old_values_L + (values_L - old_values_L).clamp(-limit, limit)
        error_L = torch.maximum(error_L, (near_L - returns_L).square())
    return 0.5 * config.value_coef * error_L.sum()


def value_sums(predicted_L: Tensor, returns_L: Tensor) -> dict[str, Tensor]:
    """What explained variance is made of. Old values, where known, have not seen their returns."""
    returns_L = returns_L.double()
    residual_L = returns_L - predicted_L.detach().double()
    return {
        "value": _sum(predicted_L),
        "return": _sum(returns_L),
        "return_squared": _sum(returns_L.square()),
        "residual": _sum(residual_L),
        "residual_squared": _sum(residual_L.square()),
    }


def _sum(values_L: Tensor) -> Tensor:
    return values_L.detach().sum(dtype=torch.float64)


def _max(values_L: Tensor) -> Tensor:
    values = values_L.detach().double()
    return values.max() if values.numel() else values.new_tensor(0.0)
