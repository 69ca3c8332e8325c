"""The seam between training and whatever samples tokens: ids in, sampled ids and log-probs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from echoscope.store.records import FinishReason, FloatArray, IntArray, Support, read_only


class ReplyWatch(Protocol):
    """Follows one response token by token and says where it ends."""

    def ends(self, token: int) -> FinishReason | None:
        """Why the response ends with this token; None if it goes on. Called once a token."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample. Log-probs and entropies are those of this very distribution."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 means greedy; log-probs are then those at temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means off."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest are left out; 0 means off."""
    records_support: bool = False
    """Samples say which tokens were left in, where any was left out."""
    stop_token_ids: tuple[int, ...] = ()
    watch: Callable[[], ReplyWatch] | None = None
    """Makes a watch for each response; its last token is the one that the watch ends it with."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}, but must be at least 1")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}, but must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, but must lie in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}, but must be 0 (off) or more")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}, but must lie in [0, 1]")

    def truncates(self, vocab_size: int) -> bool:
        """Tokens may be left out. Greedy leaves none out: it reports the whole distribution."""
        cuts = self.top_p < 1 or 0 < self.top_k < vocab_size or self.min_p > 0
        return cuts and self.temperature > 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One response. A stop token that ended it is its last token."""

    tokens: IntArray  # (Lr,)
    logprobs: FloatArray  # (Lr,) of the sampling distribution
    entropies: FloatArray | None  # (Lr,) nats
    support: Support | None = None
    """The tokens that each was drawn from; None for the whole vocabulary."""
    finish_reason: FinishReason
    policy_version: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", read_only(self.tokens, np.int32))
        object.__setattr__(self, "logprobs", read_only(self.logprobs, np.float32))
        if self.entropies is not None:
            object.__setattr__(self, "entropies", read_only(self.entropies, np.float32))
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens with {len(self.logprobs)} log-probs")
        if self.support is not None and len(self.support.sizes) != len(self.tokens):
            raise ValueError(
                f"{len(self.tokens)} tokens with the supports of {len(self.support.sizes)}"
            )


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

    def release_memory(self) -> None:
        """Let go of what only sampling needs, such as key/value caches, before an update."""
        ...

    def sync_weights(self, policy: Any) -> None:
        """Sample from the policy's present weights and carry its version from now on."""
        ...

    def close(self) -> None: ...
