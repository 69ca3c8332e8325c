"""Calls into worlds beside an event loop: each in a thread, none longer than it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

MAX_HANGING = 64
"""Calls that may be left behind before no new one begins."""


class HangingCallsError(Exception):
    """Too many calls hang to begin another one."""


class CallThreads:
    """Up to `most` calls at once, in daemon threads: Python cannot end a call that hangs.

    A call that takes too long is left behind in its thread, and another thread takes its place.
    Used by one event loop.
    """

    def __init__(self, most: int) -> None:
        self._slots = asyncio.Semaphore(most)
        self._jobs: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        self._num_threads = self._num_busy = 0
        self.num_hanging = 0
        """Calls that were left behind and have not come back."""

    async def run(self, call: Callable[[], Any], limit_s: float) -> Any:
        """What `call` returns or raises; leaving Python (`sys.exit`) is a RuntimeError here.

        Raises:
            TimeoutError: it took more than `limit_s` seconds once it had begun.
            HangingCallsError: too many others hang.
        """
        async with self._slots:
            if self.num_hanging >= MAX_HANGING:
                raise HangingCallsError(f"{self.num_hanging} calls hang: start the server again")
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._num_busy += 1
            self._jobs.put((call, done))
            if self._num_busy + self.num_hanging > self._num_threads:
                self._num_threads += 1
                Thread(target=self._work, name="echoscope-call", daemon=True).start()
            try:
                result, error = await asyncio.wait_for(done, limit_s)
            except BaseException:
                self._num_busy -= 1
                self.num_hanging += 1
                raise
            self._num_busy -= 1
            if error is not None:
                raise error
            return result

    def _work(self) -> None:
        while True:
            call, done = self._jobs.get()
            result, error = None, None
            try:
                result = call()
            except Exception as problem:  # noqa: BLE001 - raised again where it is waited for
                error = problem
            except BaseException as problem:  # noqa: BLE001 - would end the event loop there
                error = RuntimeError(f"{type(problem).__name__}: {problem}")
            try:
                done.get_loop().call_soon_threadsafe(self._finish, done, (result, error))
            except RuntimeError:
                return  # the loop has ended, and with it the server

    def _finish(self, done: asyncio.Future[Any], outcome: tuple[Any, Any]) -> None:
        if done.cancelled():
            self.num_hanging -= 1
        else:
            done.set_result(outcome)
