"""Log-probs of reasonings under a language model, with the prompt's keys and values shared.

The only file of cross-scoring that needs torch. `cross_score` and `score_draw`, which call it, are
in `cross_scores.py`.

Legend: **V** vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from echoscope.store.records import FloatArray, IntArray

from .cross_scores import ScoringError, Tally
from .prefix_tree import Pack, pack_prefixes, similar_lengths

MEMORY_BUDGET_BYTES = 1 << 30
"""For keys, values and logits of one pass; weights and activations come on top."""

PASS_TOKENS = {"cpu": 512}
"""Tokens of one pass by kind of device: on a CPU about what its caches hold (measured)."""
OTHER_PASS_TOKENS = 8192
MIN_PACK_NODES = 96
"""A pass is filled with packs of several prompts, where there are several, before packs are made
larger: each node is compared with every other of its pack."""
MAX_PADDING = 0.1
"""Of a batch of prompts: a call of its own costs about as much as some padding."""


@dataclass(frozen=True, slots=True, eq=False)
class _Prefixes:
    """Forwarded prompts, right-padded: the model's cache of them, and what they predict."""

    cache: Any
    lengths_B: list[int]
    first_logprobs_BV: Tensor
    """log p of every first token."""

    @property
    def width(self) -> int:
        return max(self.lengths_B)

    @property
    def bytes_per_position(self) -> int:
        """Of one row's keys and values."""
        return sum(
            layer.keys[0, :, 0].nbytes + layer.values[0, :, 0].nbytes for layer in self.cache.layers
        )


class ModelScorer:
    """Scores under a Hugging Face causal language model with softmax attention, adapters included.

    The model runs in evaluation mode without gradients and gets its own modes back. Prompts of
    similar length share a pass; continuations that begin alike are forwarded once (`prefix_tree`),
    where the model's attention takes any mask. Elsewhere (sliding windows, flash attention, biases
    by distance) each continuation is a row of its own.

    Args:
        model: called as `model(input_ids=..., past_key_values=..., use_cache=True,
            logits_to_keep=...)`, with `attention_mask` and `position_ids` for trees; Qwen2, Llama
            and their like, or a PEFT wrapper of one.
        temperature: of the sampling that is scored.
        memory_budget_bytes: continuations are scored in passes whose keys, values and logits fit;
            a pass has at least one continuation.

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
        first = next(model.parameters())
        self._device, self._dtype = first.device, first.dtype
        whole: Any = model.config
        config = whole.get_text_config()
        self._max_positions: int | None = config.to_dict().get("max_position_embeddings")
        # "sdpa_packed", of a policy that trains, is sdpa here.
        self._takes_trees = str(config._attn_implementation).startswith(("sdpa", "eager")) and any(
            "position_ids" in inspect.signature(module.forward).parameters
            for module in model.modules()
        )
        self._pass_tokens = PASS_TOKENS.get(self._device.type, OTHER_PASS_TOKENS)
        # Keys and values of a token, at most: as many heads of them as of queries.
        self._bytes_per_token = (
            2 * config.num_hidden_layers * config.hidden_size * first.element_size()
        )

    @torch.no_grad()
    def score(
        self, prompts: Sequence[IntArray], continuations: Sequence[Sequence[IntArray]]
    ) -> list[list[FloatArray]]:
        """Per-token log-probs at the sampling temperature, float32: `[n][m]` for `prompts[n]`.

        Raises:
            ScoringError: a prompt with its longest continuation is too long, or the model keeps no
                keys and values.
        """
        out: list[list[FloatArray]] = [[_NOTHING] * len(rows) for rows in continuations]
        longest = [max(map(len, rows), default=0) for rows in continuations]
        asked = [n for n, size in enumerate(longest) if size]
        for n in asked:
            self._check_length(len(prompts[n]) + longest[n])
        with evaluating(self._model):
            if self._takes_trees:
                self._takes_trees = self._score_trees(prompts, continuations, asked, out)
            if not self._takes_trees:
                for n in asked:
                    self._score_rows(self._prefill([prompts[n]]), continuations[n], out[n])
        return out

    def _prefill(self, prompts: list[IntArray]) -> _Prefixes:
        """What stands behind a token never reaches it, so padding behind needs no mask."""
        lengths = [len(prompt) for prompt in prompts]
        width = max(lengths)
        last = width - min(lengths) + 1
        output = self._model(
            input_ids=self._ids(prompts, width), use_cache=True, logits_to_keep=last
        )
        self._count(len(prompts) * width, sum(lengths))
        _check_cache(self._model, output.past_key_values)
        ends = torch.tensor([size - 1 - width for size in lengths], device=self._device)
        rows = torch.arange(len(prompts), device=self._device)
        return _Prefixes(
            output.past_key_values, lengths, self._logprobs(output.logits[rows, ends + last])
        )

    def _score_trees(
        self,
        prompts: Sequence[IntArray],
        continuations: Sequence[Sequence[IntArray]],
        asked: list[int],
        out: list[list[FloatArray]],
    ) -> bool:
        """False, with nothing scored, where a layer remembers a window only."""
        packs: dict[tuple[int, int], list[Pack]] = {}
        batches = similar_lengths(
            [len(prompts[n]) for n in asked],
            max_tokens=min(self._pass_tokens, self._budget // self._bytes_per_token),
            max_padding=MAX_PADDING,
        )
        for batch in batches:
            chosen = [asked[i] for i in batch]
            prefixes = self._prefill([prompts[n] for n in chosen])
            if any(layer.is_sliding for layer in prefixes.cache.layers):
                return False
            self._continue(
                prefixes, [continuations[n] for n in chosen], packs, [out[n] for n in chosen]
            )
        return True

    def _continue(
        self,
        prefixes: _Prefixes,
        rows_B: list[Sequence[IntArray]],
        packs: dict[tuple[int, int], list[Pack]],
        out_B: list[list[FloatArray]],
    ) -> None:
        """Score the k-th packs of all prompts in one pass, then the next ones.

        `packs` remembers those made, by the identity of the continuations and the limit.
        """
        limit = max(MIN_PACK_NODES, self._pass_tokens // len(rows_B))
        per_node = (
            2 * prefixes.bytes_per_position
            + prefixes.first_logprobs_BV[0].nbytes
            + (prefixes.width + limit) * self._dtype.itemsize
        )
        fixed = 2 * prefixes.bytes_per_position * prefixes.width  # twice: before and after joining
        limit = min(limit, max(1, (self._budget - fixed) // per_node))
        packs_B: list[list[Pack]] = []
        for rows in rows_B:
            key = (id(rows), limit)
            if key not in packs:
                packs[key] = pack_prefixes(rows, limit)
            packs_B.append(packs[key])
        for k in range(max(map(len, packs_B))):
            waiting = [b for b, some in enumerate(packs_B) if k < len(some)]
            while waiting:
                width = max(1, *(packs_B[b][k].num_nodes for b in waiting))
                fitting = min(
                    self._budget // (fixed + per_node * width), self._pass_tokens // width
                )
                now, waiting = waiting[: max(1, fitting)], waiting[max(1, fitting) :]
                tables = self._tree_logprobs(prefixes, now, [packs_B[b][k] for b in now])
                for b, table_WV in zip(now, tables, strict=True):
                    first_V = prefixes.first_logprobs_BV[b]
                    _read(packs_B[b][k], rows_B[b], first_V, table_WV, out_B[b])

    def _tree_logprobs(
        self, prefixes: _Prefixes, now: list[int], packs: list[Pack]
    ) -> Iterator[Tensor]:
        """log p of every token after each node, (W, V) for each pack."""
        width, known = max(pack.num_nodes for pack in packs), prefixes.width
        if width == 0:  # single tokens: the prompts predict them
            return (prefixes.first_logprobs_BV[:0] for _ in packs)
        ids_BW = np.zeros((len(now), width), dtype=np.int64)
        positions_BW = np.zeros_like(ids_BW)
        sees = np.zeros((len(now), 1, width, known + width), dtype=np.bool_)
        for i, (b, pack) in enumerate(zip(now, packs, strict=True)):
            size, length = pack.num_nodes, prefixes.lengths_B[b]
            ids_BW[i, :size] = pack.tokens_W
            positions_BW[i, :size] = length + pack.depth_W
            sees[i, 0, :, :length] = True
            sees[i, 0, :size, known : known + size] = pack.sees_WW
        shown = torch.from_numpy(sees).to(self._device)
        mask = torch.zeros(shown.shape, dtype=self._dtype, device=self._device)
        output = self._model(
            input_ids=torch.from_numpy(ids_BW).to(self._device),
            attention_mask=mask.masked_fill_(~shown, torch.finfo(self._dtype).min),
            position_ids=torch.from_numpy(positions_BW).to(self._device),
            past_key_values=_rows_of(prefixes.cache, now),
            use_cache=True,
        )
        self._count(ids_BW.size, sum(pack.num_nodes for pack in packs))
        return (self._logprobs(logits_WV) for logits_WV in output.logits)

    def _score_rows(
        self, prefix: _Prefixes, continuations: Sequence[IntArray], out: list[FloatArray]
    ) -> None:
        """Each continuation as a row of its own after one prompt, whose cache is not copied."""
        # The longest first: neighbours in a chunk then need little padding.
        order = sorted(range(len(continuations)), key=lambda m: -len(continuations[m]))
        order = [m for m in order if len(continuations[m])]
        first_V = prefix.first_logprobs_BV[0]
        while order:
            width = len(continuations[order[0]])
            each = 2 * prefix.bytes_per_position * (prefix.width + width)
            fitting = min(
                self._budget // (each + width * first_V.nbytes), self._pass_tokens // width
            )
            chunk, order = order[: max(1, fitting)], order[max(1, fitting) :]
            ids = self._ids([continuations[m] for m in chunk], width)
            scores = first_V[ids[:, :1]]
            if width > 1:
                output = self._model(
                    input_ids=ids[:, :-1],
                    past_key_values=_rows_of(prefix.cache, [0] * len(chunk)),
                    use_cache=True,
                    logits_to_keep=width - 1,
                )
                later = [
                    self._logprobs(row).gather(-1, target[:, None]).squeeze(-1)
                    for row, target in zip(output.logits, ids[:, 1:], strict=True)
                ]
                scores = torch.cat([scores, torch.stack(later)], dim=1)
                num_real = sum(len(continuations[m]) - 1 for m in chunk)
                self._count(len(chunk) * (width - 1), num_real)
            for m, row in zip(chunk, scores.cpu().numpy(), strict=True):
                out[m] = row[: len(continuations[m])].copy()

    def _logprobs(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits.float() / self._temperature, dim=-1)

    def _ids(self, rows: Sequence[IntArray], width: int) -> Tensor:
        """(len(rows), width), padded behind with token 0."""
        ids = np.zeros((len(rows), width), dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return torch.from_numpy(ids).to(self._device)

    def _count(self, num_tokens: int, num_real: int) -> None:
        self.tally.num_tokens += num_tokens
        self.tally.num_padding += num_tokens - num_real

    def _check_length(self, length: int) -> None:
        if self._max_positions is not None and length > self._max_positions:
            raise ScoringError(
                f"a row of {length} tokens does not fit the model's {self._max_positions} "
                "positions; leave out the longest prompts or reasonings"
            )


_NOTHING: FloatArray = np.zeros(0, dtype=np.float32)


def _read(
    pack: Pack,
    continuations: Sequence[IntArray],
    first_V: Tensor,
    table_WV: Tensor,
    out: list[FloatArray],
) -> None:
    """Look up each member's tokens: the first after the prompt, the others after their node."""
    members = [continuations[m] for m in pack.members]
    firsts = torch.tensor([int(z[0]) for z in members], device=first_V.device)
    nodes = torch.from_numpy(np.concatenate(pack.paths)).to(first_V.device)
    later = np.concatenate([z[1:] for z in members]).astype(np.int64)
    first_m = first_V[firsts].cpu().numpy()
    table = table_WV[nodes, torch.from_numpy(later).to(first_V.device)].cpu().numpy()
    ends = np.cumsum([len(path) for path in pack.paths])
    for m, first, row in zip(pack.members, first_m, np.split(table, ends[:-1]), strict=True):
        out[m] = np.concatenate([[first], row]).astype(np.float32)


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


def _rows_of(cache: Any, rows: list[int]) -> Any:
    """The cache of some of its rows; one row many times is not copied.

    Dynamic layers grow by concatenation and never write into what they hold, so the prompts' own
    keys and values stay as they are, however often they are continued.
    """

    def pick(states: Tensor) -> Tensor:
        if rows == list(range(len(states))):
            return states
        if len(set(rows)) == 1:
            return states[rows[0] : rows[0] + 1].expand(len(rows), -1, -1, -1)
        return states[rows]

    out = copy.copy(cache)
    out.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in out.layers:
        layer.keys, layer.values = pick(layer.keys), pick(layer.values)
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
