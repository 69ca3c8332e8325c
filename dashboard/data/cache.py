"""Answers that are kept as long as nothing new was acknowledged, within a bound of memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from echoscope.store.query.sql_process import BoundedAnswer
from echoscope.store.records import Trajectory

MAX_ENTRIES = 16_384
"""A page that compares runs asks each of 500 runs a dozen questions."""
MAX_BYTES = 256_000_000
_SMALL = 2_000
"""Counted for an answer that is no table, figure or trajectory."""
_TOKEN_BYTES = 40


@dataclass(slots=True)
class Answer:
    """One that is kept."""

    position: Hashable
    value: Any
    num_bytes: int


@dataclass(slots=True)
class AnswerCache:
    """Least recently used answers go first. May be used from several threads.

    An answer is asked for once: whoever wants it meanwhile waits for it.
    """

    max_entries: int = MAX_ENTRIES
    max_bytes: int = MAX_BYTES
    num_bytes: int = 0
    _answers: OrderedDict[Hashable, Answer] = field(default_factory=OrderedDict)
    _locks: dict[Hashable, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, position: Hashable, ask: Callable[[], Any]) -> Any:
        """The answer to `key` at `position`: the one that is kept, or what `ask` says."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            answer = self.latest(key)
            if answer is not None and answer.position == position:
                return answer.value
            try:
                value = ask()
            except BaseException:
                with self._lock:
                    self._locks.pop(key, None)
                raise
            self._keep(key, position, value)
            return value

    def latest(self, key: Hashable) -> Answer | None:
        """The answer that is kept, whatever has come since."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def clear(self) -> None:
        with self._lock:
            self._answers.clear()
            self._locks.clear()
            self.num_bytes = 0

    def _keep(self, key: Hashable, position: Hashable, value: Any) -> None:
        size = _size(value)
        with self._lock:
            self._drop(key)
            self._answers[key] = Answer(position, value, size)
            self.num_bytes += size
            while len(self._answers) > self.max_entries or self.num_bytes > self.max_bytes:
                oldest = next(iter(self._answers))
                self._drop(oldest)
                self._locks.pop(oldest, None)

    def _drop(self, key: Hashable) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self.num_bytes -= answer.num_bytes


def _size(value: Any) -> int:
    if isinstance(value, pd.DataFrame):
        return int(value.memory_usage(deep=len(value) < 10_000).sum())
    if isinstance(value, BoundedAnswer):
        return _SMALL + int(value.table.nbytes)
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Trajectory):
        texts = sum(len(t.observation) + len(t.response) + len(t.frame or "") for t in value.turns)
        images = sum(len(t.image or b"") for t in value.turns) + len(value.final_image or b"")
        return _SMALL + 4 * texts + images + _TOKEN_BYTES * value.num_sampled_tokens
    return _SMALL
