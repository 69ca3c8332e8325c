"""What the built-in engine holds of keys and values."""

from __future__ import annotations

from echoscope.core.engines.hf.engine import HfEngine


def cache_bytes(engine: HfEngine) -> int:
    """At the moment; 0 without a cache."""
    if engine._batch is None:
        return 0
    return sum(block.nbytes for pair in engine._batch._forward.cache._blocks for block in pair)
