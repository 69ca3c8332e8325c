"""Continuous batching: requests join the batch between decode steps, finished ones leave at once.

The cache rows `[0, A)` hold the requests under way, so that attention reads them without a copy;
the rows after them keep what finished requests left, for the prompts that continue it. A request
that joins or leaves changes places with another row, which costs about as much as a few tokens of
that row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echoscope.store.records import FinishReason, IntArray, Support

from ..base import ReplyWatch, Sample, SamplingParams
from .decoding import CHECK_EVERY, CHECK_EVERY_ELSEWHERE
from .forward import CachedForward
from .kv_cache import COLUMN_BLOCK
from .prefixes import PrefixIndex, StoredRow, plan_prefill
from .sampling import BELOW_ONE, UNIFORM_BLOCK, Drawn, GivenUniforms, check_numerics, sample_tokens

MIN_JOINING_FRACTION = 1 / 4
"""Requests join once they are so many of those under way: joining costs a forward pass ..."""
MAX_STEPS_WAITING = 8
"""... or once the first of them has waited for so many tokens."""
_MORE_COLUMNS = 4 * COLUMN_BLOCK
"""A cache that grows gets at least so many columns: every growth copies it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request, and what has been sampled for it so far."""

    key: int
    prompt: IntArray  # (Lp,)
    params: SamplingParams
    limit: int
    """`max_new_tokens`, or what the model's positions leave."""
    seed: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    supports: list[NDArray[np.int32]] = field(default_factory=list)
    num_forwarded: int = 0
    """Sampled tokens, and surplus ones, whose keys and values are in the cache row."""
    finish_reason: FinishReason | None = None
    _watch: ReplyWatch | None = None
    _stops: frozenset[int] = frozenset()
    _uniforms: NDArray[np.float64] | None = None
    _rng: np.random.Generator | None = None

    def begin(self) -> None:
        """Start, or start again, with nothing sampled."""
        self.tokens, self.logprobs, self.entropies, self.supports = [], [], [], []
        self.num_forwarded = 0
        self._watch = None if self.params.watch is None else self.params.watch()
        self._stops = frozenset(self.params.stop_token_ids)
        self._rng = np.random.default_rng(self.seed)
        self._uniforms = np.empty(0)

    @property
    def kind(self) -> SamplingParams:
        """Equal for requests whose tokens are drawn the same way."""
        return replace(self.params, max_new_tokens=1, stop_token_ids=(), watch=None)

    def next_uniforms(self, number: int) -> NDArray[np.float64]:
        """The next uniforms of this request's own stream, (number,)."""
        assert self._rng is not None
        assert self._uniforms is not None
        while len(self._uniforms) < number:
            more = self._rng.random(UNIFORM_BLOCK) * BELOW_ONE
            self._uniforms = np.concatenate([self._uniforms, more])
        out, self._uniforms = self._uniforms[:number], self._uniforms[number:]
        return out

    def add(
        self, token: int, logprob: float, entropy: float, support: NDArray[np.int32] | None
    ) -> None:
        """Take in a token; one after the end is dropped."""
        if self.finish_reason is not None:
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.entropies.append(entropy)
        if support is not None:
            self.supports.append(support)
        if token in self._stops:
            self.finish_reason = FinishReason.STOP
            return
        self.finish_reason = None if self._watch is None else self._watch.ends(token)
        if self.finish_reason is None and len(self.tokens) == self.limit:
            self.finish_reason = FinishReason.LENGTH

    def sample(self, policy_version: int) -> Sample:
        """What was sampled, once it is finished."""
        assert self.finish_reason is not None
        support = None
        if self.supports:
            support = Support(
                sizes=np.array([len(kept) for kept in self.supports], np.int32),
                tokens=np.concatenate(self.supports),
            )
        return Sample(
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            entropies=np.array(self.entropies, np.float32),
            support=support,
            finish_reason=self.finish_reason,
            policy_version=policy_version,
        )

    def as_stored(self) -> StoredRow:
        """What its cache row holds."""
        return StoredRow(
            tokens=np.concatenate([self.prompt, np.array(self.tokens, np.int32)]),
            num_cached=len(self.prompt) + min(self.num_forwarded, len(self.tokens)),
        )


@dataclass(slots=True)
class BatchCounts:
    """Tokens of a while."""

    num_prefilled: int = 0
    """Prompt tokens forwarded."""
    num_reused: int = 0
    """Prompt tokens whose keys and values an earlier request had left."""
    num_shared: int = 0
    """Prompt tokens that another prompt of the same admission had forwarded."""
    num_decoded: int = 0
    """Sampled tokens forwarded."""


class ContinuousBatch:
    """Requests under way over the rows of one cache.

    Args:
        max_rows: cache rows, of requests under way and finished ones together.
        reuse: keep the rows of finished requests for the prompts that continue them.
        policy_version: what samples carry.
    """

    def __init__(
        self, forward: CachedForward, *, max_rows: int, reuse: bool, policy_version: int
    ) -> None:
        self._forward = forward
        self._max_rows = max_rows
        self._reuse = reuse
        self._version = policy_version
        self._waiting: deque[Request] = deque()
        self._num_steps_waited = 0
        self._active: list[Request] = []
        """In the order of their cache rows."""
        self._stored: list[StoredRow | None] = []
        """By cache row; None for rows of requests under way and for empty ones."""
        self._used_at: list[int] = []
        self._clock = count()
        self._logits_AV = torch.empty(0)
        self._every = CHECK_EVERY.get(forward.device.type, CHECK_EVERY_ELSEWHERE)
        self._kinds: list[tuple[SamplingParams, list[int]]] = []
        self._counts = BatchCounts()

    @property
    def forward(self) -> CachedForward:
        return self._forward

    @property
    def num_active(self) -> int:
        """Requests that have a cache row."""
        return len(self._active)

    def take_counts(self) -> BatchCounts:
        """Where tokens came from since the last time this was asked."""
        counts, self._counts = self._counts, BatchCounts()
        return counts

    def submit(self, request: Request) -> None:
        """Let a request wait for its place."""
        self._waiting.append(request)

    def advance(self) -> list[tuple[int, Sample]]:
        """One token of every request (a few on a GPU); those that finished leave.

        Raises:
            PolicyNumericsError: NaN or infinity in the logits.
        """
        if self._should_admit():
            self._admit()
        if not self._active:
            return []
        last_B = self._sample_segment()
        finished = [row for row, each in enumerate(self._active) if each.finish_reason is not None]
        out = [(self._active[i].key, self._active[i].sample(self._version)) for i in finished]
        if finished:
            stays_B = self._leave(finished)
            last_B = last_B[torch.from_numpy(stays_B).to(last_B.device)]
        if self._active:
            self._logits_AV = self._decode(last_B)
        self._num_steps_waited += self._every if self._waiting else 0
        return out

    # -- sampling ---------------------------------------------------------------------------

    def _sample_segment(self) -> Tensor:
        """Sample `_every` tokens of every row; the last ones, (A,), are not forwarded yet."""
        uniforms_BT = np.stack([each.next_uniforms(self._every) for each in self._active])
        uniforms_TB = torch.from_numpy(np.ascontiguousarray(uniforms_BT.T)).to(self._forward.device)
        segment: list[list[Drawn]] = []
        tokens_B = torch.empty(0)
        for step in range(self._every):
            if step:
                self._logits_AV = self._decode(tokens_B)
            segment.append(self._draw(uniforms_TB[step]))
            tokens_B = self._in_rows([drawn.tokens for drawn in segment[-1]])
        self._take_in(segment)
        return tokens_B

    def _draw(self, uniforms_B: Tensor) -> list[Drawn]:
        """One token of every row, kind by kind."""
        if len(self._kinds) == 1:
            return [sample_tokens(self._logits_AV, self._kinds[0][0], GivenUniforms(uniforms_B))]
        out = []
        for kind, rows in self._kinds:
            index = torch.tensor(rows, device=self._logits_AV.device)
            out.append(
                sample_tokens(self._logits_AV[index], kind, GivenUniforms(uniforms_B[index]))
            )
        return out

    def _in_rows(self, parts: Sequence[Tensor]) -> Tensor:
        """Values kind by kind, put in the order of the rows."""
        if len(parts) == 1:
            return parts[0]
        order = np.argsort([row for _, rows in self._kinds for row in rows])
        return torch.cat(list(parts))[torch.from_numpy(order).to(parts[0].device)]

    def _take_in(self, segment: Sequence[Sequence[Drawn]]) -> None:
        """Give every request its tokens, kind by kind."""
        for place, (_, rows) in enumerate(self._kinds):
            drawn = [parts[place] for parts in segment]
            numbers = zip(*((d.tokens, d.logprobs, d.entropies) for d in drawn), strict=True)
            tokens, logprobs, entropies = (torch.stack(part).cpu().numpy() for part in numbers)
            starts = [len(self._active[row].tokens) for row in rows]
            check_numerics(entropies, starts, self._version)
            supports = [None if part.support is None else part.support.cpu() for part in drawn]
            for column, row in enumerate(rows):
                request = self._active[row]
                row_numbers = zip(
                    tokens[:, column].tolist(),
                    logprobs[:, column].tolist(),
                    entropies[:, column].tolist(),
                    supports,
                    strict=True,
                )
                for token, logprob, entropy, support_BV in row_numbers:
                    kept = None
                    if support_BV is not None:
                        kept = support_BV[column].nonzero().flatten().numpy().astype(np.int32)
                    request.add(token, logprob, entropy, kept)

    def _decode(self, tokens_B: Tensor) -> Tensor:
        logits = self._forward.decode(tokens_B)
        for request in self._active:
            request.num_forwarded += 1
        self._counts.num_decoded += len(self._active)
        return logits

    # -- joining and leaving --------------------------------------------------------------------

    def _should_admit(self) -> bool:
        room = self._max_rows - len(self._active)
        if not self._waiting or not room:
            return False
        number = min(len(self._waiting), room)
        is_long = self._num_steps_waited >= MAX_STEPS_WAITING
        return is_long or number >= len(self._active) * MIN_JOINING_FRACTION

    def _admit(self) -> None:
        """Bring waiting requests into the rows after those under way, and forward their prompts."""
        num_active = len(self._active)
        size = min(len(self._waiting), self._max_rows - num_active)
        batch = [self._waiting.popleft() for _ in range(size)]
        self._num_steps_waited = 0
        # Where memory runs out in here, they are under way: whoever starts again finds them.
        kept, self._active = self._active, [*self._active, *batch]
        for request in batch:
            request.begin()
        prompts = [request.prompt for request in batch]
        self._make_room(num_active, batch)
        self._bring_forward(num_active, self._rows_for(num_active, prompts))
        stored = self._stored[num_active:] if self._reuse else []
        plan = plan_prefill(prompts, stored, share=self._reuse)
        before = self._forward.num_tokens
        logits_BV = self._forward.prefill_plan(prompts, plan.moved_down(num_active))
        self._counts.num_prefilled += self._forward.num_tokens - before
        self._counts.num_reused += plan.num_reused
        self._counts.num_shared += plan.num_shared
        order = np.argsort(plan.rows)
        self._active = [*kept, *(batch[i] for i in order.tolist())]
        self._stored[num_active : num_active + size] = [None] * size
        logits_BV = logits_BV[torch.from_numpy(order).to(logits_BV.device)]
        self._logits_AV = torch.cat([self._logits_AV, logits_BV]) if num_active else logits_BV
        self._aim()

    def _make_room(self, num_active: int, batch: Sequence[Request]) -> None:
        """Have rows for these and for what is stored, and columns for their prompts."""
        num_stored = sum(row is not None for row in self._stored)
        cache = self._forward.cache
        rows = num_active + len(batch) + num_stored
        if rows > cache.num_rows:  # every growth copies the cache
            rows = max(rows, 2 * cache.num_rows)
        columns = max(len(request.prompt) + min(request.limit, COLUMN_BLOCK) for request in batch)
        if columns > cache.num_columns:
            columns = max(columns, cache.num_columns + _MORE_COLUMNS)
        cache.reserve(min(rows, self._max_rows), columns)
        missing = cache.num_rows - len(self._stored)
        self._stored += [None] * missing
        self._used_at += [0] * missing

    def _rows_for(self, num_active: int, prompts: Sequence[IntArray]) -> list[int]:
        """A row for each prompt: the one it continues, or one that is missed the least."""
        rows: list[int] = []
        num_fresh = 0
        index = PrefixIndex(self._stored if self._reuse else [])
        for prompt in prompts:
            row, _ = index.match(prompt)
            stored = self._stored[row] if row >= 0 else None
            if stored is not None and stored.is_continued_by(prompt) and row not in rows:
                rows.append(row)
            else:
                num_fresh += 1
        free = [row for row in range(num_active, len(self._stored)) if row not in rows]
        free.sort(key=lambda row: (self._stored[row] is not None, self._used_at[row]))
        for row in free[:num_fresh]:
            self._stored[row] = None
        return rows + free[:num_fresh]

    def _bring_forward(self, num_active: int, rows: Sequence[int]) -> None:
        """Exchange rows so that `rows` come right after those under way."""
        places = range(num_active, num_active + len(rows))
        wanted, inside = set(rows), set(places)
        away = [row for row in rows if row not in inside]
        displaced = [row for row in places if row not in wanted]
        if not away:
            return
        held = [self._stored[row] for row in (*away, *displaced)]
        width = max((row.num_cached for row in held if row is not None), default=0)
        if width:
            self._forward.swap_rows(np.array(away), np.array(displaced), width)
        for values in (self._stored, self._used_at):
            _swap(values, away, displaced)

    def _leave(self, finished: Sequence[int]) -> NDArray[np.int64]:
        """Move finished rows behind the others; the old rows of those that stay, in new order."""
        size = len(self._active)
        is_done = np.zeros(size, dtype=np.bool_)
        is_done[list(finished)] = True
        num_open = size - len(finished)
        holes = np.flatnonzero(is_done[:num_open])
        movers = num_open + np.flatnonzero(~is_done[num_open:])
        if len(holes):
            width = max(len(each.prompt) + each.num_forwarded for each in self._active)
            self._forward.swap_rows(holes, movers, width)
            _swap(self._active, holes.tolist(), movers.tolist())
        for row in range(num_open, size):
            self._stored[row] = self._active[row].as_stored() if self._reuse else None
            self._used_at[row] = next(self._clock)
        self._active = self._active[:num_open]
        if num_open:
            self._aim()
        kept = np.arange(num_open)
        kept[holes] = movers
        return kept

    def _aim(self) -> None:
        lengths = [len(each.prompt) + each.num_forwarded for each in self._active]
        self._forward.start_decode(np.array(lengths, dtype=np.int64))
        by_kind: dict[SamplingParams, list[int]] = {}
        for row, request in enumerate(self._active):
            by_kind.setdefault(request.kind, []).append(row)
        self._kinds = list(by_kind.items())


def _swap(values: list[Any], left: Sequence[int], right: Sequence[int]) -> None:
    for i, j in zip(left, right, strict=True):
        values[i], values[j] = values[j], values[i]
