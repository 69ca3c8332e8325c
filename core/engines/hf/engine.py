"""The built-in engine: samples from the very module that is trained, over its own row cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from echoscope.diagnostics.measure.information.scoring import evaluating
from echoscope.store.records import IntArray

from ...config.engine import HfEngineConfig
from ..base import Sample, SamplingParams
from ..batching import check_idle
from .continuous import ContinuousBatch, Request, TokenCounts
from .forward import CachedForward
from .kv_cache import RowCache
from .model import checked_limits, runnable, weights_stamp
from .prefixes import PrefixIndex


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
        self._batch: ContinuousBatch | None = None
        self._pending: dict[int, Request] = {}
        self.counts = TokenCounts()
        self._stamp = 0
        self._policy_version = policy_version
        self.max_rows = config.max_batch_rows
        """Rows sampled at once."""
        self._use(model)

    @property
    def num_cache_bytes(self) -> int:
        """Bytes of keys and values held at the moment."""
        return 0 if self._batch is None else self._batch.num_bytes

    def release_memory(self) -> None:
        """Forget the cache; the memory is free for the update. Pending requests start again."""
        self._batch = None
        if self._model is not None and self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def sync_weights(self, policy: Any) -> None:
        """Sample from `policy.model` as `policy.version` from now on; forgets the cache."""
        check_idle(self.num_pending, "sync_weights")
        self._use(policy.model)
        self._policy_version = int(policy.version)

    def close(self) -> None:
        """Let go of the model and of the cache."""
        self.cancel()
        self._model = None

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
        arrays = [np.ascontiguousarray(prompt, dtype=np.int32) for prompt in prompts]
        limits = checked_limits(model, arrays, params, seeds).tolist()
        stored = PrefixIndex([]) if self._batch is None else self._batch.stored
        if all(stored.continued_by(prompt) < 0 for prompt in arrays):
            self._batch = None
        order = list(range(len(arrays)))
        if len(order) > self.max_rows:  # those with the most to reuse, before it is written over
            order.sort(key=lambda i: -stored.match(arrays[i])[1])
        for i in order:
            self._take(
                Request(key=i, prompt=arrays[i], params=params, limit=limits[i], seed=seeds[i])
            )
        samples: dict[int, Sample] = {}
        try:
            with torch.inference_mode(), evaluating(model):
                while self._pending:
                    samples.update(self._advance(min(self.max_rows, len(arrays))))
                    if self._batch is not None and self._batch.num_active:
                        self._on_token(self._batch.num_longest, max(limits))
        finally:
            if self._pending:  # a signal may cut in anywhere
                self.cancel()
        return [samples[i] for i in range(len(arrays))]

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
        self._take(Request(key=key, prompt=array, params=params, limit=limit, seed=seed))

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """See `StreamingEngine`; it samples in this call and never waits."""
        if not self._pending:
            return []
        with torch.inference_mode(), evaluating(self._checked_model()):
            return self._advance(self.max_rows)

    def cancel(self) -> None:
        self._pending.clear()
        self._batch = None

    def _take(self, request: Request) -> None:
        self._pending[request.key] = request
        if self._batch is not None:
            self._batch.submit(request)

    def _running_batch(self) -> ContinuousBatch:
        """The batch over the cache; a new one begins with what is pending."""
        if self._batch is None:
            assert self._model is not None
            device = self._model.get_input_embeddings().weight.device
            self._batch = ContinuousBatch(
                CachedForward(self._model, RowCache(device=device)),
                reuse=self._config.reuse_cache,
                policy_version=self._policy_version,
                counts=self.counts,
            )
            for request in self._pending.values():
                self._batch.submit(request)
        return self._batch

    def _advance(self, max_rows: int) -> list[tuple[int, Sample]]:
        batch = self._running_batch()
        batch.max_rows = max_rows
        try:
            samples = batch.advance()
        except torch.OutOfMemoryError:
            num_rows = batch.num_active
        except BaseException:
            # Half-written rows, or rows that hold NaN, must not be found again.
            self.cancel()
            raise
        else:
            for key, _ in samples:
                del self._pending[key]
            return samples
        del batch  # as the handler's traceback, it would hold on to the cache
        self._shrink(num_rows)
        return []

    def _shrink(self, num_rows: int) -> None:
        """After so many rows ran out of memory: sample what is pending again, a quarter at once.

        A sample depends on its seed alone, so that what was lost of it comes back the same.
        """
        if num_rows <= 1:
            self.cancel()
            self.release_memory()
            raise torch.OutOfMemoryError(
                "memory ran out while sampling a single reply: lower context.max_prompt_tokens or "
                "context.max_response_tokens, or choose a smaller model.path"
            )
        self.release_memory()
        self.max_rows = max(num_rows // 4, 1)
        self._report(
            f"sampling {num_rows} rows at once ran out of memory; from now on at most "
            f"{self.max_rows} are: engine.max_batch_rows={self.max_rows} avoids this"
        )

    # -- the model -------------------------------------------------------------------------------

    def _use(self, model: PreTrainedModel) -> None:
        self._model = runnable(model)
        self._stamp = weights_stamp(self._model)
        self._batch = None

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
