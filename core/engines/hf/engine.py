"""The built-in engine: samples from the very module that is trained, over its own row cache."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from echoscope.diagnostics.measure.information.scoring import evaluating
from echoscope.store.records import IntArray

from ...config.engine import HfEngineConfig
from ..base import Engine, Sample, SamplingParams, check_idle
from .continuous import ContinuousBatch, Request
from .forward import CachedForward
from .kv_cache import RowCache
from .model import limits_of, runnable, weights_stamp


class HfEngine(Engine):
    """An engine over a Hugging Face causal language model with full attention.

    Keys and values stay where they are: a prompt that continues an earlier response costs a forward
    pass over its new tokens only. Where sampling begins with prompts of which none continues an
    earlier prompt and response, it starts from an empty cache, so that the samples do not depend,
    not even by rounding, on what was sampled before.

    Args:
        model: the policy; a `PeftModel` with adapters that live inside its layers is fine.
            Attention must be `sdpa` or `eager`.
        config: the bound on rows held at once, and the switch for reuse.
        copies: sample from a copy of the weights, which `sync_weights` renews: the model may be
            updated meanwhile. Else the model itself is sampled from.
        report: is told in one sentence when sampling ran out of memory and went on with fewer rows.
        on_token: told after each token how many the replies have, and may have at most.

    Raises:
        ValueError: a model this engine cannot run.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        config: HfEngineConfig,
        copies: bool = False,
        report: Callable[[str], None] = lambda text: None,
        on_token: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        self._config = config
        self._report = report
        self._on_token = on_token
        self._copy: Any = copy.deepcopy(model).requires_grad_(False) if copies else None
        self._model: PreTrainedModel | None = None
        self._batch: ContinuousBatch | None = None
        self._pending: dict[int, Request] = {}
        self._is_sampling = False
        """What is pending has met the cache."""
        self._most_pending = 0
        """Since the cache was empty: it has rows for so many."""
        self._weights: tuple[Tensor, ...] = ()
        self._stamp = 0
        self._policy_version = 0
        self.max_rows = config.max_batch_rows
        """Rows sampled at once."""
        self._use(model if self._copy is None else self._copy)

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        limits = limits_of(self._checked_model())
        ids, limit = limits.checked(key, prompt, params, self._pending)
        under_way = next(iter(self._pending.values()), None)
        if under_way is not None and not params.draws_like(under_way.params):
            raise ValueError(
                f"request {key} is sampled in another way than those under way: advance until none "
                "is pending"
            )
        request = Request(key=key, prompt=ids, params=params, limit=limit, seed=seed)
        self._pending[key] = request
        self._most_pending = max(self._most_pending, len(self._pending))
        if self._is_sampling and self._batch is not None:
            self._batch.submit(request)

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """See `Engine`; it samples in this call and never waits.

        Raises:
            PolicyNumericsError: NaN or infinity in the logits.
        """
        if not self._pending:
            return []
        with torch.inference_mode(), evaluating(self._checked_model()):
            try:
                return self._advance()
            except BaseException:
                # Half-written rows, or rows that hold NaN, must not be found again.
                self.cancel()
                raise

    def cancel(self) -> None:
        self._pending.clear()
        self._forget()

    def release_memory(self) -> None:
        """Forget the cache; the memory is free for the update. Pending requests start again."""
        self._forget()
        if self._model is not None and self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def sync_weights(self, policy: Any) -> None:
        """Sample from `policy.model` as `policy.version` from now on; forgets the cache."""
        check_idle(self.num_pending, "sync_weights")
        if self._copy is None:
            self._use(policy.model)
        else:
            with torch.no_grad():
                pairs = zip(self._copy.parameters(), policy.model.parameters(), strict=True)
                for target, source in pairs:
                    target.copy_(source)
            self._use(self._copy)
        self._policy_version = int(policy.version)

    def close(self) -> None:
        """Let go of the model and of the cache."""
        self.cancel()
        self._model, self._copy, self._weights = None, None, ()

    def _advance(self) -> list[tuple[int, Sample]]:
        if not self._is_sampling:
            self._begin()
        batch = self._batch
        assert batch is not None
        batch.max_rows = min(self.max_rows, self._most_pending)
        try:
            samples = batch.advance()
        except torch.OutOfMemoryError:
            num_rows = batch.num_active
        else:
            for key, _ in samples:
                del self._pending[key]
            self._is_sampling = bool(self._pending)
            if batch.num_active:
                most = max((request.limit for request in self._pending.values()), default=0)
                self._on_token(batch.num_longest, max(most, batch.num_longest))
            return samples
        del batch  # as the handler's traceback, it would hold on to the cache
        self._shrink(num_rows)
        return []

    def _begin(self) -> None:
        """Submit everything that is pending to a batch over the cache."""
        requests = list(self._pending.values())
        stored = None if self._batch is None else self._batch.stored
        if stored is None or all(stored.continued_by(each.prompt) < 0 for each in requests):
            assert self._model is not None
            self._forget()
            self._most_pending = len(requests)
            device = self._model.get_input_embeddings().weight.device
            self._batch = ContinuousBatch(
                CachedForward(self._model, RowCache(device=device)),
                reuse=self._config.reuse_cache,
                policy_version=self._policy_version,
            )
        elif len(requests) > self.max_rows:  # those with the most to reuse, before it is lost
            requests.sort(key=lambda each: -stored.match(each.prompt)[1])
        assert self._batch is not None
        for request in requests:
            self._batch.submit(request)
        self._is_sampling = True

    def _forget(self) -> None:
        """The cache: what is pending starts again."""
        self._batch, self._is_sampling = None, False

    def _shrink(self, num_rows: int) -> None:
        """After so many rows ran out of memory: sample what is pending again, a quarter at once.

        A sample depends on its seed alone, so that what was lost of it comes back the same.
        """
        self.release_memory()
        if num_rows <= 1:
            raise torch.OutOfMemoryError(
                "memory ran out while sampling a single reply: lower context.max_prompt_tokens or "
                "context.max_response_tokens, or choose a smaller model.path"
            )
        self.max_rows = max(num_rows // 4, 1)
        self._report(
            f"sampling {num_rows} rows at once ran out of memory; from now on at most "
            f"{self.max_rows} are: engine.max_batch_rows={self.max_rows} avoids this"
        )

    # -- the model -------------------------------------------------------------------------------

    def _use(self, model: PreTrainedModel) -> None:
        self._model = runnable(model)
        # Walking through the modules takes a millisecond.
        self._weights = tuple(self._model.parameters())
        self._stamp = weights_stamp(self._weights)
        self._forget()

    def _checked_model(self) -> PreTrainedModel:
        """The model to run, with no cache of other weights.

        Raises:
            RuntimeError: the engine is closed, or the weights moved under pending requests.
        """
        if self._model is None:
            raise RuntimeError("the engine is closed: make a new one to sample again")
        if weights_stamp(self._weights) != self._stamp:
            # Keys and values of other weights would give log-probs of neither policy.
            check_idle(self.num_pending, "a change of the weights")
            self._use(self._model)
        return self._model
