"""How many tokens the built-in engine sends through its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from torch import Tensor

from echoscope.core.engines.hf.forward import CachedForward
from echoscope.core.engines.hf.prefixes import Span
from echoscope.store.records import IntArray


@dataclass(slots=True)
class ForwardedTokens:
    """Padding does not count."""

    prefilled: int = 0
    """Of prompts: the others stood in the cache, or came from a sibling."""
    decoded: int = 0
    """Sampled ones, those of finished requests that had not left yet included."""


@contextmanager
def counted_tokens() -> Iterator[ForwardedTokens]:
    """Those of all engines that sample meanwhile."""
    counts = ForwardedTokens()
    prefill, decode = CachedForward.prefill, CachedForward.decode

    def counted_prefill(
        self: CachedForward, prompts: Sequence[IntArray], spans: Sequence[Span]
    ) -> Tensor:
        counts.prefilled += sum(span.end - span.start for span in spans)
        return prefill(self, prompts, spans)

    def counted_decode(self: CachedForward, tokens_B: Tensor) -> Tensor:
        counts.decoded += len(tokens_B)
        return decode(self, tokens_B)

    with (
        patch.object(CachedForward, "prefill", counted_prefill),
        patch.object(CachedForward, "decode", counted_decode),
    ):
        yield counts
