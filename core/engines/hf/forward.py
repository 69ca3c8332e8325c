"""Forward passes of a Hugging Face causal model over a row cache: prefill and single tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from echoscope.store.records import IntArray

from ...memory import MAX_MASK_ENTRIES, MAX_PREFILL_TOKENS
from .kv_cache import RowCache
from .prefixes import PrefillPlan, RowCopies, Span

SMALL_SPAN = 32
"""Padding up to so many tokens is cheaper than another pass."""

WIDTH_BLOCK = 16
"""Attention reads columns in multiples of this; the surplus is masked."""


class CachedForward:
    """The trained module itself, run over the rows of a `RowCache` with explicit positions and
    masks. Knows tokens and rows, nothing of sampling."""

    def __init__(self, model: PreTrainedModel, cache: RowCache) -> None:
        self._model = model
        self.cache = cache
        embedding = model.get_input_embeddings().weight
        self.device: torch.device = embedding.device
        self.vocab_size = int(model.get_input_embeddings().num_embeddings)
        self._dtype: torch.dtype = embedding.dtype
        self._hidden = torch.finfo(self._dtype).min
        self._length = 0
        self._num_active = 0
        self._state = torch.empty((2, 0), dtype=torch.long, device=self.device)
        self._mask = torch.empty((0, 1, 1, 0), dtype=self._dtype, device=self.device)

    # -- rows ---------------------------------------------------------------------------------

    def copy_rows(self, copies: RowCopies) -> None:
        if copies.targets:
            self.cache.copy_rows(
                source=self._index(copies.sources),
                target=self._index(copies.targets),
                num_columns=copies.num_columns,
            )

    def swap_rows(
        self, left: NDArray[np.int64], right: NDArray[np.int64], num_columns: int
    ) -> None:
        """Exchange cache rows pairwise."""
        both = [*left.tolist(), *right.tolist()]
        swapped = [*right.tolist(), *left.tolist()]
        self.copy_rows(RowCopies(sources=swapped, targets=both, num_columns=num_columns))

    def _index(self, values: Sequence[int] | NDArray[np.int64]) -> Tensor:
        return torch.as_tensor(np.asarray(values, dtype=np.int64)).to(self.device)

    # -- prefill ------------------------------------------------------------------------------

    def prefill_plan(self, prompts: Sequence[IntArray], plan: PrefillPlan) -> Tensor:
        """Bring every prompt into its cache row; the logits after each, (B, V)."""
        self.copy_rows(plan.first)
        logits = torch.empty(0)
        for wave in plan.waves:
            logits = self.prefill(prompts, wave.spans)
            self.copy_rows(wave.copies)
        wave_of = {span.prompt: i for i, span in enumerate(plan.waves[-1].spans)}
        index = torch.tensor([wave_of[leader] for leader in plan.leader], device=logits.device)
        return logits[index]

    def prefill(self, prompts: Sequence[IntArray], spans: Sequence[Span]) -> Tensor:
        """Forward spans of prompts into their rows.

        Returns:
            the logits after each span's last token, (len(spans), V).
        """
        out: list[Tensor] = []
        order: list[int] = []
        for batch in _microbatches([span.end - span.start for span in spans]):
            # In the order of their rows: a pass over all rows then reads them without a copy.
            batch.sort(key=lambda i: spans[i].row)
            out.append(self._prefill_batch(prompts, [spans[i] for i in batch]))
            order += batch
        return torch.cat(out)[self._index(np.argsort(order))]

    def _prefill_batch(self, prompts: Sequence[IntArray], spans: Sequence[Span]) -> Tensor:
        """Left-padded, so that the logits wanted are those of the last position."""
        width = max(span.end - span.start for span in spans)
        ids = np.zeros((len(spans), width), dtype=np.int64)
        positions = np.full((len(spans), width), -1, dtype=np.int64)
        for row, span in enumerate(spans):
            size = span.end - span.start
            ids[row, width - size :] = prompts[span.prompt][span.start : span.end]
            positions[row, width - size :] = np.arange(span.start, span.end)
        rows = np.array([span.row for span in spans], dtype=np.int64)
        num_columns = self._rounded(max(span.end for span in spans))
        step = max(1, min(MAX_PREFILL_TOKENS, MAX_MASK_ENTRIES // num_columns) // len(spans))
        logits, cache = torch.empty(0), self.cache
        in_order = bool((rows == np.arange(len(rows))).all())
        # A single row longer than the budget goes in pieces, first tokens first.
        for start in range(0, width, step):
            piece = slice(start, start + step)
            own = positions[:, piece]
            places = np.where(own < 0, cache.spill, rows[:, None] * cache.num_columns + own)
            cache.aim(
                write=self._index(places.reshape(-1)),
                num_rows=len(rows) if in_order else cache.num_rows,
                num_columns=num_columns,
                rows=None if in_order else self._index(rows),
            )
            # Padding sits at position 0 and sees column 0: a row that sees nothing would be NaN.
            positions_BW = self._index(np.maximum(own, 0))
            columns = torch.arange(num_columns, device=self.device)
            hidden = columns > positions_BW.unsqueeze(-1)
            mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self.device)
            mask.masked_fill_(hidden, self._hidden)
            logits = self._logits(self._index(ids[:, piece]), positions_BW, mask.unsqueeze(1))
        return logits

    # -- one token at a time ------------------------------------------------------------------

    def start_decode(self, lengths: NDArray[np.int64]) -> None:
        """Decode the cache rows `[0, B)` from now on, which hold so many tokens each, (B,)."""
        self._num_active = len(lengths)
        self._length = int(lengths.max())
        rows = np.arange(len(lengths), dtype=np.int64)
        self._state = self._index(np.stack([rows * self.cache.num_columns + lengths, lengths]))
        columns = torch.arange(self.cache.num_columns, device=self.device)
        hidden = columns >= self._state[1].unsqueeze(1)
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self.device)
        self._mask = mask.masked_fill_(hidden, self._hidden).view(len(lengths), 1, 1, -1)

    def decode(self, tokens_B: Tensor) -> Tensor:
        """Forward one token per active row; the logits after it, (B, V)."""
        if self._length == self.cache.num_columns:
            lengths = self._state[1].cpu().numpy()
            self.cache.reserve(self.cache.num_rows, self.cache.num_columns + 1)
            self.start_decode(lengths)
        places_B, positions_B = self._state
        self._mask.view(-1).index_fill_(0, places_B, 0.0)
        self._length += 1
        num_columns = self._rounded(self._length)
        self.cache.aim(write=places_B, num_rows=self._num_active, num_columns=num_columns)
        logits = self._logits(
            tokens_B.unsqueeze(1), positions_B.unsqueeze(1), self._mask[..., :num_columns]
        )
        self._state += 1
        return logits

    def _rounded(self, width: int) -> int:
        return min(-(-width // WIDTH_BLOCK) * WIDTH_BLOCK, self.cache.num_columns)

    def _logits(self, ids_BW: Tensor, positions_BW: Tensor, mask: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids_BW,
            attention_mask=mask,
            position_ids=positions_BW,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


def _microbatches(sizes: Sequence[int]) -> list[list[int]]:
    """Split rows into passes, longest first: bounded in all, at most about half of one padding."""
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    batches: list[list[int]] = []
    for i in order:
        longest = sizes[batches[-1][0]] if batches else 0
        fits = bool(batches) and (len(batches[-1]) + 1) * longest <= MAX_PREFILL_TOKENS
        if fits and longest <= 2 * sizes[i] + SMALL_SPAN:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
