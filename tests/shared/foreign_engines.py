"""Engines that are not the trainer: one lies about its log-probs, one has old weights."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from batch_engine import BatchEngine
from generating import generate

from echoscope.core.engines.base import Engine, Sample, SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.store.records import IntArray


class LyingEngine(BatchEngine):
    """Samples honestly and records log-probs that are off by `nats`, and by `noise` at random."""

    def __init__(self, inner: Engine, *, nats: float = 0.05, noise: float = 0.0) -> None:
        self._inner, self._nats, self._noise = inner, nats, noise

    def answer(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        samples = generate(self._inner, prompts, params, seeds=seeds)
        return [self._lie(sample, seed) for sample, seed in zip(samples, seeds, strict=True)]

    def _lie(self, sample: Sample, seed: int) -> Sample:
        noise = np.random.default_rng(seed).normal(size=len(sample.tokens))
        wrong = sample.logprobs + self._nats + self._noise * noise
        return replace(sample, logprobs=wrong.astype(np.float32))

    def release_memory(self) -> None:
        self._inner.release_memory()

    def sync_weights(self, policy: Any) -> None:
        self._inner.sync_weights(policy)

    def close(self) -> None:
        self._inner.close()


class StaleEngine(BatchEngine):
    """Samples from a copy of the weights that is `lag` syncs old, and says which version it is."""

    def __init__(self, model: Any, *, lag: int = 3, **options: Any) -> None:
        """`options` are those of `HfEngine`."""
        self._model = copy.deepcopy(model)
        self._inner = HfEngine(self._model, **options)
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque([(0, self._snapshot(model))])
        self._lag = lag

    @staticmethod
    def _snapshot(model: Any) -> dict[str, Any]:
        return {name: weight.detach().clone() for name, weight in model.state_dict().items()}

    def answer(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        return generate(self._inner, prompts, params, seeds=seeds)

    def release_memory(self) -> None:
        self._inner.release_memory()

    def sync_weights(self, policy: Any) -> None:
        """Take the weights of `lag` syncs ago; the first ones until there are so many."""
        self._waiting.append((policy.version, self._snapshot(policy.model)))
        if len(self._waiting) > self._lag + 1:
            self._waiting.popleft()
        version, weights = self._waiting[0]
        self._model.load_state_dict(weights)
        self._inner.sync_weights(SimpleNamespace(model=self._model, version=version))

    def close(self) -> None:
        self._inner.close()
