"""The built-in engine: samples from the very module that is trained, over its own row cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from echoscope.diagnostics.measure.information.scoring import evaluating
from echoscope.store.records import IntArray

from ...config.engine import HfEngineConfig
from ..base import Sample, SamplingParams
from ..batching import check_idle
from .continuous import ContinuousBatch, Request
from .decoding import DecodedRow, DecodeLoop
from .forward import CachedForward
from .kv_cache import COLUMN_BLOCK, RowCache
from .model import checked_limits, runnable, weights_stamp
from .prefixes import PrefixIndex, StoredRow, plan_prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Where an engine's tokens came from, since it was made."""

    num_prefill_tokens: int = 0
    """Prompt tokens forwarded."""
    num_reused_tokens: int = 0
    """Prompt tokens whose keys and values an earlier call had left."""
    num_shared_tokens: int = 0
    """Prompt tokens another prompt of the same call had forwarded."""
    num_decode_tokens: int = 0
    """Sampled tokens forwarded, finished rows that had not left yet included."""


class HfEngine:
    """A `StreamingEngine` over a Hugging Face causal language model with full attention.

    Keys and values stay where they are between calls: a prompt that continues an earlier response
    costs a forward pass over its new tokens only. A call in which no prompt continues an earlier
    prompt and response starts from an empty cache, so that its samples do not depend, not even by
    rounding, on what was sampled before.

    Args:
        model: the policy; a `PeftModel` with adapters that live inside its layers is fine. It is
            not copied. Attention must be `sdpa` or `eager`.
        config: the bound on rows held at once, and the switch for reuse.
        policy_version: what samples carry until `sync_weights`.
        report: is told in one sentence when sampling ran out of memory and went on with fewer rows.
        on_token: told after each token of a call how many its replies have, and may have at most.

    Raises:
        ValueError: a model this engine cannot run.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        config: HfEngineConfig,
        policy_version: int = 0,
        report: Callable[[str], None] = lambda text: None,
        on_token: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        self._config = config
        self._report = report
        self._on_token = on_token
        self._model: PreTrainedModel | None = None
        self._forward: CachedForward | None = None
        self._stored: list[StoredRow | None] = []
        self._batch: ContinuousBatch | None = None
        self._pending: dict[int, Request] = {}
        self._counts = TokenCounts()
        self._stamp = 0
        self._policy_version = policy_version
        self.max_rows = config.max_batch_rows
        """Rows sampled at once."""
        self._use(model)

    @property
    def counts(self) -> TokenCounts:
        return self._counts

    @property
    def num_cache_bytes(self) -> int:
        """Bytes of keys and values held at the moment."""
        batch = 0 if self._batch is None else self._batch.forward.cache.num_bytes
        return batch + (self._forward.cache.num_bytes if self._forward is not None else 0)

    def release_memory(self) -> None:
        """Forget every cache; the memory is free for the update. Pending requests start again."""
        self._drop_caches()
        if self._model is not None and self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def sync_weights(self, policy: Any) -> None:
        """Sample from `policy.model` as `policy.version` from now on; forgets every cache."""
        check_idle(self.num_pending, "sync_weights")
        self._use(policy.model)
        self._policy_version = int(policy.version)

    def close(self) -> None:
        """Let go of the model and of every cache."""
        self.cancel()
        self._model = None
        self._drop_caches()

    def generate(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        """One sample per prompt, in order.

        Raises:
            ValueError: an empty prompt, a token id outside the vocabulary, a prompt that leaves no
                room for a response, or a different number of seeds.
            PolicyNumericsError: NaN or infinity in the logits.
            RuntimeError: the engine is closed.
        """
        check_idle(self.num_pending, "generate")
        model = self._checked_model()
        self._batch = None
        arrays = [np.ascontiguousarray(prompt, dtype=np.int32) for prompt in prompts]
        limits = checked_limits(model, arrays, params, seeds)
        if not self._config.reuse_cache or not self._continues(arrays):
            self._drop_caches()
        samples: list[Sample | None] = [None] * len(arrays)
        with torch.inference_mode(), evaluating(model):

            def sample(chunk: list[int]) -> None:
                rows = self._generate_chunk(
                    [arrays[i] for i in chunk],
                    params,
                    limits=limits[chunk],
                    seeds=[seeds[i] for i in chunk],
                )
                for i, row in zip(chunk, rows, strict=True):
                    samples[i] = self._sample(row)

            for chunk in self._chunks(arrays):
                for part in self._fitting(chunk, sample):
                    sample(part)
        return [sample for sample in samples if sample is not None]

    # -- requests that come one by one ----------------------------------------------------------

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        """See `StreamingEngine`."""
        if key in self._pending:
            raise ValueError(f"request {key} is pending already: give each request its own key")
        model = self._checked_model()
        array = np.ascontiguousarray(prompt, dtype=np.int32)
        [limit] = checked_limits(model, [array], params, [seed]).tolist()
        request = Request(key=key, prompt=array, params=params, limit=limit, seed=seed)
        self._pending[key] = request
        if self._batch is not None:
            self._batch.submit(request)

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """See `StreamingEngine`; it samples in this call and never waits."""
        if not self._pending:
            return []
        model = self._checked_model()
        try:
            with torch.inference_mode(), evaluating(model):
                samples = self._running_batch().advance()
        except torch.OutOfMemoryError:
            samples = None
        except BaseException:
            # Half-written rows, or rows that hold NaN, must not be found again.
            self.cancel()
            raise
        if samples is None:  # outside of the handler, whose traceback would hold on to the cache
            self._shrink()
            return []
        for key, _ in samples:
            del self._pending[key]
        self._count_batch()
        return samples

    def cancel(self) -> None:
        self._pending.clear()
        self._batch = None

    def _running_batch(self) -> ContinuousBatch:
        if self._batch is None:
            self._drop_caches()
            self._batch = ContinuousBatch(
                self._new_forward(),
                max_rows=self.max_rows,
                reuse=self._config.reuse_cache,
                policy_version=self._policy_version,
            )
            for request in self._pending.values():
                self._batch.submit(request)
        return self._batch

    def _shrink(self) -> None:
        """After memory ran out: sample what is pending again, with a quarter of the rows.

        A sample depends on its seed alone, so that what was lost of it comes back the same.
        """
        assert self._batch is not None
        num_rows = self._batch.num_active
        if num_rows <= 1:
            self.cancel()
            self.release_memory()
            raise _no_memory()
        self.release_memory()
        self.max_rows = max(num_rows // 4, 1)
        self._report_fewer_rows(num_rows)

    def _count_batch(self) -> None:
        """Add what the batch has counted since the last time."""
        assert self._batch is not None
        counted = self._batch.take_counts()
        self._counts = TokenCounts(
            num_prefill_tokens=self._counts.num_prefill_tokens + counted.num_prefilled,
            num_reused_tokens=self._counts.num_reused_tokens + counted.num_reused,
            num_shared_tokens=self._counts.num_shared_tokens + counted.num_shared,
            num_decode_tokens=self._counts.num_decode_tokens + counted.num_decoded,
        )

    # -- one chunk of at most max_batch_rows prompts --------------------------------------------

    def _generate_chunk(
        self,
        prompts: Sequence[IntArray],
        params: SamplingParams,
        *,
        limits: NDArray[np.int64],
        seeds: Sequence[int],
    ) -> list[DecodedRow]:
        forward = self._forward_over_cache()
        reuse = self._config.reuse_cache
        plan = plan_prefill(prompts, self._stored if reuse else [], share=reuse)
        self._stored[: len(prompts)] = [None] * len(prompts)
        longest = max(map(len, prompts))
        forward.cache.reserve(len(prompts), longest + min(int(limits.max()), COLUMN_BLOCK))
        try:
            before = forward.num_tokens
            logits_BV = forward.prefill_plan(prompts, plan)
            prefilled = forward.num_tokens
            loop = DecodeLoop(
                forward,
                params,
                prompts=prompts,
                cache_rows=plan.rows,
                limits=limits,
                seeds=seeds,
                policy_version=self._policy_version,
            )
            rows = loop.run(logits_BV, self._on_token)
        except BaseException:
            # Half-written rows, or rows that hold NaN, must not be found again.
            self._drop_caches()
            raise
        for prompt, row in zip(prompts, rows, strict=True):
            self._stored[row.cache_row] = StoredRow(
                tokens=np.concatenate([prompt, row.tokens]), num_cached=row.num_cached
            )
        self._counts = TokenCounts(
            num_prefill_tokens=self._counts.num_prefill_tokens + prefilled - before,
            num_reused_tokens=self._counts.num_reused_tokens + plan.num_reused,
            num_shared_tokens=self._counts.num_shared_tokens + plan.num_shared,
            num_decode_tokens=self._counts.num_decode_tokens + forward.num_tokens - prefilled,
        )
        return rows

    def _chunks(self, prompts: Sequence[IntArray]) -> Iterator[list[int]]:
        """Prompt indices by chunk; those with the most to reuse first, before it is written over.

        Rows that the call has no use for are dropped with its first chunk.
        """
        order = list(range(len(prompts)))
        size = self.max_rows
        if len(order) > size and self._stored:
            index = PrefixIndex(self._stored)
            order.sort(key=lambda i: -index.match(prompts[i])[1])
        for start in range(0, len(order), size):
            yield sorted(order[start : start + size])

    def _fitting(
        self, chunk: list[int], sample: Callable[[list[int]], None]
    ) -> Iterator[list[int]]:
        """Sample a chunk; where it runs out of memory, its parts of a quarter of the rows are left
        to be sampled. Later chunks are as small."""
        try:
            sample(chunk)
            return
        except torch.OutOfMemoryError:
            if len(chunk) == 1:
                raise _no_memory() from None
        # Outside of the handler, whose traceback would hold on to the caches.
        self.release_memory()
        self.max_rows = max(len(chunk) // 4, 1)
        self._report_fewer_rows(len(chunk))
        for start in range(0, len(chunk), self.max_rows):
            yield chunk[start : start + self.max_rows]

    def _report_fewer_rows(self, num_rows: int) -> None:
        self._report(
            f"sampling {num_rows} rows at once ran out of memory; from now on at most "
            f"{self.max_rows} are: engine.max_batch_rows={self.max_rows} avoids this"
        )

    def _continues(self, prompts: Sequence[IntArray]) -> bool:
        """Whether any prompt continues a stored prompt and its response."""
        index = PrefixIndex(self._stored)
        for prompt in prompts:
            row, _ = index.match(prompt)
            stored = self._stored[row] if row >= 0 else None
            if stored is not None and stored.is_continued_by(prompt):
                return True
        return False

    def _sample(self, row: DecodedRow) -> Sample:
        return Sample(
            tokens=row.tokens,
            logprobs=row.logprobs,
            entropies=row.entropies,
            support=row.support,
            finish_reason=row.finish_reason,
            policy_version=self._policy_version,
        )

    # -- the model -------------------------------------------------------------------------------

    def _use(self, model: PreTrainedModel) -> None:
        self._model = runnable(model)
        self._stamp = weights_stamp(self._model)
        self._drop_caches()

    def _checked_model(self) -> PreTrainedModel:
        """The model to run, with no cache of other weights.

        Raises:
            RuntimeError: the engine is closed, or the weights moved under pending requests.
        """
        if self._model is None:
            raise RuntimeError("the engine is closed: make a new one to sample again")
        if weights_stamp(self._model) != self._stamp:
            # Keys and values of other weights would give log-probs of neither policy.
            check_idle(self.num_pending, "a change of the weights")
            self._use(self._model)
        return self._model

    def _drop_caches(self) -> None:
        self._forward = None
        self._batch = None
        self._stored = []

    def _forward_over_cache(self) -> CachedForward:
        if self._forward is None:
            self._forward = self._new_forward()
        return self._forward

    def _new_forward(self) -> CachedForward:
        assert self._model is not None
        device = self._model.get_input_embeddings().weight.device
        return CachedForward(self._model, RowCache(device=device))


def _no_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(
        "memory ran out while sampling a single reply: lower context.max_prompt_tokens or "
        "context.max_response_tokens, or choose a smaller model.path"
    )
