"""Cross-scoring: the log-probability of every reasoning under every prompt, with shared prefixes.

A prompt is forwarded once, and its keys and values serve all reasonings. That takes sum over n of
(|x_n| + M R) token-forwards, where one pass per pair takes sum over n of M (|x_n| + R).

Legend: **M** reasonings, **N** prompts, **R** tokens of the longest reasoning, **V** vocabulary.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..store.records import FloatArray, IntArray
from .cross_scores import CrossScores, ScoringCost
from .families import Draw

MEMORY_BUDGET_BYTES = 1 << 30
"""For keys, values and logits of one pass; weights and activations come on top."""

CPU_PASS_TOKENS = 512
"""Continuation tokens of one pass on a CPU: about what its caches hold. More rows would also be
padded to the longest of them. Measured: twice as fast as one pass of 64 rows."""

MAX_SAMPLING_GAP = 0.02
"""Nats per token that rounding and another engine's kernels may explain."""


class ScoringError(ValueError):
    """A model or a prompt cannot be scored this way. The message names the way out."""


@dataclass(slots=True)
class Tally:
    """Token-forwards of a scorer so far."""

    num_tokens: int = 0
    """Padding included."""
    num_padding: int = 0


class Scorer(Protocol):
    """Scores continuations of a prompt that was forwarded once."""

    tally: Tally

    def prefill(self, prompt: IntArray) -> Any:
        """Forward a prompt (L,), at least one token; what comes back goes to `score` only."""

    def score(self, prefix: Any, continuations: Sequence[IntArray]) -> list[FloatArray]:
        """Per-token log-probs of each continuation, in order, each as long as it is."""


def cross_score(
    scorer: Scorer,
    prompts: Sequence[IntArray],
    reasonings: Sequence[IntArray],
    column_M: Sequence[int] | NDArray[np.int64],
) -> CrossScores:
    """Score every reasoning under every prompt.

    Equal reasonings and equal prompts are forwarded once each.

    Args:
        prompts: N token id arrays.
        reasonings: M token id arrays, closing tags included.
        column_M: index of the prompt that each reasoning was sampled under.

    Raises:
        ScoringError: a prompt is empty, or the model cannot take a row that long.
    """
    started = time.perf_counter()
    before = replace(scorer.tally)
    unique, place_M = _distinct(reasonings)
    unique_prompts, place_N = _distinct(prompts)
    longest = max((len(z) for z in unique), default=0)
    scores = np.zeros((len(unique), len(unique_prompts), longest), dtype=np.float32)
    filled = [m for m, z in enumerate(unique) if len(z)]
    for n, prompt in enumerate(unique_prompts):
        if len(prompt) == 0:
            raise ScoringError("a prompt is empty: there is nothing to predict a first token from")
        if filled:
            rows = scorer.score(scorer.prefill(prompt), [unique[m] for m in filled])
            for m, row in zip(filled, rows, strict=True):
                scores[m, n, : len(row)] = row
    num_naive = sum(len(reasonings) * (len(x) + longest) for x in prompts)
    return CrossScores(
        logprobs_MNR=scores[np.ix_(place_M, place_N)],
        lengths_M=np.array([len(z) for z in reasonings], dtype=np.int64),
        column_M=np.asarray(column_M, dtype=np.int64),
        cost=ScoringCost(
            num_token_forwards=scorer.tally.num_tokens - before.num_tokens,
            num_padding=scorer.tally.num_padding - before.num_padding,
            num_naive=num_naive,
            seconds=time.perf_counter() - started,
        ),
    )


def score_draw(scorer: Scorer, draw: Draw, *, top_k: int = 0, top_p: float = 1.0) -> CrossScores:
    """Cross-score a drawn family and keep what is known of its pairs.

    A draw without pairs gives scores without content that say why; nothing is forwarded. The own
    column is compared with the log-probs recorded at sampling: estimates are unbiased only where
    both are the same distribution.

    Args:
        top_k: of the sampling; 0 if not cut.
        top_p: of the sampling.

    Raises:
        ScoringError: as `cross_score`.
    """
    if draw.num_reasonings == 0:
        return CrossScores.missing(draw.problem, family=draw.family)
    scores = cross_score(scorer, draw.prompts, draw.reasonings, draw.column_M)
    gap = _sampling_gap(scores, draw)
    return replace(
        scores,
        cluster_N=draw.cluster_N,
        env_N=draw.env_N,
        turn_M=draw.turn_M,
        truncated_M=draw.truncated_M,
        inner_lengths_M=draw.inner_lengths_M,
        source_M=draw.source_M,
        family=draw.family,
        sampling_gap=gap,
        caveats=(*draw.caveats, *_sampling_caveats(gap, top_k, top_p)),
        problem=draw.problem,
    )


def _sampling_gap(scores: CrossScores, draw: Draw) -> float:
    if not draw.logprobs:
        return float("nan")
    own_MR = scores.logprobs_MNR[np.arange(draw.num_reasonings), draw.column_M]
    gaps = [
        np.abs(own_R[: len(recorded)] - recorded)
        for own_R, recorded in zip(own_MR, draw.logprobs, strict=True)
        if recorded is not None and len(recorded)
    ]
    return float(np.concatenate(gaps).mean()) if gaps else float("nan")


def _sampling_caveats(gap: float, top_k: int, top_p: float) -> list[str]:
    out = []
    if top_k > 0 or top_p < 1:
        out.append(
            f"sampled with top_k {top_k} and top_p {top_p:g}, scored with the whole distribution: "
            "the estimates are biased"
        )
    if gap > MAX_SAMPLING_GAP:
        out.append(
            f"scores are {gap:.2g} nats per token away from those recorded at sampling (other "
            "weights, or another temperature): the estimates are biased"
        )
    return out


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


def _distinct(rows: Sequence[IntArray]) -> tuple[list[IntArray], list[int]]:
    """The distinct arrays in order of first appearance, and the place of each row among them."""
    seen: dict[bytes, int] = {}
    unique: list[IntArray] = []
    place: list[int] = []
    for row in rows:
        array = np.asarray(row, dtype=np.int32)
        key = array.tobytes()
        if key not in seen:
            seen[key] = len(unique)
            unique.append(array)
        place.append(seen[key])
    return unique, place


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
