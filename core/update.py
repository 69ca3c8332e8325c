"""One policy update: minibatches, microbatches with true denominators, the optimizer step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .batch import TokenBatch, microbatches, minibatches
from .config import RunConfig
from .kl import mismatch_kl
from .loss_metrics import MetricTotals
from .losses import Denominators, compute_loss
from .optim import Optimizer, lr_multiplier
from .policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Metrics of the step's optimizer steps, and what the first forward pass saw."""

    metrics: dict[str, float]
    num_skipped: int
    """Optimizer steps skipped because of a NaN or infinite gradient."""
    trainer_logprobs: Tensor | None
    """(B, T) at the weights that sampled; None if weights moved before every row was seen."""


def annotate(
    policy: Policy, batch: TokenBatch, config: RunConfig
) -> tuple[TokenBatch, Tensor | None]:
    """Reference log-probs and values, where the algorithm needs them, before the update.

    Also returns log-probs (B, T) at the weights that sampled, unless the update's own forward
    pass will give them.
    """
    wants_ref = config.loss.kl_coef > 0
    wants_values = policy.critic is not None
    if not (wants_ref or wants_values or _num_updates(config) > 1):
        return batch, None
    temperature = config.sampling.temperature
    logprobs = torch.zeros_like(batch.behaviour_logprobs)
    values, ref = torch.zeros_like(logprobs), torch.zeros_like(logprobs)
    with torch.no_grad():
        for micro, rows in microbatches(batch, config.optim.microbatch_tokens(policy.device.type)):
            outputs = policy.outputs(micro, temperature=temperature)
            logprobs[rows, : micro.width] = outputs.logprobs
            if outputs.values is not None:
                values[rows, : micro.width] = outputs.values
            if wants_ref:
                scored = policy.reference_logprobs(micro, temperature=temperature)
                ref[rows, : micro.width] = scored
    annotated = replace(
        batch,
        values=values if wants_values else None,
        ref_logprobs=ref if wants_ref else None,
    )
    return annotated, logprobs


def update(
    policy: Policy, optimizer: Optimizer, batch: TokenBatch, config: RunConfig, step: int
) -> UpdateResult:
    """Train on a step's batch: `epochs` passes of `minibatches` optimizer steps.

    Rows are used in their order, none twice in a pass. A NaN or infinite gradient skips its
    optimizer step and leaves the weights as they were.
    """
    lrs = _learning_rates(config, step)
    totals, norms, num_skipped = MetricTotals(), [], 0
    logprobs = torch.zeros_like(batch.behaviour_logprobs)
    if batch.num_rows:
        for _ in range(config.optim.epochs):
            for part, rows in minibatches(batch, config.optim.minibatches):
                logprobs[rows, : part.width] = _accumulate(policy, optimizer, part, config, totals)
                done = optimizer.step(lrs=lrs, grad_clip=config.optim.grad_clip)
                norms.append(done.grad_norm)
                num_skipped += done.is_skipped
                policy.version += not done.is_skipped
    is_single = _num_updates(config) == 1
    metrics = totals.result(num_updates=max(len(norms), 1))
    metrics |= {
        "optim/grad_norm": sum(norms) / len(norms) if norms else math.nan,
        "optim/lr": lrs["policy"],
        "optim/num_updates": float(len(norms) - num_skipped),
        "optim/num_skipped": float(num_skipped),
        "optim/num_tokens": float(batch.num_loss_tokens),
    }
    return UpdateResult(
        metrics=metrics,
        num_skipped=num_skipped,
        trainer_logprobs=logprobs if is_single and batch.num_rows else None,
    )


def mismatch_metrics(trainer_logprobs: Tensor | None, batch: TokenBatch) -> dict[str, float]:
    """How far the sampler is from the trainer on the same tokens and weights; NaN if unknown."""
    if trainer_logprobs is None or not batch.num_loss_tokens:
        return {"policy/mismatch_kl": math.nan, "policy/mismatch_logprob_max": math.nan}
    mask = batch.loss_mask
    gap = (trainer_logprobs - batch.behaviour_logprobs)[mask].abs().max()
    return {
        "policy/mismatch_kl": mismatch_kl(trainer_logprobs, batch.behaviour_logprobs, mask),
        "policy/mismatch_logprob_max": float(gap),
    }


def _num_updates(config: RunConfig) -> int:
    return config.optim.epochs * config.optim.minibatches


def _learning_rates(config: RunConfig, step: int) -> dict[str, float]:
    factor = lr_multiplier(config.optim, step, config.steps)
    critic = 0.0 if config.critic.kind == "none" else config.critic.lr
    return {"policy": config.optim.lr * factor, "critic": critic * factor}


def _accumulate(
    policy: Policy,
    optimizer: Optimizer,
    batch: TokenBatch,
    config: RunConfig,
    totals: MetricTotals,
) -> Tensor:
    """Add up the gradient of one optimizer step; its log-probs (B, T), detached."""
    denominators = Denominators.of(batch)
    logprobs = torch.zeros_like(batch.behaviour_logprobs)
    for micro, rows in microbatches(batch, config.optim.microbatch_tokens(policy.device.type)):
        outputs = policy.outputs(micro, temperature=config.sampling.temperature)
        terms = compute_loss(outputs, micro, config.loss, denominators)
        terms.total.backward()
        optimizer.accumulate()
        totals.add(terms)
        logprobs[rows, : micro.width] = outputs.logprobs.detach()
    return logprobs
