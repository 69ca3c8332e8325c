"""Are two mathematical texts equal? Asked in processes of their own, which may be killed.

The texts come from a policy and from files. math-verify hands them to a computer algebra system,
which nothing bounds: so it runs in a child with limits of time and memory.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from functools import lru_cache

from echoscope.text.limited_child import limit, serve, shared_children

MAX_CHARS = 300
"""Of a text that is compared; longer ones are not equal to anything."""
CPU_S = 1
"""Seconds of a core that one comparison may take, on a busy machine as on an idle one."""
ANSWER_TIMEOUT_S = 30.0
"""Seconds of wall clock after which a worker that gives no answer is replaced."""
MAX_MEMORY_BYTES = 2 << 30
MAX_WORKERS = 4

_WARM_UP = ((r"x + 1 = \frac{1}{2}", r"\sqrt{2}, 5^2"), ("x+1", "1+x"), ("(1,2)", "(2,1)"))
"""Compared once, so that no fork has to load what these need."""


@lru_cache(maxsize=50_000)  # siblings of a group give the same answers again and again
def are_equal(given: str, expected: str) -> bool:
    """Whether two texts mean the same; False where `CPU_S` do not suffice to find that out."""
    if max(len(given), len(expected)) > MAX_CHARS:
        return False
    workers = shared_children(__name__, min(MAX_WORKERS, os.cpu_count() or 1))
    return workers.ask({"given": given, "wanted": expected}, ANSWER_TIMEOUT_S) is True


def work() -> None:
    for given, expected in _WARM_UP:
        _are_equal(given, expected)
    gc.freeze()
    serve(_answer)


def _answer(question: Mapping[str, str]) -> bool:
    limit(memory_bytes=MAX_MEMORY_BYTES, cpu_s=CPU_S)
    return _are_equal(question["given"], question["wanted"])


def _are_equal(given: str, expected: str) -> bool:
    from math_verify import parse, verify  # type: ignore[import-untyped]

    sides = [parse(f"${text}$") for text in (expected, given)]
    return all(sides) and bool(verify(*sides))
