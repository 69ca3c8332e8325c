"""The seam between training and whatever samples tokens: ids in, sampled ids and log-probs out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from echoscope.store.records import FinishReason, FloatArray, IntArray, Support, read_only


class EngineError(RuntimeError):
    """An engine that samples elsewhere is gone, or answers what it must not; one sentence."""


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

    def draws_like(self, other: SamplingParams) -> bool:
        """Tokens are drawn from the same distribution and recorded alike, wherever a reply ends."""
        names = ("temperature", "top_p", "top_k", "min_p", "records_support")
        return all(getattr(self, name) == getattr(other, name) for name in names)

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


class Engine(ABC):
    """Samples continuations of token prompts. One contract test runs over every engine.

    One thread at a time calls it: `submit` what has become ready, then `advance`, again and again.
    The same prompt, weights and seed give the same sample, whatever else is under way (log-probs up
    to the rounding of the engine's arithmetic).

    `sync_weights` may be called only while nothing is pending: a response never holds tokens of two
    policies. It raises RuntimeError otherwise.
    """

    @property
    @abstractmethod
    def num_pending(self) -> int:
        """Requests submitted whose samples `advance` has not returned yet."""

    @abstractmethod
    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        """Take in a request; its sample comes back from `advance` under `key`.

        Args:
            key: names the request among the pending ones.
            prompt: token ids, (Lp,), Lp >= 1.

        Raises:
            ValueError: `key` is pending already, or prompt or params cannot be sampled from.
            RuntimeError: the engine is closed.
        """

    @abstractmethod
    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        """Sample on, and return the requests that finished, in any order; often none.

        Returns after a short piece of work (one token of every request, say), so that the caller
        can submit more in between. With nothing pending it returns [] at once.

        Args:
            max_wait_s: an engine that samples elsewhere (a server, another process) waits at most
                so long for a request to finish. One that samples in this call ignores it.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Forget every pending request; their samples never come back."""

    @abstractmethod
    def sync_weights(self, policy: Any) -> None:
        """Sample from `policy.model`'s present weights as `policy.version` from now on."""

    def release_memory(self) -> None:  # noqa: B027 - most engines hold nothing for sampling alone
        """Let go of what only sampling needs, such as key/value caches, before an update."""

    def take_metrics(self) -> dict[str, float]:
        """What it has done since the last call of this, by the names of metrics."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; what is pending is dropped. Twice is fine."""


def check_idle(num_pending: int, call: str) -> None:
    """Raises RuntimeError where `call` would meet requests under way."""
    if num_pending:
        raise RuntimeError(
            f"{call} was called while {num_pending} requests are pending: advance until none is, "
            "or cancel them"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimits:
    """What a model can be asked."""

    vocab_size: int
    positions: int

    def checked(
        self, key: int, prompt: IntArray, params: SamplingParams, pending: Container[int]
    ) -> tuple[IntArray, int]:
        """A prompt's ids, and the new tokens that it may get: as many as the positions leave.

        Raises:
            ValueError: the key is pending, no token ids, or some outside the vocabulary, or no room
                for a reply.
        """
        if key in pending:
            raise ValueError(f"request {key} is pending already: give each request its own key")
        vocab_size = self.vocab_size
        outside = [token for token in params.stop_token_ids if not 0 <= token < vocab_size]
        if outside:
            raise ValueError(f"stop token ids {outside} lie outside the vocabulary of {vocab_size}")
        ids = np.ascontiguousarray(prompt, dtype=np.int32)
        if ids.ndim != 1 or len(ids) == 0:
            raise ValueError(f"prompt {key} has shape {ids.shape}: it needs token ids, (Lp,)")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"prompt {key} has token ids from {low} to {high}, but the vocabulary has "
                f"{vocab_size}"
            )
        if len(ids) >= self.positions:
            raise ValueError(
                f"prompt {key} has {len(ids)} tokens, but the model has {self.positions} positions "
                "(its table or its attention window): lower context.max_prompt_tokens"
            )
        return ids, min(params.max_new_tokens, self.positions - len(ids))
