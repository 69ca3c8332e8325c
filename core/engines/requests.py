"""What engines outside the trained module share: checked requests, `generate` over a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from echoscope.store.records import FinishReason, IntArray

from .base import ReplyWatch, Sample, SamplingParams
from .batching import check_idle


def checked_prompt(
    key: int, prompt: IntArray, params: SamplingParams, *, vocab_size: int, positions: int
) -> tuple[list[int], int]:
    """A prompt's token ids, and the new tokens that it may get: as many as the positions leave.

    Raises:
        ValueError: no token ids, or some outside the vocabulary, or no room for a reply.
    """
    outside = [token for token in params.stop_token_ids if not 0 <= token < vocab_size]
    if outside:
        raise ValueError(f"stop token ids {outside} lie outside the vocabulary of {vocab_size}")
    ids = np.ascontiguousarray(prompt, dtype=np.int32)
    if ids.ndim != 1 or len(ids) == 0:
        raise ValueError(f"prompt {key} has shape {ids.shape}: it needs token ids, (Lp,)")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"prompt {key} has token ids from {low} to {high}, but the vocabulary has {vocab_size}"
        )
    if len(ids) >= positions:
        raise ValueError(
            f"prompt {key} has {len(ids)} tokens, but the engine has {positions} positions: lower "
            "context.max_prompt_tokens"
        )
    return ids.tolist(), min(params.max_new_tokens, positions - len(ids))


def watched_end(
    watch: ReplyWatch, tokens: Sequence[int], stop_token_ids: Sequence[int]
) -> tuple[int, FinishReason] | None:
    """How many of the tokens a watch leaves, and why it ends there; None if the reply goes on.

    A stop token ends a reply before the watch does.
    """
    for place, token in enumerate(tokens):
        reason = watch.ends(token)
        if reason is not None and token not in stop_token_ids:
            return place + 1, reason
    return None


class StreamedEngine(ABC):
    """`generate` for engines that stream: all prompts are submitted, and then all are awaited."""

    @property
    @abstractmethod
    def num_pending(self) -> int: ...

    @abstractmethod
    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None: ...

    @abstractmethod
    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]: ...

    @abstractmethod
    def cancel(self) -> None: ...

    def generate(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        """One sample per prompt, in order. Nothing stays pending where a prompt is refused.

        Raises:
            ValueError: a prompt that cannot be forwarded, or a different number of seeds.
            RuntimeError: the engine is closed, or has requests pending.
        """
        check_idle(self.num_pending, "generate")
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts with {len(seeds)} seeds: give one per prompt")
        samples: dict[int, Sample] = {}
        try:
            for key, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
                self.submit(key, prompt, params, seed=seed)
            while self.num_pending:
                samples.update(self.advance(max_wait_s=1.0))
        except BaseException:
            self.cancel()
            raise
        return [samples[key] for key in range(len(prompts))]
