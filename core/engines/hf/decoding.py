"""The decode loop: all unfinished rows forward one token at a time, finished rows leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echoscope.store.records import FinishReason, IntArray, Support

from ..base import ReplyWatch, SamplingParams
from .forward import CachedForward
from .sampling import Drawn, PolicyNumericsError, RowUniforms, sample_tokens

CHECK_EVERY = {"cpu": 1}
CHECK_EVERY_ELSEWHERE = 8
"""Tokens between looks at what was sampled, by device type: a look waits for a GPU."""

MIN_LEAVING_FRACTION = 1 / 8
"""Finished rows leave once they are so many of the batch: leaving costs a copy of their cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedRow:
    """One row's response and how much of row (prompt and response) its cache row holds."""

    tokens: IntArray
    logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32]
    support: Support | None
    finish_reason: FinishReason
    cache_row: int
    num_cached: int


class _Host:
    """What has been sampled so far, on the host, by row of the call."""

    def __init__(
        self,
        limits: NDArray[np.int64],
        stop_table: NDArray[np.bool_],
        watch: Callable[[], ReplyWatch] | None = None,
    ) -> None:
        size, width = len(limits), int(limits.max())
        self.limits = limits
        self.stop_table = stop_table
        self.tokens = np.zeros((size, width), dtype=np.int32)
        self.logprobs = np.zeros((size, width), dtype=np.float32)
        self.entropies = np.zeros((size, width), dtype=np.float32)
        self.supports = _Supports(size, width)
        self.lengths = np.zeros(size, dtype=np.int64)
        self.stopped = np.zeros(size, dtype=np.bool_)
        self.open = np.ones(size, dtype=np.bool_)
        self.watches = None if watch is None else [watch() for _ in range(size)]
        self.reasons: dict[int, FinishReason] = {}
        """Why a watch ended a row."""

    def add(
        self,
        rows: NDArray[np.int64],
        start: int,
        tokens_TB: NDArray[np.int64],
        logprobs_TB: NDArray[np.float32],
        entropies_TB: NDArray[np.float32],
        support_TBV: Tensor | None,
    ) -> None:
        """Take in tokens `[start, start + T)` of `rows` and close the rows that ended in them."""
        end = start + len(tokens_TB)
        self.tokens[rows, start:end] = tokens_TB.T
        self.logprobs[rows, start:end] = logprobs_TB.T
        self.entropies[rows, start:end] = entropies_TB.T
        if support_TBV is not None:
            self.supports.add(rows, start, support_TBV)
        stops_TB = self.stop_table[tokens_TB]
        has_stop_B = np.asarray(stops_TB.any(axis=0))
        ends_B = np.where(has_stop_B, start + stops_TB.argmax(axis=0) + 1, end)
        if self.watches is not None:
            self._look(self.watches, rows, start, tokens_TB, ends_B, has_stop_B)
        cut_B = ends_B > self.limits[rows]
        ends_B = np.minimum(ends_B, self.limits[rows])
        has_stop_B &= ~cut_B
        open_B = self.open[rows]
        closing_B = open_B & (has_stop_B | (ends_B == self.limits[rows]))
        self.lengths[rows[open_B]] = ends_B[open_B]
        self.stopped[rows[closing_B]] = has_stop_B[closing_B]
        self.open[rows[closing_B]] = False

    def _look(
        self,
        watches: Sequence[ReplyWatch],
        rows: NDArray[np.int64],
        start: int,
        tokens_TB: NDArray[np.int64],
        ends_B: NDArray[np.int64],
        has_stop_B: NDArray[np.bool_],
    ) -> None:
        """Show the watches of open rows their tokens; a row that one ends gets its end here."""
        for column, row in enumerate(rows.tolist()):
            if not self.open[row]:
                continue
            end = int(min(ends_B[column], self.limits[row]))
            for place, token in enumerate(tokens_TB[: end - start, column].tolist(), start=start):
                reason = watches[row].ends(token)
                is_stop_token = has_stop_B[column] and place + 1 == ends_B[column]
                if reason is not None and not is_stop_token:
                    ends_B[column], has_stop_B[column] = place + 1, True
                    self.reasons[row] = reason
                    break


class _Supports:
    """The tokens left in by truncation, row by row in the order of the sampled tokens."""

    def __init__(self, num_rows: int, width: int) -> None:
        self._sizes = np.zeros((num_rows, width), dtype=np.int32)
        self._rows: list[NDArray[np.int32]] = []
        self._tokens: list[NDArray[np.int32]] = []

    def add(self, rows: NDArray[np.int64], start: int, support_TBV: Tensor) -> None:
        """Take in tokens `[start, start + T)` of `rows`."""
        self._sizes[rows, start : start + len(support_TBV)] = support_TBV.sum(-1).cpu().numpy().T
        _, place, token = support_TBV.nonzero().to(torch.int32).cpu().numpy().T
        self._rows.append(rows.astype(np.int32)[place])
        self._tokens.append(np.ascontiguousarray(token))

    def by_row(self, lengths: NDArray[np.int64]) -> list[Support | None]:
        """Of the first `lengths` tokens of each row; None where nothing was recorded."""
        if not self._tokens:
            return [None] * len(lengths)
        rows = np.concatenate(self._rows)
        tokens = np.concatenate(self._tokens)[np.argsort(rows, kind="stable")]
        starts = np.searchsorted(np.sort(rows), np.arange(len(lengths)))
        out: list[Support | None] = []
        for row, length in enumerate(lengths.tolist()):
            sizes = self._sizes[row, :length].copy()
            first = int(starts[row])
            out.append(Support(sizes=sizes, tokens=tokens[first : first + int(sizes.sum())].copy()))
        return out


class DecodeLoop:
    """Samples responses for rows whose prompts are in the cache already.

    Row i of the call starts in cache row `cache_rows[i]`, a permutation of `[0, B)`; unfinished
    rows are kept in the cache rows `[0, num_active)` so that attention reads them without a copy.
    """

    def __init__(
        self,
        forward: CachedForward,
        params: SamplingParams,
        *,
        prompts: Sequence[IntArray],
        cache_rows: Sequence[int],
        limits: NDArray[np.int64],
        seeds: Sequence[int],
        policy_version: int,
    ) -> None:
        self._forward = forward
        self._params = params
        self._version = policy_version
        self._prompt_lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        stop_table = np.zeros(forward.vocab_size, dtype=np.bool_)
        stop_table[list(params.stop_token_ids)] = True
        self._host = _Host(limits, stop_table, params.watch)
        self._row_at = np.argsort(np.asarray(cache_rows, dtype=np.int64))  # cache row -> call row
        self._num_active = len(prompts)
        self._num_forwarded = np.zeros(len(prompts), dtype=np.int64)
        ordered_seeds = [seeds[row] for row in self._row_at.tolist()]
        self._uniforms = RowUniforms(ordered_seeds, device=forward.device)

    def run(
        self, logits_BV: Tensor, on_token: Callable[[int, int], None] = lambda done, of: None
    ) -> list[DecodedRow]:
        """Decode from the logits after each prompt, (B, V) in the order of the call."""
        every = CHECK_EVERY.get(self._forward.device.type, CHECK_EVERY_ELSEWHERE)
        logits_BV = logits_BV[torch.from_numpy(self._row_at).to(logits_BV.device)]
        self._aim(0)
        segment: list[Drawn] = []
        step = 0
        while True:
            sampled = sample_tokens(logits_BV, self._params, self._uniforms)
            segment.append(sampled)
            step += 1
            on_token(step, self._host.tokens.shape[1])
            tokens_B = sampled.tokens
            if len(segment) == every or step == self._host.tokens.shape[1]:
                self._take_in(step, segment)
                segment = []
                kept = self._leave(step)
                if self._num_active == 0:
                    return self._results()
                if kept is not None:
                    tokens_B = tokens_B[torch.from_numpy(kept).to(tokens_B.device)]
            logits_BV = self._forward.decode(tokens_B)

    def _take_in(self, step: int, segment: list[Drawn]) -> None:
        numbers = zip(*((d.tokens, d.logprobs, d.entropies) for d in segment), strict=True)
        tokens, logprobs, entropies = (torch.stack(part).cpu().numpy() for part in numbers)
        supports = [drawn.support for drawn in segment if drawn.support is not None]
        start = step - len(segment)
        rows = self._row_at[: self._num_active]
        self._check_numerics(rows, start, entropies)
        support_TBV = torch.stack(supports) if supports else None
        self._host.add(rows, start, tokens, logprobs, entropies, support_TBV)

    def _check_numerics(
        self, rows: NDArray[np.int64], start: int, entropies_TB: NDArray[np.float32]
    ) -> None:
        if np.isfinite(entropies_TB).all():
            return
        bad_TB = ~np.isfinite(entropies_TB)
        offset = int(bad_TB.any(axis=1).argmax())
        broken = rows[bad_TB[offset]]
        raise PolicyNumericsError(
            f"the policy's logits hold NaN or infinity for {len(broken)} of {len(rows)} rows at "
            f"response token {start + offset} (first: prompt {int(broken.min())}, policy version "
            f"{self._version}): its weights or activations have blown up; go back to an earlier "
            f"checkpoint with a smaller optim.lr, or check the model's dtype"
        )

    def _leave(self, step: int) -> NDArray[np.int64] | None:
        """Let finished rows go if that pays; the old places of those that stay, or None."""
        places = self._row_at[: self._num_active]
        open_B = self._host.open[places]
        num_open = int(open_B.sum())
        leaving = self._num_active - num_open
        if leaving == 0 or (num_open and leaving < self._num_active * MIN_LEAVING_FRACTION):
            return None
        # Every active row has forwarded all its sampled tokens but the newest.
        self._num_forwarded[places] = step - 1
        holes = np.flatnonzero(~open_B[:num_open])
        movers = num_open + np.flatnonzero(open_B[num_open:])
        kept = np.arange(num_open)
        kept[holes] = movers
        self._num_active = num_open
        if num_open == 0:
            return kept
        width = int(self._prompt_lengths[places].max()) + step
        self._forward.swap_rows(holes, movers, width)
        self._row_at[holes], self._row_at[movers] = self._row_at[movers], self._row_at[holes]
        self._uniforms.reorder(kept)
        self._aim(step - 1)
        return kept

    def _aim(self, num_forwarded: int) -> None:
        rows = self._row_at[: self._num_active]
        self._forward.start_decode(self._prompt_lengths[rows] + num_forwarded)

    def _results(self) -> list[DecodedRow]:
        host = self._host
        cache_row = np.argsort(self._row_at)
        num_cached = self._prompt_lengths + np.minimum(self._num_forwarded, host.lengths)
        supports = host.supports.by_row(host.lengths)
        return [
            DecodedRow(
                tokens=host.tokens[i, :length].copy(),
                logprobs=host.logprobs[i, :length].copy(),
                entropies=host.entropies[i, :length].copy(),
                support=supports[i],
                finish_reason=host.reasons.get(i, FinishReason.STOP)
                if host.stopped[i]
                else FinishReason.LENGTH,
                cache_row=int(cache_row[i]),
                num_cached=int(num_cached[i]),
            )
            for i, length in enumerate(host.lengths.tolist())
        ]
