"""Are two mathematical texts equal? Asked in processes of their own, which may be killed.

The texts come from a policy and from files. math-verify hands them to a computer algebra system,
which nothing bounds: so it runs in a child with limits of time and memory.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from queue import LifoQueue

from echoscope.text.limited_child import LimitedChild, limit, serve

MAX_CHARS = 300
"""Of a text that is compared; longer ones are not equal to anything."""
CPU_S = 1
"""Seconds of a core that one comparison may take, on a busy machine as on an idle one."""
ANSWER_TIMEOUT_S = 30.0
"""Seconds of wall clock after which a worker that gives no answer is replaced."""
MAX_MEMORY_BYTES = 2 << 30
MAX_WORKERS = 4
MAX_REMEMBERED = 50_000
"""Verdicts that are kept: siblings of a group give the same answers again and again."""

_WARM_UP = ((r"x + 1 = \frac{1}{2}", r"\sqrt{2}, 5^2"), ("x+1", "1+x"), ("(1,2)", "(2,1)"))
"""Compared once, so that no fork has to load what these need."""


class MathWorker:
    """One such process."""

    def __init__(self) -> None:
        self._child = LimitedChild(__name__)
        self.close = self._child.close

    def are_equal(self, given: str, wanted: str) -> bool:
        """Whether two texts mean the same; False where `CPU_S` do not suffice to find that out."""
        if max(len(given), len(wanted)) > MAX_CHARS:
            return False
        return self._child.ask({"given": given, "wanted": wanted}, ANSWER_TIMEOUT_S) is True


class MathWorkers:
    """Some workers, each asked when it is free, and a memory of their verdicts.

    Args:
        number: of workers at most; one starts only where all that run are busy.
        max_remembered: verdicts that are kept; the one that was not asked for longest goes first.
    """

    def __init__(self, number: int, max_remembered: int = MAX_REMEMBERED) -> None:
        self._workers = [MathWorker() for _ in range(number)]
        self._idle: LifoQueue[MathWorker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._max_remembered = max_remembered
        self._verdicts: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._lock = threading.Lock()

    def are_equal(self, given: str, wanted: str) -> bool:
        """As `MathWorker.are_equal`; a pair that was asked before is not worked on again."""
        pair = (given, wanted)
        with self._lock:
            if pair in self._verdicts:
                self._verdicts.move_to_end(pair)
                return self._verdicts[pair]
        worker = self._idle.get()
        try:
            verdict = worker.are_equal(given, wanted)
        finally:
            self._idle.put(worker)
        with self._lock:
            self._verdicts[pair] = verdict
            while len(self._verdicts) > self._max_remembered:
                self._verdicts.popitem(last=False)
        return verdict

    def close(self) -> None:
        """End every process."""
        for worker in self._workers:
            worker.close()


@lru_cache(maxsize=1)
def shared_workers() -> MathWorkers:
    """The workers of this process: one takes two seconds to start."""
    workers = MathWorkers(min(MAX_WORKERS, os.cpu_count() or 1))
    atexit.register(workers.close)
    return workers


def work() -> None:
    """What a worker does."""
    for given, wanted in _WARM_UP:
        _are_equal(given, wanted)
    gc.freeze()
    serve(_answer)


def _answer(question: Mapping[str, str]) -> bool:
    limit(memory_bytes=MAX_MEMORY_BYTES, cpu_s=CPU_S)
    return _are_equal(question["given"], question["wanted"])


def _are_equal(given: str, wanted: str) -> bool:
    from math_verify import parse, verify  # type: ignore[import-untyped]

    sides = [parse(f"${text}$") for text in (wanted, given)]
    return all(sides) and bool(verify(*sides))
