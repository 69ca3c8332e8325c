"""Log-probs of reasonings under a language model, with the prompt's keys and values shared.

The only file of cross-scoring that needs torch. `cross_score` and `score_draw`, which call it, are
in `cross_scores.py`.

Legend: **V** vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from echoscope.store.records import FloatArray, IntArray

from .cross_scores import ScoringError, Tally

MEMORY_BUDGET_BYTES = 1 << 30
"""For keys, values and logits of one pass, which has at least one continuation; weights and
activations come on top."""

PASS_TOKENS = {"cpu": 512}
"""Tokens of one pass by kind of device: on a CPU about what its caches hold (measured)."""
OTHER_PASS_TOKENS = 8192


class ModelScorer:
    """Scores under a Hugging Face causal language model with softmax attention, adapters included.

    The model runs in evaluation mode without gradients and gets its own modes back. Each prompt is
    forwarded once, and its continuations after it in batches.

    Args:
        model: called as `model(input_ids=..., past_key_values=..., use_cache=True,
            logits_to_keep=...)`; Qwen2, Llama and their like, or a PEFT wrapper of one.
        temperature: of the sampling that is scored.

    Raises:
        ScoringError: the temperature is not positive.
    """

    def __init__(self, model: nn.Module, *, temperature: float = 1.0) -> None:
        if not temperature > 0:
            raise ScoringError(
                f"temperature is {temperature}, but must be above 0: greedy decoding has no "
                "log-probs; score at the temperature that sampled"
            )
        self.tally = Tally()
        self._model = model
        self._temperature = temperature
        self._device = next(model.parameters()).device
        whole: Any = model.config
        config = whole.get_text_config().to_dict()
        self._max_positions: int | None = config.get("max_position_embeddings")
        self._pass_tokens = PASS_TOKENS.get(self._device.type, OTHER_PASS_TOKENS)

    @torch.no_grad()
    def score(
        self, prompts: Sequence[IntArray], continuations: Sequence[Sequence[IntArray]]
    ) -> list[list[FloatArray]]:
        """Per-token log-probs at the sampling temperature, float32: `[n][m]` for `prompts[n]`.

        Raises:
            ScoringError: a prompt with its longest continuation is too long, or the model keeps no
                keys and values.
        """
        for prompt, rows in zip(prompts, continuations, strict=True):
            length = len(prompt) + max(map(len, rows), default=0)
            if self._max_positions is not None and length > self._max_positions:
                raise ScoringError(
                    f"a row of {length} tokens does not fit the model's {self._max_positions} "
                    "positions; leave out the longest prompts or reasonings"
                )
        with evaluating(self._model):
            return [self._after(*pair) for pair in zip(prompts, continuations, strict=True)]

    def _after(self, prompt: IntArray, continuations: Sequence[IntArray]) -> list[FloatArray]:
        """Log-probs of all continuations of one prompt, whose keys and values are not copied."""
        output = self._forward(_padded([prompt]), logits_to_keep=1)
        cache = output.past_key_values
        _check_cache(self._model, cache)
        first_V = self._logprobs(output.logits[0, -1])
        each = 2 * sum(
            layer.keys[0, :, 0].nbytes + layer.values[0, :, 0].nbytes for layer in cache.layers
        )
        scores: dict[int, FloatArray] = {}
        # The longest first: neighbours in a chunk then need little padding.
        order = sorted(range(len(continuations)), key=lambda m: -len(continuations[m]))
        while order:
            width = len(continuations[order[0]])
            row_bytes = each * (len(prompt) + width) + width * first_V.nbytes
            size = max(1, min(MEMORY_BUDGET_BYTES // row_bytes, self._pass_tokens // width))
            chunk, order = order[:size], order[size:]
            ids_BR = _padded([continuations[m] for m in chunk]).to(self._device)
            scores_BR = first_V[ids_BR[:, :1]]
            if width > 1:
                output = self._forward(
                    ids_BR[:, :-1],
                    past_key_values=_repeated(cache, len(chunk)),
                    logits_to_keep=width - 1,
                )
                later = [
                    self._logprobs(logits).gather(-1, row[:, None]).squeeze(-1)
                    for logits, row in zip(output.logits, ids_BR[:, 1:], strict=True)
                ]
                scores_BR = torch.cat([scores_BR, torch.stack(later)], dim=1)
            for m, row in zip(chunk, scores_BR.cpu().numpy(), strict=True):
                scores[m] = row[: len(continuations[m])].copy()
        return [scores[m] for m in range(len(continuations))]

    def _forward(self, ids: Tensor, **arguments: Any) -> Any:
        """What stands behind a token never reaches it, so padding behind needs no mask."""
        self.tally.num_tokens += ids.numel()
        return self._model(input_ids=ids.to(self._device), use_cache=True, **arguments)

    def _logprobs(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits.float() / self._temperature, dim=-1)


def _padded(rows: Sequence[IntArray]) -> Tensor:
    """Token ids as long as the longest row, padded behind with token 0."""
    return pad_sequence([torch.tensor(row, dtype=torch.int64) for row in rows], batch_first=True)


def _check_cache(model: nn.Module, cache: Any) -> None:
    layers = [] if cache is None else cache.layers
    is_known = bool(layers) and all(
        hasattr(layer, "keys") and isinstance(layer.keys, Tensor) and layer.keys.ndim == 4
        for layer in layers
    )
    if not is_known:
        raise ScoringError(
            f"{type(model).__name__} does not give back keys and values of softmax attention, so "
            "prompts cannot be shared; such models cannot be cross-scored"
        )


def _repeated(cache: Any, count: int) -> Any:
    """The cache of one row for so many rows, without copies.

    Dynamic layers grow by concatenation and never write into what they hold, so the prompt's own
    keys and values stay as they are, however often they are continued.
    """
    out = copy.copy(cache)
    out.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in out.layers:
        layer.keys, layer.values = (
            states.expand(count, -1, -1, -1) for states in (layer.keys, layer.values)
        )
    return out


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module's own mode again."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def interrupting(model: nn.Module, check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before each layer of the model, so that what it raises ends the computation.

    A pass of a large model takes long on a CPU, and one of its layers a second or so.
    """
    layers = [part for part in model.modules() if isinstance(part, nn.ModuleList)]

    def before(module: nn.Module, args: Any) -> None:
        check()

    hooks = [layer.register_forward_pre_hook(before) for part in layers for layer in part]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


_SHARDED = ("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine", "PipelineStage")
_WRAPPED = ("_orig_mod", "module")
"""Where `torch.compile` and `DistributedDataParallel` keep the model itself."""


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside a wrapper that compiles it, or that averages gradients between processes.

    Its compiled form would be compiled again for each new shape, and one process that calls the
    distributed form alone waits for the others for ever.

    Raises:
        ScoringError: its weights lie in several processes, so that one of them cannot call it.
    """
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    is_sharded = any(
        hasattr(parameter, "ds_id") or hasattr(parameter, "device_mesh")
        for parameter in model.parameters()
    )
    if is_sharded or not kinds.isdisjoint(_SHARDED):
        raise ScoringError(
            "the weights of the policy lie in several processes (FSDP, DeepSpeed ZeRO-3), and one "
            "process alone cannot call it: give a whole copy of the model, or no policy"
        )
    for name in _WRAPPED:
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module) and not hasattr(model, "get_base_model"):
            return unwrapped(inner)
    return model


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Random generators afterwards as before, and no autocast of the caller's inside."""
    device = next(model.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.autocast(device.type, enabled=False):
        yield
