"""One policy update: minibatches, microbatches with true denominators, the optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from echoscope.store.query.metric_keys import GRAD_NORM

from ..config.settings import RunConfig
from ..optim import Optimizer, OptimizerStep, lr_multiplier
from ..policy import Policy
from .batch import TokenBatch, minibatches, select_rows
from .kl import mismatch_kl
from .losses import Denominators, compute_loss, rows_with_gradient
from .metrics import MetricTotals
from .off_policy import needs_old_logprobs, with_old_logprobs

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Metrics of the step's optimizer steps, and what the first forward pass saw."""

    metrics: dict[str, float]
    version: int
    """Of the weights before them."""
    num_skipped: int
    """Optimizer steps skipped because of a NaN or infinite gradient."""
    trainer_logprobs: Tensor | None
    """(B, T) at the weights that sampled, NaN at sampled tokens of rows that needed no pass; None
    if weights moved before every row was seen."""


def annotate(
    policy: Policy, batch: TokenBatch, config: RunConfig
) -> tuple[TokenBatch, Tensor | None]:
    """Reference log-probs, old log-probs and values, where the algorithm needs them.

    Call it before the update. Also returns the trainer's log-probs (B, T) where several optimizer
    steps move the weights, or a correction needs them; with a single optimizer step, the update's
    own forward pass gives them.
    """
    wants_ref = config.loss.kl_coef > 0 or config.reward.kl is not None
    wants_logprobs = updates_per_step(config) > 1 or needs_old_logprobs(batch, config.off_policy)
    if config.reward.kl is not None and config.off_policy.old_logprobs == "trainer":
        wants_logprobs = True  # the penalty is known before the update's own pass
    wants_values = policy.critic is not None
    if not (wants_ref or wants_values or wants_logprobs):
        return batch, None
    logprobs = torch.zeros_like(batch.behaviour_logprobs)
    values, ref = torch.zeros_like(logprobs), torch.zeros_like(logprobs)

    @torch.no_grad()
    def fill() -> None:
        for micro, rows in policy.microbatches(batch, config.optim):
            if wants_logprobs:
                outputs = policy.outputs(micro)
                logprobs[rows, : micro.width] = outputs.logprobs
                if outputs.values is not None:
                    values[rows, : micro.width] = outputs.values
            elif wants_values:
                values[rows, : micro.width] = policy.values(micro)
            if wants_ref:
                ref[rows, : micro.width] = policy.reference_logprobs(micro)

    retrying(fill, policy, config)
    for filled in (logprobs, values, ref):
        policy.world.sum_(filled)  # each rank has filled its own rows
    annotated = replace(
        batch,
        values=values if wants_values else None,
        ref_logprobs=ref if wants_ref else None,
    )
    if not wants_logprobs:
        return annotated, None
    if config.off_policy.old_logprobs == "trainer":
        annotated = with_old_logprobs(annotated, logprobs)
    return annotated, logprobs


def update(
    policy: Policy, optimizer: Optimizer, batch: TokenBatch, config: RunConfig, step: int
) -> UpdateResult:
    """Train on a step's batch: `epochs` passes of `minibatches` optimizer steps.

    Rows are used in their order, none twice in a pass. A NaN or infinite gradient skips its
    optimizer step and leaves the weights as they were; a policy gradient of zero leaves the policy
    as it was.
    """
    lrs = _learning_rates(config, step)
    totals, done, version = MetricTotals(), [], policy.version
    only_critic = step <= config.critic_warmup_steps
    logprobs = torch.zeros_like(batch.behaviour_logprobs)
    for _ in range(config.optim.epochs if batch.num_rows else 0):
        for part, rows in minibatches(batch, config.optim.minibatches):
            logprobs[rows, : part.width] = _accumulate(
                policy, optimizer, part, config, totals, only_critic
            )
            groups = ("critic_trunk", "critic_head") if only_critic else None
            done.append(optimizer.step(lrs=lrs, grad_clip=config.optim.grad_clip, only=groups))
            policy.version += "policy" in done[-1].moved
    is_single = updates_per_step(config) == 1
    num_skipped = sum(minibatch.is_skipped for minibatch in done)
    num_updates = sum("policy" in minibatch.moved for minibatch in done)
    num_tried = sum("policy" in minibatch.grad_norms or minibatch.is_skipped for minibatch in done)
    totals.sum_over(policy.world)
    metrics = totals.result(num_updates=max(len(done), 1))
    metrics |= _grad_norms(done, has_critic=policy.critic is not None)
    metrics |= {
        "optim/lr": lrs["policy"],
        "optim/num_updates": float(num_updates),
        "optim/num_skipped": float(num_skipped),
        "optim/num_without_gradient": float(num_tried - num_updates - num_skipped),
        "optim/num_tokens": float(batch.num_loss_tokens),
        "optim/num_forwarded_tokens": float(totals.num_forwarded),
        "optim/num_oom_retries": float(policy.take_num_shrunk()),
    }
    if policy.critic is not None:
        metrics["optim/critic_lr"] = lrs["critic_head"]
    return UpdateResult(
        metrics=metrics,
        version=version,
        num_skipped=num_skipped,
        trainer_logprobs=logprobs if is_single and batch.num_rows else None,
    )


MISMATCH_METRICS = (
    "policy/mismatch_kl",
    "policy/mismatch_logprob_mean",
    "policy/mismatch_logprob_max",
    "policy/mismatch_ratio_mean",
    "policy/mismatch_effective_frac",
)


def mismatch_metrics(
    trainer_logprobs: Tensor | None, batch: TokenBatch, is_fresh: Tensor | None = None
) -> dict[str, float]:
    """How far the sampler is from the trainer on the same tokens and weights; NaN if unknown.

    Tokens whose trainer log-prob is NaN, because no pass computed it, do not count.

    Args:
        is_fresh: (B, T) tokens that the trainer's own version of the weights sampled; None for
            all. The others tell how far the policy has moved (`policy/stale_kl`), and nothing of
            the sampler.
    """
    out = dict.fromkeys(MISMATCH_METRICS, math.nan)
    if trainer_logprobs is None:
        return out
    has_logprob = batch.loss_mask & ~trainer_logprobs.isnan()
    mask = has_logprob if is_fresh is None else has_logprob & is_fresh
    stale = has_logprob & ~mask
    if stale.any():
        out["policy/stale_kl"] = mismatch_kl(trainer_logprobs, batch.behaviour_logprobs, stale)
    if not mask.any():
        return out
    gaps = (trainer_logprobs - batch.behaviour_logprobs)[mask].double()
    weights = (gaps - gaps.max()).exp()
    return out | {
        "policy/mismatch_kl": mismatch_kl(trainer_logprobs, batch.behaviour_logprobs, mask),
        "policy/mismatch_logprob_mean": float(gaps.abs().mean()),
        "policy/mismatch_logprob_max": float(gaps.abs().max()),
        "policy/mismatch_ratio_mean": float(gaps.exp().mean()),
        # Of weights w, (sum w)^2 / (n sum w^2). The largest is divided out: exp cannot overflow.
        "policy/mismatch_effective_frac": float(
            weights.sum().square() / weights.square().sum() / len(gaps)
        ),
    }


def updates_per_step(config: RunConfig) -> int:
    """Optimizer steps of a training step."""
    return config.optim.epochs * config.optim.minibatches


def _learning_rates(config: RunConfig, step: int) -> dict[str, float]:
    factor = lr_multiplier(config.optim, step, config.steps)
    critic = 0.0 if config.critic.kind == "none" else config.critic.lr * factor
    return {
        "policy": 0.0 if step <= config.critic_warmup_steps else config.optim.lr * factor,
        "critic_trunk": critic,
        "critic_head": critic,
    }


def _grad_norms(done: Sequence[OptimizerStep], *, has_critic: bool) -> dict[str, float]:
    """Mean over optimizer steps of the gradient norms before clipping; NaN without any.

    `optim/grad_norm` is the policy's. `optim/critic_grad_norm` is that of all weights of the
    critic, and a critic with a trunk of its own has `optim/critic_head_grad_norm` beside it.
    """

    def mean(norms: Sequence[float]) -> float:
        return sum(norms) / len(norms) if norms else math.nan

    norms = [result.grad_norms for result in done]
    out = {GRAD_NORM: mean([each["policy"] for each in norms if "policy" in each])}
    of_critic = [each for each in norms if "critic_head" in each]
    if has_critic:
        parts = [[n for k, n in each.items() if k != "policy"] for each in of_critic]
        out["optim/critic_grad_norm"] = mean([math.hypot(*part) for part in parts])
    if any("critic_trunk" in each for each in of_critic):
        out["optim/critic_head_grad_norm"] = mean([each["critic_head"] for each in of_critic])
    return out


def _accumulate(
    policy: Policy,
    optimizer: Optimizer,
    batch: TokenBatch,
    config: RunConfig,
    totals: MetricTotals,
    only_critic: bool,
) -> Tensor:
    """Add up the gradient of one optimizer step; its log-probs (B, T), detached.

    Rows that have no gradient are left out; the log-probs of their sampled tokens are NaN. With
    `only_critic` the policy's part of the loss is measured, and trains nothing. If memory runs out
    it is done once more from the start: a failed backward pass leaves part of its gradient behind.
    """
    loss, before = config.loss, totals.copy()
    denominators = Denominators.of(batch, config.norm_tokens)
    with_gradient_B = rows_with_gradient(batch, loss)
    chosen = with_gradient_B.nonzero()[:, 0]

    def work() -> Tensor:
        logprobs = torch.zeros_like(batch.behaviour_logprobs)
        totals.num_idle += int(batch.loss_mask[~with_gradient_B].sum())
        parts = policy.microbatches(select_rows(batch, chosen), config.optim)
        for index, (micro, rows) in enumerate(parts):
            policy.sums_gradients(is_last=index == len(parts) - 1)
            outputs = policy.outputs(micro)
            terms = compute_loss(outputs, micro, loss, denominators, config.off_policy)
            trains = terms.named.get("value") if only_critic else terms.total
            if trains is not None:
                trains.backward()
                optimizer.accumulate()
            totals.add(terms)
            if len(rows):
                totals.add_forwarded(outputs.num_forwarded, micro)
                logprobs[chosen[rows], : micro.width] = outputs.logprobs.detach()
        idle_BT = batch.loss_mask & ~with_gradient_B[:, None]
        return policy.world.sum_(logprobs).masked_fill_(idle_BT, math.nan)

    def forget() -> None:
        optimizer.zero_grad()
        totals.take_back(before)

    return retrying(work, policy, config, forget=forget)


def retrying(
    work: Callable[[], _T],
    policy: Policy,
    config: RunConfig,
    *,
    forget: Callable[[], None] = lambda: None,
    where: str = "the update",
) -> _T:
    """What `work` gives; out of memory, once more with a quarter of the tokens per forward pass.

    Args:
        forget: undoes what a failed `work` left behind.
        where: names the work where memory runs out again.

    Raises:
        torch.OutOfMemoryError: memory ran out twice, or on one of several ranks.
    """
    try:
        return work()
    except torch.OutOfMemoryError:
        if not policy.world.is_alone:  # the others wait in a collective that this rank has left
            raise torch.OutOfMemoryError(
                f"memory ran out in {where} on rank {policy.world.rank}: resume with "
                f"optim.max_microbatch_tokens below {policy.microbatch_tokens(config.optim)}, or "
                "with more ranks"
            ) from None
        forget()
    # Outside of the handler, whose traceback would hold on to the activations.
    policy.shrink(config.optim)
    try:
        return work()
    except torch.OutOfMemoryError:
        raise torch.OutOfMemoryError(
            f"memory ran out in {where}, even with {policy.most_tokens} tokens per forward "
            "pass: set model.gradient_checkpointing=true or model.lora, or choose a smaller "
            "model.path"
        ) from None
