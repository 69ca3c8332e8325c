"""The loss of an optimizer step, as separate terms that add up over microbatches.

Legend: **B** rows, **T** row length, **L** sampled tokens, flat. There is no second copy of the
loss: training sums the terms, the gradient diagnostics differentiate them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import PolicyOutputs, TokenBatch
from .config import ClipLossConfig, GspoLossConfig, LossConfig
from .kl import kl_penalty, kl_value, log_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """What the sums of an optimizer step are divided by, whatever its microbatches look like."""

    num_tokens: int
    """Sampled tokens."""
    num_trajectories: int
    max_trajectory_tokens: int
    """Sampled tokens of the longest trajectory."""

    @classmethod
    def of(cls, batch: TokenBatch) -> Denominators:
        """Of all rows of one optimizer step. Trajectories must be whole."""
        lengths = batch.trajectory_num_tokens
        return cls(
            num_tokens=batch.num_loss_tokens,
            num_trajectories=len(set(batch.trajectory_index.tolist())),
            max_trajectory_tokens=int(lengths.max()) if lengths.numel() else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossTerms:
    """Scalars, already weighted and divided by the optimizer step's denominators. Absent: None."""

    policy: Tensor
    kl: Tensor | None
    entropy: Tensor | None
    """Minus the entropy bonus."""
    value: Tensor | None
    metrics: Mapping[str, Tensor]
    """Detached sums; those of the microbatches are added up. See `loss_metrics.py`."""
    maxima: Mapping[str, Tensor]
    """Detached maxima; the largest over the microbatches counts."""

    @property
    def named(self) -> dict[str, Tensor]:
        """The terms that are present, by name."""
        terms = {
            "policy": self.policy,
            "kl": self.kl,
            "entropy": self.entropy,
            "value": self.value,
        }
        return {name: term for name, term in terms.items() if term is not None}

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.named.values())).sum()


def compute_loss(
    outputs: PolicyOutputs, batch: TokenBatch, config: LossConfig, denominators: Denominators
) -> LossTerms:
    """The loss terms of some rows of an optimizer step.

    The sum over any split of the step's rows into microbatches is the loss of the whole step.

    Args:
        outputs: Of a forward pass over `batch`, with gradient.
        batch: With advantages; with `ref_logprobs` for a KL penalty, `returns` for a value loss.
        config: The loss. A coefficient of 0 leaves its term out.
        denominators: Of the whole optimizer step.

    Raises:
        ValueError: the batch lacks what the loss needs.
    """
    if batch.advantages is None:
        raise ValueError("the batch has no advantages: call estimate_advantages on the step first")
    mask = batch.loss_mask
    row_L = mask.nonzero()[:, 0]
    logprobs_L = outputs.logprobs[mask]
    behaviour_L = batch.behaviour_logprobs[mask]
    weight_L = token_weights(batch, row_L, config, denominators)
    surrogate = policy_loss(logprobs_L, behaviour_L, batch.advantages[mask], row_L, config)
    sums, maxima = surrogate.metrics, surrogate.maxima
    policy = (weight_L * surrogate.loss_L).sum()
    entropies_L = outputs.entropies[mask]
    sums["entropy"] = _sum(entropies_L)
    entropy = -config.entropy_coef * (weight_L * entropies_L).sum() if config.entropy_coef else None
    kl = None
    if batch.ref_logprobs is not None:
        ref_L = batch.ref_logprobs[mask]
        kl_L = kl_penalty(logprobs_L, ref_L, config.kl_estimator, behaviour_logprobs=behaviour_L)
        sums["ref_kl"] = _sum(kl_L)
        kl = config.kl_coef * (weight_L * kl_L).sum() if config.kl_coef else None
    elif config.kl_coef:
        raise ValueError(
            f"loss.kl_coef is {config.kl_coef}, but the batch has no reference log-probs: score it "
            "with the reference policy, or set loss.kl_coef to 0"
        )
    value = None
    if outputs.values is not None and batch.returns is not None:
        value = value_loss(
            outputs.values[mask],
            None if batch.values is None else batch.values[mask],
            batch.returns[mask],
            config,
            denominators,
            sums,
        )
    for name, term in (("policy", policy), ("kl", kl), ("entropy", entropy), ("value", value)):
        if term is not None:
            sums[f"loss_{name}"] = term.detach().double()
    return LossTerms(
        policy=policy, kl=kl, entropy=entropy, value=value, metrics=sums, maxima=maxima
    )


def token_weights(
    batch: TokenBatch, row_L: Tensor, config: LossConfig, denominators: Denominators
) -> Tensor:
    """(L,) what each token's loss is multiplied by. A sequence is a whole trajectory.

    token_mean: 1 / tokens; seq_mean_token_sum: 1 / trajectories; seq_mean_token_mean:
    1 / (trajectories * tokens of its trajectory); seq_mean_token_sum_norm:
    1 / (trajectories * tokens of the longest trajectory).
    """
    num_trajectories = max(denominators.num_trajectories, 1)
    ones = torch.ones_like(row_L, dtype=batch.behaviour_logprobs.dtype)
    if config.aggregation == "token_mean":
        return ones / max(denominators.num_tokens, 1)
    if config.aggregation == "seq_mean_token_sum":
        return ones / num_trajectories
    if config.aggregation == "seq_mean_token_mean":
        return ones / (num_trajectories * batch.trajectory_num_tokens[row_L])
    return ones / (num_trajectories * max(denominators.max_trajectory_tokens, 1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surrogate:
    loss_L: Tensor  # (L,) not yet weighted
    metrics: dict[str, Tensor]
    maxima: dict[str, Tensor]


def importance_ratio(
    logprobs_L: Tensor, behaviour_L: Tensor, row_L: Tensor, config: LossConfig
) -> Tensor:
    """(L,) pi / behaviour, with gradient. GSPO: the geometric mean over the token's row.

    GSPO's ratio has the value s = exp(mean over the row of log pi - log behaviour) at every token,
    and at token t the gradient s grad log pi_t (GSPO-token, Zheng et al. 2025, equation 13). With
    one advantage for the row this is exactly the gradient through the mean; with several, each
    token keeps its own.
    """
    log_ratio_L = log_ratio(logprobs_L, behaviour_L)
    if not isinstance(config, GspoLossConfig):
        return log_ratio_L.exp()
    if row_L.numel() == 0:
        return log_ratio_L.exp()
    size = int(row_L.max()) + 1
    zeros = log_ratio_L.new_zeros(size)
    count = zeros.index_add(0, row_L, torch.ones_like(log_ratio_L)).clamp(min=1)
    mean = zeros.index_add(0, row_L, log_ratio_L.detach()) / count
    return (mean[row_L] + log_ratio_L - log_ratio_L.detach()).exp()


def policy_loss(
    logprobs_L: Tensor, behaviour_L: Tensor, advantages_L: Tensor, row_L: Tensor, config: LossConfig
) -> Surrogate:
    """The surrogate at every token, to be minimised.

    clip: max(-A r, -A clip(r, 1 - low, 1 + high)), and for A < 0 no more than -A c with dual clip
    (Schulman et al. 2017; Ye et al. 2020). gspo: the same with the sequence's ratio, without dual
    clip. cispo: -A stop(clip(r)) log pi (MiniMax 2025): every token keeps a gradient.
    """
    ratio_L = importance_ratio(logprobs_L, behaviour_L, row_L, config)
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
    # KL(behaviour || policy) at tokens that the behaviour policy sampled.
    drift_L = kl_value(log_ratio(behaviour_L, logprobs_L).detach().double(), "k3")
    metrics = {
        "num_tokens": _sum(torch.ones_like(ratio_L)),
        "ratio": _sum(ratio_L),
        "clip_low": _sum(cut_low),
        "clip_high": _sum(cut_high),
        "clip_dual": _sum(cut_dual),
        "approx_kl": _sum(drift_L),
        "advantage": _sum(advantages_L),
        "advantage_squared": _sum(advantages_L.double().square()),
    }
    return Surrogate(loss_L=loss_L, metrics=metrics, maxima={"ratio": _max(ratio_L)})


def value_loss(
    values_L: Tensor,
    old_values_L: Tensor | None,
    returns_L: Tensor,
    config: LossConfig,
    denominators: Denominators,
    sums: dict[str, Tensor],
) -> Tensor | None:
    """value_coef / 2 times the mean over tokens of the larger of two squared errors.

    The second is that of the value kept within `value_clip` of the old one (Schulman et al. 2017).
    Always a mean over tokens: how the policy's loss is aggregated says nothing about regression.
    Adds what explained variance needs to `sums`, from the old values where there are any.
    """
    error_L = (values_L - returns_L).square()
    if config.value_clip is not None and old_values_L is not None:
        limit = config.value_clip
        kept_L = old_values_L + (values_L - old_values_L).clamp(-limit, limit)
        kept_error_L = (kept_L - returns_L).square()
        sums["value_clip"] = _sum(kept_error_L > error_L)
        error_L = torch.maximum(error_L, kept_error_L)
    predicted_L = (values_L if old_values_L is None else old_values_L).detach().double()
    residual_L = returns_L.double() - predicted_L
    sums["value"] = _sum(predicted_L)
    sums["return"] = _sum(returns_L)
    sums["return_squared"] = _sum(returns_L.double().square())
    sums["residual"] = _sum(residual_L)
    sums["residual_squared"] = _sum(residual_L.square())
    if not config.value_coef:
        return None
    return 0.5 * config.value_coef * error_L.sum() / max(denominators.num_tokens, 1)


def _sum(values_L: Tensor) -> Tensor:
    return values_L.detach().sum(dtype=torch.float64)


def _max(values_L: Tensor) -> Tensor:
    values = values_L.detach().double()
    return values.max() if values.numel() else values.new_tensor(0.0)
