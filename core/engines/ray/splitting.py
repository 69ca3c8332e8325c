"""Which engine takes which prompt: the one that knows its beginning, unless that has too much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from echoscope.store.records import IntArray

from ..hf.prefixes import PrefixIndex, StoredRow

SLACK = 1.25
"""An engine takes at most so many times its even share."""


def split(
    prompts: Sequence[IntArray],
    known: Sequence[StoredRow],
    engine_of: Sequence[int],
    num_engines: int,
) -> list[list[int]]:
    """Places in `prompts` for each engine, in the order of the call.

    A prompt that continues a row goes where that row is: its keys and values are there. Equal
    prompts go together, because an engine forwards them once. Others even out what engines have.

    Args:
        known: what engines have in their caches ...
        engine_of: ... and which of them has it.
    """
    most = math.ceil(len(prompts) / num_engines * SLACK)
    parts: list[list[int]] = [[] for _ in range(num_engines)]
    index = PrefixIndex(known)
    fresh: dict[bytes, list[int]] = {}
    for place, prompt in enumerate(prompts):
        row, _ = index.match(prompt)
        if row >= 0 and known[row].is_continued_by(prompt) and len(parts[engine_of[row]]) < most:
            parts[engine_of[row]].append(place)
        else:
            fresh.setdefault(prompt.tobytes(), []).append(place)
    even = math.ceil(len(prompts) / num_engines)
    for places in sorted(fresh.values(), key=len, reverse=True):
        left = places
        while left:
            engine = min(range(num_engines), key=lambda k: (len(parts[k]), k))
            room = max(even - len(parts[engine]), 1)
            parts[engine] += left[:room]
            left = left[room:]
    return [sorted(part) for part in parts]
