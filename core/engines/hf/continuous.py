"""The sampling loop: requests join the batch between decode steps, finished ones leave.

The cache rows `[0, A)` hold the requests in the batch, so that attention reads them without a copy;
the rows after them keep what finished requests left, for the prompts that continue it. A request
that joins or leaves changes places with another row, which costs about as much as a few tokens of
that row. So a finished request stays in the batch, forwarded for nothing, until it pays to let it
go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echoscope.store.records import FinishReason, IntArray, Support

from ..base import ReplyWatch, Sample, SamplingParams
from .forward import CachedForward
from .kv_cache import COLUMN_BLOCK
from .prefixes import PrefixIndex, StoredRow, plan_prefill
from .sampling import BELOW_ONE, Drawn, numerics_error, sample_tokens

CHECK_EVERY = {"cpu": 1}
CHECK_EVERY_ELSEWHERE = 8
"""Tokens between looks at what was sampled, by device type: a look waits for a GPU."""
MIN_LEAVING_FRACTION = 1 / 8
"""Finished requests leave once they are so many of the batch: leaving copies their cache."""
MIN_JOINING_FRACTION = 1 / 4
"""Requests join once they are so many of those under way: joining costs a forward pass ..."""
MAX_STEPS_WAITING = 8
"""... or once the first of them has waited for so many tokens."""
_MORE_COLUMNS = 4 * COLUMN_BLOCK
"""A cache that grows gets at least so many columns: every growth copies it."""
_UNIFORM_BLOCK = 128
"""Uniforms go to the device for so many tokens at once."""


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
    _uniforms_T: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def begin(self) -> None:
        """Start, or start again, with nothing sampled."""
        self.tokens, self.logprobs, self.entropies, self.supports = [], [], [], []
        self.num_forwarded, self.finish_reason = 0, None
        self._watch = None if self.params.watch is None else self.params.watch()
        self._uniforms_T = np.random.default_rng(self.seed).random(self.limit) * BELOW_ONE

    def next_uniforms(self, number: int) -> NDArray[np.float64]:
        """Up to `number` uniforms in [0, 1): token t always uses number t of the seed's stream."""
        start = len(self.tokens)
        return self._uniforms_T[start : start + number]

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
        if token in self.params.stop_token_ids:
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


class ContinuousBatch:
    """Requests under way over the rows of one cache.

    Args:
        reuse: keep the rows of finished requests for the prompts that continue them.
        policy_version: what samples carry.
    """

    def __init__(self, forward: CachedForward, *, reuse: bool, policy_version: int) -> None:
        self._forward = forward
        self._reuse = reuse
        self._version = policy_version
        self._waiting: deque[Request] = deque()
        self._num_steps_waited = 0
        self._active: list[Request] = []
        """In the order of their cache rows, finished ones that have not left included."""
        self._stored: list[StoredRow | None] = []
        """By cache row; None for rows of requests under way and for empty ones."""
        self._used_at: list[int] = []
        self._clock = count()
        self._logits_AV = torch.empty(0)
        self._uniforms_TA = torch.empty((0, 0))
        self._num_drawn = 0
        """Rows of `_uniforms_TA` that have been used."""
        self._every = CHECK_EVERY.get(forward.device.type, CHECK_EVERY_ELSEWHERE)
        self.max_rows = 1
        """Cache rows, of requests under way and finished ones together."""

    @property
    def num_active(self) -> int:
        """Requests that have a cache row."""
        return len(self._active)

    @property
    def num_longest(self) -> int:
        """Tokens of the longest reply in the batch."""
        return max((len(request.tokens) for request in self._active), default=0)

    @property
    def stored(self) -> PrefixIndex:
        """What finished requests left."""
        return PrefixIndex(self._stored)

    def submit(self, request: Request) -> None:
        """Let a request wait for its place."""
        self._waiting.append(request)

    def advance(self) -> list[tuple[int, Sample]]:
        """One token of every request (a few on a GPU), and the samples of those that finished.

        Raises:
            PolicyNumericsError: NaN or infinity in the logits.
        """
        if self._should_admit():
            self._admit()
        if not self._active:
            return []
        going = [request for request in self._active if request.finish_reason is None]
        last_A = self._sample_segment()
        finished = [request for request in going if request.finish_reason is not None]
        if self._should_leave(len(going) - len(finished)):
            last_A = last_A[self._leave()]
        if self._active:
            self._logits_AV = self._decode(last_A)
        self._num_steps_waited += self._every if self._waiting else 0
        return [(request.key, request.sample(self._version)) for request in finished]

    # -- sampling ---------------------------------------------------------------------------

    def _sample_segment(self) -> Tensor:
        """Sample a token of every row, or a few; the last ones, (A,), are not forwarded yet."""
        size = min(self._every, *(each.limit - each.num_forwarded for each in self._active))
        uniforms_TA = self._next_uniforms(size)
        segment: list[Drawn] = []
        tokens_A = torch.empty(0)
        for step in range(size):
            if step:
                self._logits_AV = self._decode(tokens_A)
            params = self._active[0].params  # all are drawn alike
            segment.append(sample_tokens(self._logits_AV, params, uniforms_TA[step]))
            tokens_A = segment[-1].tokens
        self._take_in(segment)
        return tokens_A

    def _next_uniforms(self, size: int) -> Tensor:
        """The next uniforms of every row, (size, A); any for rows that have finished."""
        if self._num_drawn + size > len(self._uniforms_TA):
            block_AT = np.zeros((len(self._active), _UNIFORM_BLOCK))
            for row, request in enumerate(self._active):
                uniforms = request.next_uniforms(_UNIFORM_BLOCK)
                block_AT[row, : len(uniforms)] = uniforms
            block_TA = torch.from_numpy(np.ascontiguousarray(block_AT.T))
            self._uniforms_TA = block_TA.to(self._forward.device)
            self._num_drawn = 0
        self._num_drawn += size
        return self._uniforms_TA[self._num_drawn - size : self._num_drawn]

    def _take_in(self, segment: Sequence[Drawn]) -> None:
        """Give every request its tokens."""
        numbers = zip(*((d.tokens, d.logprobs, d.entropies) for d in segment), strict=True)
        tokens_TA, logprobs_TA, entropies_TA = (torch.stack(part).cpu().numpy() for part in numbers)
        if not np.isfinite(entropies_TA).all():
            starts = [len(request.tokens) for request in self._active]
            raise numerics_error(entropies_TA, starts, self._version)
        for drawn, *numbers_A in zip(
            segment, tokens_TA.tolist(), logprobs_TA.tolist(), entropies_TA.tolist(), strict=True
        ):
            supports_A = _rows_of(drawn.support)
            for request, *of_token in zip(self._active, *numbers_A, supports_A, strict=False):
                request.add(*of_token)

    def _decode(self, tokens_A: Tensor) -> Tensor:
        logits_AV = self._forward.decode(tokens_A)
        for request in self._active:
            request.num_forwarded += 1
        return logits_AV

    # -- joining and leaving --------------------------------------------------------------------

    def _should_admit(self) -> bool:
        num_open = sum(request.finish_reason is None for request in self._active)
        room = self.max_rows - num_open
        if not self._waiting or not room:
            return False
        number = min(len(self._waiting), room)
        is_long = self._num_steps_waited >= MAX_STEPS_WAITING
        return is_long or number >= num_open * MIN_JOINING_FRACTION

    def _should_leave(self, num_open: int) -> bool:
        """Whether finished requests are many, or one has forwarded as much as it has room for."""
        num_over = len(self._active) - num_open
        return not num_open or (
            num_over > 0
            and (
                num_over >= len(self._active) * MIN_LEAVING_FRACTION
                or any(each.num_forwarded + 1 >= each.limit for each in self._active)
            )
        )

    def _admit(self) -> None:
        """Bring waiting requests into the rows after those under way, and forward their prompts."""
        if self._active:
            self._logits_AV = self._logits_AV[self._leave()]
        num_active = len(self._active)
        size = min(len(self._waiting), self.max_rows - num_active)
        batch = [self._waiting.popleft() for _ in range(size)]
        self._num_steps_waited = 0
        # Where memory runs out in here, they are under way: whoever starts again finds them.
        going, self._active = self._active, [*self._active, *batch]
        for request in batch:
            request.begin()
        prompts = [request.prompt for request in batch]
        self._make_room(num_active, batch)
        self._bring_forward(num_active, self._rows_for(num_active, prompts))
        stored = self._stored[num_active:] if self._reuse else []
        plan = plan_prefill(prompts, stored, share=self._reuse, first_row=num_active)
        logits_BV = self._forward.prefill_plan(prompts, plan)
        order = np.argsort(plan.rows)
        self._active = [*going, *(batch[i] for i in order.tolist())]
        self._stored[num_active : num_active + size] = [None] * size
        logits_BV = logits_BV[self._index(order)]
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
        if columns > cache.num_columns > 0:
            columns = max(columns, cache.num_columns + _MORE_COLUMNS)
        cache.reserve(min(rows, self.max_rows), columns)
        missing = cache.num_rows - len(self._stored)
        self._stored += [None] * missing
        self._used_at += [0] * missing

    def _rows_for(self, num_active: int, prompts: Sequence[IntArray]) -> list[int]:
        """A row for each prompt: the one it continues, or one that is missed the least."""
        index = PrefixIndex(self._stored if self._reuse else [])
        continued = dict.fromkeys(index.continued_by(prompt) for prompt in prompts)
        rows = [row for row in continued if row >= 0]
        free = [row for row in range(num_active, len(self._stored)) if row not in continued]
        free.sort(key=lambda row: (self._stored[row] is not None, self._used_at[row]))
        return rows + free[: len(prompts) - len(rows)]

    def _bring_forward(self, num_active: int, rows: Sequence[int]) -> None:
        """Exchange rows so that `rows` come right after those under way."""
        places = range(num_active, num_active + len(rows))
        chosen = set(rows)
        away = [row for row in rows if row not in places]
        displaced = [row for row in places if row not in chosen]
        if not away:
            return
        held = [self._stored[row] for row in (*away, *displaced)]
        width = max((row.num_cached for row in held if row is not None), default=0)
        if width:
            self._forward.swap_rows(np.array(away), np.array(displaced), width)
        for values in (self._stored, self._used_at):
            _swap(values, away, displaced)

    def _leave(self) -> Tensor:
        """Move finished rows behind the others; the old rows of those that stay, in new order."""
        size = len(self._active)
        is_over = np.array([request.finish_reason is not None for request in self._active])
        num_open = size - int(is_over.sum())
        holes = np.flatnonzero(is_over[:num_open])
        movers = num_open + np.flatnonzero(~is_over[num_open:])
        if len(holes):
            width = max(len(each.prompt) + each.num_forwarded for each in self._active)
            self._forward.swap_rows(holes, movers, width)
            _swap(self._active, holes.tolist(), movers.tolist())
        for row in range(num_open, size):
            self._stored[row] = self._active[row].as_stored() if self._reuse else None
            self._used_at[row] = next(self._clock)
        self._active = self._active[:num_open]
        if 0 < num_open < size:
            self._aim()
        kept = np.arange(num_open)
        kept[holes] = movers
        return self._index(kept)

    def _aim(self) -> None:
        """Decode the rows that are under way now."""
        lengths = [len(each.prompt) + each.num_forwarded for each in self._active]
        self._forward.start_decode(np.array(lengths, dtype=np.int64))
        self._uniforms_TA = torch.empty((0, 0))
        self._num_drawn = 0

    def _index(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(rows).to(self._forward.device)


def _rows_of(support_BV: Tensor | None) -> Iterator[NDArray[np.int32] | None]:
    """The tokens left in, row by row; None for ever where nothing was recorded."""
    if support_BV is None:
        return repeat(None)
    support = support_BV.cpu().numpy()
    rows, tokens = support.nonzero()
    ends = np.searchsorted(rows, np.arange(1, len(support)))
    return iter(np.split(tokens.astype(np.int32), ends))


def _swap(values: list[Any], left: Sequence[int], right: Sequence[int]) -> None:
    for i, j in zip(left, right, strict=True):
        values[i], values[j] = values[j], values[i]
