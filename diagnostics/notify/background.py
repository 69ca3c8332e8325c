"""A bounded queue that one thread empties, so that slow or hanging work never holds up a training.

Copies to other tools (`sinks/`) and messages to people wait in such queues, one for
each receiver: one that hangs holds up no other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

MAX_WAITING = 1000
"""While more jobs come, the oldest are dropped."""

Job = Callable[[], None]
"""It handles its own failures: one that raises ends the queue's thread."""


class BackgroundQueue:
    """Jobs that a daemon thread does in order. The process may end while one hangs.

    Args:
        name: of the thread, which starts with the first job.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: deque[Job] = deque(maxlen=MAX_WAITING)
        self._changed = threading.Condition()
        self._is_closed = False
        self._begun_at: float | None = None
        self._thread: threading.Thread | None = None

    def put(self, job: Job) -> None:
        """Add a job; returns at once. A closed queue takes none."""
        with self._changed:
            if self._is_closed:
                return
            self._waiting.append(job)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy_s(self) -> float:
        """How long the present job has taken so far; 0 between jobs."""
        begun_at = self._begun_at
        return 0.0 if begun_at is None else time.monotonic() - begun_at

    def close(self, last: Job | None = None) -> None:
        """Take no more jobs; those that wait are still done, and then the last."""
        with self._changed:
            if last is not None and not self._is_closed and self._thread is not None:
                self._waiting.append(last)
            self._is_closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Take no more jobs and drop those that wait. The present one goes on."""
        with self._changed:
            self._waiting.clear()
            self._is_closed = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread of a closed queue; whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def pause(self, seconds: float) -> None:
        """For a job: wait. `close` cuts the wait short."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, timeout=seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                job = self._waiting.popleft()
                self._begun_at = time.monotonic()
            try:
                job()
            finally:
                self._begun_at = None
