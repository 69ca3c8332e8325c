"""Which files one look looks at: those that changed lately at every look, the others in turn.

So a look costs little where very many files lie, and the file that a trainer writes to is among the
first, however rarely it does.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

LIVELY_S = 10.0
"""A file that did not change for so long is calm ..."""
NUM_KEPT = 64
"""... but for so many that changed last."""
TURN_S = 2.0
"""All calm files are looked at in so long ..."""
MAX_CALM = 200
"""... where they are not too many: a look takes so many of them at most."""


class Rota:
    """The files of a folder, each with the time of its last change on the monotonic clock.

    Args:
        look_s: Seconds between two looks.
    """

    def __init__(self, look_s: float) -> None:
        self._share = look_s / TURN_S
        self._lively: dict[Path, float] = {}
        self._calm: deque[Path] = deque()
        self._is_calm: set[Path] = set()
        self._sorted_at = -math.inf

    def enter(self, paths: Iterable[Path], now: float) -> None:
        """These are the files now."""
        listed = dict.fromkeys(paths)
        self._is_calm &= listed.keys()
        self._calm = deque(path for path in self._calm if path in self._is_calm)
        self._lively = {
            path: self._lively.get(path, now) for path in listed if path not in self._is_calm
        }

    def changed(self, path: Path, at: float) -> None:
        """A file has changed."""
        self._lively[path] = at
        if path in self._is_calm:
            self._is_calm.discard(path)
            self._calm.remove(path)

    @property
    def files(self) -> list[Path]:
        """All of them."""
        return [*self._lively, *self._calm]

    def due(self, now: float, is_unread: Callable[[Path], bool]) -> list[Path]:
        """The files to look at now. One that `is_unread` waits for no turn."""
        if now - self._sorted_at >= TURN_S and len(self._lively) > NUM_KEPT:
            self._sorted_at = now
            oldest = heapq.nsmallest(
                len(self._lively) - NUM_KEPT,
                (
                    (path, at)
                    for path, at in self._lively.items()
                    if now - at > LIVELY_S and not is_unread(path)
                ),
                key=lambda item: item[1],
            )
            for path, _ in oldest:
                del self._lively[path]
                self._calm.append(path)
                self._is_calm.add(path)
        num_calm = min(MAX_CALM, math.ceil(len(self._calm) * self._share))
        calm = [self._calm[place] for place in range(num_calm)]
        self._calm.rotate(-num_calm)
        return [*self._lively, *calm]
