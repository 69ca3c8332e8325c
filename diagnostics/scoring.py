"""Log-probs of reasonings under a language model, with the prompt's keys and values shared.

The only file of cross-scoring that needs torch. The rest, `cross_score` and `score_draw`, stands in
`cross_scoring.py` and is named here too.

Legend: **V** vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..store.records import FloatArray, IntArray
from .cross_scoring import Scorer, ScoringError, Tally, cross_score, score_draw

__all__ = ["ModelScorer", "Prefix", "Scorer", "ScoringError", "Tally", "cross_score", "score_draw"]

MEMORY_BUDGET_BYTES = 1 << 30
"""For keys, values and logits of one pass; weights and activations come on top."""

CPU_PASS_TOKENS = 512
"""Continuation tokens of one pass on a CPU: about what its caches hold. More rows would also be
padded to the longest of them. Measured: twice as fast as one pass of 64 rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """A forwarded prompt: the model's cache of it and log p of every first token, (V,)."""

    cache: Any
    length: int
    first_logprobs: Tensor


class ModelScorer:
    """Scores under a Hugging Face causal language model with softmax attention, adapters included.

    The model runs in evaluation mode without gradients and gets its own modes back.

    Args:
        model: called as `model(input_ids=..., past_key_values=..., use_cache=True,
            logits_to_keep=...)`; Qwen2, Llama and their like, or a PEFT wrapper of one.
        temperature: of the sampling that is scored.
        memory_budget_bytes: continuations are scored in chunks whose keys, values and logits fit;
            a chunk has at least one.

    Raises:
        ScoringError: the temperature is not positive.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 1.0,
        memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    ) -> None:
        if not temperature > 0:
            raise ScoringError(
                f"temperature is {temperature}, but must be above 0: greedy decoding has no "
                "log-probs; score at the temperature that sampled"
            )
        self.tally = Tally()
        self._model = model
        self._temperature = temperature
        self._budget = memory_budget_bytes
        self._device = next(model.parameters()).device
        config: Any = model.config
        self._max_positions: int | None = config.to_dict().get("max_position_embeddings")

    @torch.no_grad()
    def prefill(self, prompt: IntArray) -> Prefix:
        """Forward a prompt (L,) once.

        Raises:
            ScoringError: the prompt is too long, or the model keeps no keys and values.
        """
        self._check_length(len(prompt))
        with _evaluating(self._model):
            output = self._model(
                input_ids=self._ids([prompt], len(prompt)), use_cache=True, logits_to_keep=1
            )
        self.tally.num_tokens += len(prompt)
        cache = output.past_key_values
        _check_cache(self._model, cache)
        return Prefix(cache, len(prompt), self._logprobs(output.logits[0, -1]))

    @torch.no_grad()
    def score(self, prefix: Prefix, continuations: Sequence[IntArray]) -> list[FloatArray]:
        """Per-token log-probs at the sampling temperature, float32, in the order given.

        Raises:
            ScoringError: prompt and continuation together are too long.
        """
        out: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(continuations)
        # The longest first: neighbours in a chunk then need little padding.
        order = sorted(range(len(continuations)), key=lambda i: -len(continuations[i]))
        order = [i for i in order if len(continuations[i])]
        if order:
            self._check_length(prefix.length + len(continuations[order[0]]))
        start = 0
        with _evaluating(self._model):
            while start < len(order):
                width = len(continuations[order[start]])
                chunk = order[start : start + self._chunk_size(prefix, width)]
                rows = self._score_chunk(prefix, [continuations[i] for i in chunk])
                for i, row in zip(chunk, rows, strict=True):
                    out[i] = row
                start += len(chunk)
        return out

    def _score_chunk(self, prefix: Prefix, continuations: list[IntArray]) -> list[FloatArray]:
        """Right-padded: what stands behind a token never reaches it, so no mask is needed."""
        width = len(continuations[0])
        ids = self._ids(continuations, width)
        scores = prefix.first_logprobs[ids[:, :1]]
        if width > 1:
            output = self._model(
                input_ids=ids[:, :-1],
                past_key_values=_expanded(prefix.cache, len(ids)),
                use_cache=True,
                logits_to_keep=width - 1,
            )
            later = self._token_logprobs(output.logits, ids[:, 1:])
            scores = torch.cat([scores, later], dim=1)
            num_real = sum(len(z) - 1 for z in continuations)
            self.tally.num_tokens += len(ids) * (width - 1)
            self.tally.num_padding += len(ids) * (width - 1) - num_real
        table = scores.cpu().numpy()
        return [table[i, : len(z)].copy() for i, z in enumerate(continuations)]

    def _token_logprobs(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(m, w, V) and (m, w) to (m, w), without a second table of the logits' size."""
        rows = [
            self._logprobs(row).gather(-1, target[:, None]).squeeze(-1)
            for row, target in zip(logits, targets, strict=True)
        ]
        return torch.stack(rows)

    def _logprobs(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits.float() / self._temperature, dim=-1)

    def _ids(self, rows: Sequence[IntArray], width: int) -> Tensor:
        """(len(rows), width), padded behind with token 0."""
        ids = np.zeros((len(rows), width), dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return torch.from_numpy(ids).to(self._device)

    def _chunk_size(self, prefix: Prefix, width: int) -> int:
        per_position = sum(
            layer.keys[0, :, 0].nbytes + layer.values[0, :, 0].nbytes
            for layer in prefix.cache.layers
        )
        # Twice: concatenating prefix and continuation holds both sides for a moment.
        keys_and_values = 2 * per_position * (prefix.length + width)
        logits = width * prefix.first_logprobs.numel() * prefix.first_logprobs.element_size()
        rows = int(self._budget // (keys_and_values + logits))
        if self._device.type == "cpu":
            rows = min(rows, CPU_PASS_TOKENS // width)
        return max(1, rows)

    def _check_length(self, length: int) -> None:
        if self._max_positions is not None and length > self._max_positions:
            raise ScoringError(
                f"a row of {length} tokens does not fit the model's {self._max_positions} "
                "positions; leave out the longest prompts or reasonings"
            )


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


def _expanded(cache: Any, num_rows: int) -> Any:
    """The cache for so many rows, without copying it.

    Dynamic layers grow by concatenation and never write into what they hold, so the prompt's own
    keys and values stay as they are, however often they are continued.
    """
    out = copy.copy(cache)
    out.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in out.layers:
        layer.keys = layer.keys.expand(num_rows, -1, -1, -1)
        layer.values = layer.values.expand(num_rows, -1, -1, -1)
    return out


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module's own mode again."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
