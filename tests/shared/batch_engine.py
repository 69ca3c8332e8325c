"""An engine for tests that answers everything that waits in one call, in the order of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from echoscope.core.engines.base import Engine, Sample, SamplingParams
from echoscope.store.records import FinishReason, IntArray


class BatchEngine(Engine):
    """Subclasses say in `answer` what a call gives; `generate` may call it, too."""

    _requests: dict[int, tuple[IntArray, SamplingParams, int]] | None = None

    def answer(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        """One sample per prompt; a longer one than a request allows is cut."""
        raise NotImplementedError

    @property
    def num_pending(self) -> int:
        return len(self._requests or {})

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        self._requests = (self._requests or {}) | {key: (prompt, params, seed)}

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        if not self._requests:
            return []
        waiting, self._requests = dict(sorted(self._requests.items())), {}
        prompts, params, seeds = zip(*waiting.values(), strict=True)
        most = max(each.max_new_tokens for each in params)
        samples = self.answer(
            list(prompts), replace(params[0], max_new_tokens=most), seeds=list(seeds)
        )
        return [
            (key, cut(sample, each.max_new_tokens))
            for key, sample, each in zip(waiting, samples, params, strict=True)
        ]

    def cancel(self) -> None:
        self._requests = {}

    def sync_weights(self, policy: Any) -> None:
        raise AssertionError("this engine has no weights")

    def close(self) -> None:
        self.cancel()


def cut(sample: Sample, size: int) -> Sample:
    """The sample as it would be with a smaller `max_new_tokens`."""
    if len(sample.tokens) <= size:
        return sample
    return replace(
        sample,
        tokens=sample.tokens[:size],
        logprobs=sample.logprobs[:size],
        entropies=None if sample.entropies is None else sample.entropies[:size],
        support=None if sample.support is None else sample.support.first(size),
        finish_reason=FinishReason.LENGTH,
    )
