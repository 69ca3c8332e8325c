"""The streaming interface for engines that have only `generate`: what waits goes in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from echoscope.store.records import IntArray

from .base import GenerationEngine, Sample, SamplingParams, StreamingEngine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Request:
    key: int
    prompt: IntArray
    params: SamplingParams
    seed: int

    @property
    def kind(self) -> SamplingParams:
        """Equal for requests that one call of `generate` can serve: their limits may differ."""
        return replace(self.params, max_new_tokens=1)


class BatchingStream:
    """A `StreamingEngine` over one that has only `generate`.

    `advance` samples all waiting requests of one kind in one call, to the end; what is submitted
    meanwhile waits for the next call.
    """

    def __init__(self, engine: GenerationEngine) -> None:
        self._engine = engine
        self._waiting: dict[int, _Request] = {}

    @property
    def num_pending(self) -> int:
        return len(self._waiting)

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        if key in self._waiting:
            raise ValueError(f"request {key} is pending already: give each request its own key")
        self._waiting[key] = _Request(key=key, prompt=prompt, params=params, seed=seed)

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        if not self._waiting:
            return []
        kind = next(iter(self._waiting.values())).kind
        requests = [request for request in self._waiting.values() if request.kind == kind]
        most = max(request.params.max_new_tokens for request in requests)
        samples = self._engine.generate(
            [request.prompt for request in requests],
            replace(kind, max_new_tokens=most),
            seeds=[request.seed for request in requests],
        )
        for request in requests:
            del self._waiting[request.key]
        return [
            (request.key, sample.cut(request.params.max_new_tokens))
            for request, sample in zip(requests, samples, strict=True)
        ]

    def cancel(self) -> None:
        self._waiting.clear()

    def generate(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        self._check_idle("generate")
        return self._engine.generate(prompts, params, seeds=seeds)

    def release_memory(self) -> None:
        self._engine.release_memory()

    def sync_weights(self, policy: Any) -> None:
        self._check_idle("sync_weights")
        self._engine.sync_weights(policy)

    def close(self) -> None:
        self.cancel()
        self._engine.close()

    def _check_idle(self, call: str) -> None:
        check_idle(self.num_pending, call)


def check_idle(num_pending: int, call: str) -> None:
    """Raises RuntimeError where `call` would meet requests under way."""
    if num_pending:
        raise RuntimeError(
            f"{call} was called while {num_pending} requests are pending: advance until none is, "
            "or cancel them"
        )


def as_streaming(engine: GenerationEngine) -> StreamingEngine:
    """The engine itself where it streams, else a `BatchingStream` over it."""
    return engine if isinstance(engine, StreamingEngine) else BatchingStream(engine)
