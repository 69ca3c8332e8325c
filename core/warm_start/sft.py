"""Warm start: supervised training of a policy on demonstrations.

The loss of a batch is the weighted mean of -log p(x_t | x_<t) over its tokens, with weight 1 on
the tokens of a response and `prompt_weight` on the rest. A batch is a pure function of the seed and
the iteration.

Legend: **B** rows, **T** padded length, **L** length of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from echoscope.diagnostics.config import FrozenModel

from ..config.settings import LoraConfig
from .demonstrations import Row, SftError


class SftConfig(FrozenModel):
    """Settings of a warm start."""

    iterations: int = Field(700, ge=1)
    batch_episodes: int = Field(32, ge=1, description="Episodes per iteration.")
    lr: float = Field(2e-3, gt=0)
    final_lr_frac: float = Field(0.02, ge=0, le=1, description="Where the cosine ends.")
    warmup_frac: float = Field(0.03, ge=0, lt=1)
    betas: tuple[float, float] = Field((0.9, 0.95), strict=False)
    weight_decay: float = Field(0.01, ge=0)
    grad_clip: float = Field(1.0, gt=0)
    prompt_weight: float = Field(0.1, ge=0, le=1, description="Loss weight of prompt tokens.")
    max_row_tokens: int = Field(1024, ge=2, description="A longer episode is an error.")
    microbatch_tokens: int = Field(
        1024, ge=1, description="Padded tokens per forward pass; small parts stay in a CPU's cache."
    )
    seed: int = Field(0, ge=0)
    lora: LoraConfig | None = None
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Of the frozen weights under adapters; else float32."
    )
    device: Literal["auto", "cpu", "cuda"] = "cpu"


def train(
    model: PreTrainedModel | PeftModel,
    rows: Sequence[Row],
    config: SftConfig,
    *,
    on_progress: Callable[[int, float], None] = lambda iteration, loss: None,
) -> list[float]:
    """Train the weights that require gradients, in place; the loss of each iteration, in nats.

    Args:
        model: in float32; with adapters attached if `config.lora` is set.
        on_progress: told the iterations done, and the loss of the last one.

    Raises:
        SftError: no rows, a row that is too long, a loss that is not finite.
    """
    _check_rows(rows, config)
    optimizer = torch.optim.AdamW(
        _parameter_groups(model, config.weight_decay), lr=config.lr, betas=config.betas, fused=True
    )
    losses: list[float] = []
    model.train()
    try:
        for iteration in range(config.iterations):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(iteration, config)
            batch = [rows[index] for index in batch_indices(iteration, len(rows), config)]
            losses.append(_iterate(model, optimizer, batch, iteration, config))
            on_progress(len(losses), losses[-1])
    finally:
        model.eval()
    return losses


def learning_rate(iteration: int, config: SftConfig) -> float:
    """Linear warm-up, then a cosine to `final_lr_frac`. `iteration` counts from 0."""
    warmup = round(config.warmup_frac * config.iterations)
    if iteration < warmup:
        return config.lr * (iteration + 1) / (warmup + 1)
    progress = (iteration - warmup) / max(1, config.iterations - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr * (config.final_lr_frac + (1 - config.final_lr_frac) * cosine)


def batch_indices(iteration: int, num_rows: int, config: SftConfig) -> list[int]:
    """Rows of an iteration: every pass visits each row once, in an order of its own."""
    first = iteration * config.batch_episodes
    orders: dict[int, NDArray[np.int64]] = {}
    picked = []
    for position in range(first, first + config.batch_episodes):
        epoch, offset = divmod(position, num_rows)
        if epoch not in orders:
            orders[epoch] = np.random.default_rng([config.seed, epoch]).permutation(num_rows)
        picked.append(int(orders[epoch][offset]))
    return picked


def batch_loss(model: PreTrainedModel | PeftModel, rows: Sequence[Row]) -> tuple[Tensor, float]:
    """(weighted sum of -log p, sum of the weights) over the rows; scalar tensor and number."""
    lengths = [len(row.tokens) for row in rows]
    tokens = torch.zeros(len(rows), max(lengths), dtype=torch.int64)  # (B, T)
    weights = torch.zeros(len(rows), max(lengths))  # (B, T)
    for index, row in enumerate(rows):
        tokens[index, : lengths[index]] = torch.from_numpy(row.tokens.astype(np.int64))
        weights[index, : lengths[index]] = torch.from_numpy(row.weights.copy())
    device = next(model.parameters()).device
    tokens, weights = tokens.to(device), weights[:, 1:].to(device)
    # Rows are padded on the right, so causality alone keeps padding out.
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float()
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    return (losses * weights.flatten()).sum(), float(weights.sum())


def microbatches(rows: Sequence[Row], max_tokens: int) -> Iterator[list[Row]]:
    """The rows by length, in parts of at most `max_tokens` padded tokens (or one row)."""
    part: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.tokens)):
        if part and len(row.tokens) * (len(part) + 1) > max_tokens:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _check_rows(rows: Sequence[Row], config: SftConfig) -> None:
    if not rows:
        raise SftError("there is no demonstration to train on")
    longest = max(len(row.tokens) for row in rows)
    if longest > config.max_row_tokens:
        raise SftError(
            f"the longest episode has {longest} tokens, but max_row_tokens is "
            f"{config.max_row_tokens}; raise it (--max-row-tokens) or shorten the episodes"
        )
    if sum(float(row.weights[1:].sum()) for row in rows) <= 0:
        raise SftError("no demonstration has a response to learn from")


def _parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _iterate(
    model: PreTrainedModel | PeftModel,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Row],
    iteration: int,
    config: SftConfig,
) -> float:
    """One optimizer step; the loss before it."""
    total_weight = max(sum(float(row.weights[1:].sum()) for row in batch), 1e-9)
    loss_sum = 0.0
    optimizer.zero_grad(set_to_none=True)
    for part in microbatches(batch, config.microbatch_tokens):
        loss, _ = batch_loss(model, part)
        (loss / total_weight).backward()
        loss_sum += float(loss.detach())
    parameters = [p for p in model.parameters() if p.requires_grad]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.grad_clip))
    if not math.isfinite(loss_sum) or not math.isfinite(norm):
        raise SftError(f"the loss is {loss_sum} at iteration {iteration + 1}; lower the lr")
    optimizer.step()
    return loss_sum / total_weight
