"""Calls that run beside the caller, in threads whose results come back one by one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[int, Callable[[], Any]]


def in_thread(name: str, work: Callable[..., T], *args: Any) -> Future[T]:
    """A call in a daemon thread of its own.

    Python cannot stop the thread of a call that hangs, but it does not keep the process alive.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # nobody who stops waiting can take the call back

    def call() -> None:
        try:
            future.set_result(work(*args))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)

    Thread(target=call, name=name, daemon=True).start()
    return future


class WorkerThreads:
    """Up to `num_threads` daemon threads that run calls in the order in which they came.

    Daemons, because Python cannot end a call that hangs: whoever stops waiting leaves it behind,
    and it does not keep the process alive.
    """

    def __init__(self, num_threads: int) -> None:
        self._most = num_threads
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._threads: list[Thread] = []
        self.num_pending = 0
        """Calls whose results `finished` has not returned yet."""

    def submit(self, key: int, call: Callable[[], Any]) -> None:
        """Run `call` as soon as a thread is free."""
        self.num_pending += 1
        if len(self._threads) < min(self._most, self.num_pending):
            thread = Thread(target=self._work, name="echoscope-env", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((key, call))

    def finished(self, max_wait_s: float) -> list[tuple[int, Any]]:
        """(key, result) of the calls that have returned; waits so long for the first of them.

        Raises:
            BaseException: what a call raised; its own result is lost.
        """
        out: list[tuple[int, Any]] = []
        while self.num_pending:
            try:
                key, result, error = self._done.get(timeout=0 if out else max_wait_s)
            except Empty:
                break
            self.num_pending -= 1
            if error is not None:
                raise error
            out.append((key, result))
        return out

    def close(self) -> None:
        """End the threads; one whose call hangs is left behind."""
        for _ in self._threads:
            self._jobs.put(None)
        self._threads = []

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            key, call = job
            try:
                self._done.put((key, call(), None))
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                self._done.put((key, None, error))
