"""The seam between training and whatever samples tokens: ids in, sampled ids and log-probs out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...store.records import FinishReason, FloatArray, IntArray, read_only


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample. Log-probs and entropies are those of this very distribution."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 means greedy; log-probs are then those at temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means off."""
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}, but must be at least 1")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}, but must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, but must lie in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}, but must be 0 (off) or more")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One response. A stop token that ended it is its last token."""

    tokens: IntArray  # (Lr,)
    logprobs: FloatArray  # (Lr,) of the sampling distribution
    entropies: FloatArray | None  # (Lr,) nats
    finish_reason: FinishReason
    policy_version: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", read_only(self.tokens, np.int32))
        object.__setattr__(self, "logprobs", read_only(self.logprobs, np.float32))
        if self.entropies is not None:
            object.__setattr__(self, "entropies", read_only(self.entropies, np.float32))
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens with {len(self.logprobs)} log-probs")


class GenerationEngine(Protocol):
    """Samples continuations of token prompts. One contract test runs over every engine."""

    def generate(
        self, prompts: Sequence[IntArray], params: SamplingParams, *, seeds: Sequence[int]
    ) -> list[Sample]:
        """One sample per prompt, in order.

        Args:
            prompts: token ids, each (Lp,), Lp >= 1.
            seeds: one per prompt: the same prompt, weights and seed give the same sample, whatever
                else is in the call.
        """
        ...

    def sync_weights(self, policy: Any) -> None:
        """Sample from the policy's present weights and carry its version from now on."""
        ...

    def close(self) -> None: ...
