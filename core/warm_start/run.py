"""From demonstration files to a trained policy folder: what `echoscope sft` runs.

The loss of a batch is the weighted mean of -log p(x_t | x_<t) over its tokens, with weight 1 on
the tokens of a response and `prompt_weight` on the rest. A batch is a pure function of the seed and
the iteration.

Legend: **B** rows, **T** padded length, **L** length of a row.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from peft import PeftModel
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from echoscope.diagnostics.config import FrozenModel
from echoscope.envs import registry
from echoscope.envs.settings import EnvGroup
from echoscope.envs.streams import generator
from echoscope.text.did_you_mean import did_you_mean

from ..config.context import ContextConfig
from ..config.loading import ConfigError, load_config, recipe_names
from ..config.settings import LoraConfig, ModelConfig, OptimConfig
from ..optim import Optimizer, ParameterGroup
from ..policy import load_model, with_adapters
from ..pretrained.base import remember_base
from ..pretrained.policy_assets import (
    PolicyShape,
    create_policy,
    resolve_model,
    save_tokenizer,
    train_tokenizer,
)
from ..rollout.chat import ChatFormat, check_vocabulary, load_tokenizer
from .adapters import check_out
from .demonstrations import (
    Demonstration,
    Lesson,
    Row,
    SftError,
    encode,
    read_jsonl,
    training_text,
)


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


_WEIGHTS = "policy"
"""Name of what trains."""


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
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = Optimizer(
        [ParameterGroup(name=_WEIGHTS, parameters=trainable)],
        OptimConfig(lr=config.lr, betas=config.betas, weight_decay=config.weight_decay),
    )
    losses: list[float] = []
    model.train()
    try:
        for iteration in range(config.iterations):
            batch = [rows[index] for index in batch_indices(iteration, len(rows), config)]
            total_weight = max(sum(float(row.weights[1:].sum()) for row in batch), 1e-9)
            loss_sum = 0.0
            for part in microbatches(batch, config.microbatch_tokens):
                loss, _ = batch_loss(model, part)
                (loss / total_weight).backward()
                optimizer.accumulate()
                loss_sum += float(loss.detach())
            lrs = {_WEIGHTS: learning_rate(iteration, config)}
            done = optimizer.step(lrs=lrs, grad_clip=config.grad_clip)
            if not math.isfinite(loss_sum) or done.is_skipped:
                raise SftError(f"the loss is {loss_sum} at iteration {iteration + 1}; lower the lr")
            losses.append(loss_sum / total_weight)
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
    epoch, offset = divmod(iteration * config.batch_episodes, num_rows)
    end = offset + config.batch_episodes
    orders = [
        generator(config.seed, epoch + later).permutation(num_rows)
        for later in range(-(-end // num_rows))
    ]
    picked: list[int] = np.concatenate(orders)[offset:end].tolist()
    return picked


def batch_loss(model: PreTrainedModel | PeftModel, rows: Sequence[Row]) -> tuple[Tensor, float]:
    """(weighted sum of -log p, sum of the weights) over the rows; scalar tensor and number."""
    tokens, weights = (  # (B, T) each
        pad_sequence([torch.tensor(values) for values in column], batch_first=True)
        for column in ([row.tokens for row in rows], [row.weights for row in rows])
    )
    device = next(model.parameters()).device
    tokens, weights = tokens.long().to(device), weights[:, 1:].to(device)
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


FRESH = "fresh"
"""In place of a model: a new small policy with a tokenizer of its own."""

SUMMARY_FILE = "sft.json"
SaveDtype = Literal["float32", "bfloat16"]
"""Of the weights in a policy's folder."""
BARE_CONTEXT = ContextConfig(system="", instructions=False, format_hint=False)
"""A user turn is the observation and nothing else."""


def plan_lessons(
    targets: Sequence[str],
    *,
    episodes: int,
    careful: float,
    careful_by_tag: Mapping[str, float],
    nonsense: float,
) -> list[Lesson]:
    """Share `episodes` among the environments of the targets, in proportion to their `groups`.

    A target is a YAML file, a recipe or an environment id, looked for in this order.

    Raises:
        ConfigError: a target that is none of these, or a careful tag that names no environment.
    """
    groups = [pair for target in targets for pair in _groups_of(target)]
    names = {name for group, _ in groups for name in (group.name, group.env)}
    for tag in careful_by_tag:
        if tag not in names:
            raise ConfigError(f"--careful names {tag!r}{did_you_mean(tag, names)}")
    total = sum(group.groups for group, _ in groups)
    lessons = []
    given = seen = 0
    for group, context in groups:
        seen += group.groups
        share = episodes * seen // total - given
        given += share
        of_env = careful_by_tag.get(group.env, careful)
        lessons.append(
            Lesson(
                group=group,
                context=context,
                episodes=share,
                careful=careful_by_tag.get(group.name, of_env),
                nonsense=nonsense,
            )
        )
    return lessons


def _groups_of(target: str) -> list[tuple[EnvGroup, ContextConfig]]:
    if target.endswith((".yaml", ".yml")):
        config = load_config(file=Path(target))
    elif target in recipe_names():
        config = load_config(target)
    elif target in registry.known_ids() or target.count(":") == 1:
        return [(EnvGroup(env=target), BARE_CONTEXT)]
    else:
        names = [*recipe_names(), *registry.known_ids()]
        raise ConfigError(f"no recipe or environment {target!r}{did_you_mean(target, names)}")
    return [(group, config.context) for group in config.envs.train]


def warm_start(
    data: Sequence[Path],
    model: str,
    out: Path,
    config: SftConfig,
    *,
    shape: PolicyShape,
    force_think: bool,
    on_progress: Callable[[int, float], None] = lambda iteration, loss: None,
    save_dtype: SaveDtype = "float32",
) -> float:
    """Train `model` (a shipped name, a folder or `fresh`) and write the policy to `out`.

    `out` then holds the weights (or the adapters), the tokenizer and `sft.json`. Returns the mean
    loss of the last 50 iterations.

    Raises:
        SftError, ConfigError, ChatFormatError: something does not fit; nothing was overwritten.
    """
    check_out(out)
    if config.dtype != "float32" and config.lora is None:
        raise SftError(
            f"dtype is {config.dtype}, in which small changes of a weight are lost: add --lora, "
            "whose adapters are float32, or leave --dtype out"
        )
    demonstrations = [each for path in data for each in read_jsonl(path)]
    if not demonstrations:
        raise SftError(f"no demonstration in {', '.join(map(str, data))}")
    tokenizer, network = _load(model, demonstrations, shape, config)
    chat = ChatFormat(tokenizer)
    check_vocabulary(chat, int(network.get_input_embeddings().weight.shape[0]))
    rows = [
        encode(each, chat, force_think=force_think, prompt_weight=config.prompt_weight)
        for each in demonstrations
    ]
    losses = train(network, rows, config, on_progress=on_progress)[-50:]
    loss = sum(losses) / len(losses)
    out.mkdir(parents=True, exist_ok=True)
    _save(network, out, save_dtype)
    save_tokenizer(tokenizer, out)
    if config.lora is not None:
        remember_base(out, Path(resolve_model(model)))
    facts = {"model": model, "num_episodes": len(demonstrations), "data": _digest(data)}
    _write_summary(out, config, facts | {"final_loss": round(loss, 5)})
    return loss


def _load(
    model: str, demonstrations: Sequence[Demonstration], shape: PolicyShape, config: SftConfig
) -> tuple[PreTrainedTokenizerFast, PreTrainedModel | PeftModel]:
    if model == FRESH:
        if config.lora is not None:
            raise SftError("a fresh model has nothing to adapt; leave --lora out")
        tokenizer = train_tokenizer(training_text(demonstrations), shape.vocab_size)
        network = create_policy(tokenizer, shape, seed=config.seed)
        # The library's own default keeps 50 tokens, which is another policy than the trained one.
        network.generation_config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        return tokenizer, network
    folder = resolve_model(model)
    tokenizer = load_tokenizer(folder)
    network = load_model(folder, ModelConfig(dtype=config.dtype, device=config.device))
    if config.lora is None:
        return tokenizer, network
    adapted = with_adapters(network, config.lora, config.seed)
    # `tiny` rather than where it lies today, so that the adapters can move between machines.
    adapted.peft_config["default"].base_model_name_or_path = model
    return tokenizer, adapted


def _save(network: PreTrainedModel | PeftModel, out: Path, dtype: SaveDtype) -> None:
    if dtype == "bfloat16":  # half the size, rounded once: training always happens in float32
        network.to(torch.bfloat16)
    if isinstance(network, PeftModel):
        # Embeddings never grow here; to find that out, peft would look for the base on a hub.
        network.save_pretrained(str(out), save_embedding_layers=False)
    else:
        network.save_pretrained(out)


def _digest(data: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in data:
        digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def _write_summary(folder: Path, config: SftConfig, facts: Mapping[str, Any]) -> None:
    """How the weights were made. Written last: a folder that has it is complete."""
    summary = {**facts, "settings": config.model_dump(mode="json"), "torch": torch.__version__}
    text = json.dumps(summary, indent=2, sort_keys=True)
    (folder / SUMMARY_FILE).write_text(text + "\n", encoding="utf-8")
