"""Environments in processes of their own: started when needed, replaced when they die, never left.

A worker holds worlds that it builds from registry ids and settings, and runs every call in a
thread, so that a world that waits keeps no other one waiting. It ends when its pipe closes, that
is, with its parent, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any

from ..base import EnvUnavailableError, shorten
from ..pool import turns_of
from ..settings import EnvGroup
from ..turns.turn import TurnEnv
from .bounded import ActionTimeoutError, BoundedTurns, WorkerDiedError, perform

START_S = 120.0
"""Seconds that a worker may take to start."""
_END_S = 2.0
"""Seconds that a worker may take to end before it is killed."""
_GONE = (EOFError, OSError)


class Worker:
    """One process, seen from its parent."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._process = context.Process(
            target=_work, args=(far_end,), name="echoscope-env", daemon=True
        )
        self._process.start()
        far_end.close()
        self._lock = Lock()
        self._calls: dict[int, Future[Any]] = {}
        self._numbers = count()
        self.is_dead = False
        self.has_answered = False
        self.is_retired = False
        """It holds a call that hangs: no new episode begins here."""
        self.episodes: set[int] = set()
        """Worlds that are in the middle of an episode here."""
        self._reader = Thread(target=self._read, name="echoscope-env-reader", daemon=True)
        self._reader.start()

    def call(self, message: tuple[Any, ...], limit_s: float | None) -> Any:
        """What the worker answers to a message.

        Raises:
            ActionTimeoutError: it did not answer in time.
            WorkerDiedError: it is gone.
        """
        call: Future[Any] = Future()
        number = next(self._numbers)
        try:
            with self._lock:
                if self.is_dead:
                    raise WorkerDiedError(self._how_it_ended())
                self._calls[number] = call
                self._pipe.send((number, *message))
        except _GONE as error:
            self._reader.join(_END_S)  # which learns the exit code
            raise WorkerDiedError(self._how_it_ended()) from error
        # Until its first answer, the time goes into starting Python and importing the world.
        limit = limit_s if self.has_answered else max(START_S, limit_s or 0.0)
        if not wait([call], limit).done:
            raise ActionTimeoutError
        return call.result()

    def end(self) -> None:
        """End the process; kill it if it does not."""
        self._process.terminate()
        self._reader.join(_END_S)  # which ends with the process, and waits for it
        if self._process.is_alive():
            self._process.kill()
            self._reader.join(_END_S)
        self._pipe.close()

    def _read(self) -> None:
        while True:
            try:
                number, error, result = self._pipe.recv()
            except _GONE:
                break
            self.has_answered = True
            with self._lock:
                call = self._calls.pop(number)
            call.set_result(result) if error is None else call.set_exception(error)
        self._process.join(_END_S)
        with self._lock:
            self.is_dead = True
            calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.set_exception(WorkerDiedError(self._how_it_ended()))

    def _how_it_ended(self) -> str:
        code = self._process.exitcode
        how = "" if code is None else f" (signal {-code})" if code < 0 else f" (exit code {code})"
        return f"the worker process of the environment died{how}"


class WorkerProcesses:
    """A fixed number of worker processes; worlds are spread over them in turn.

    Args:
        number: of processes.
        report: is told in one sentence when a worker was replaced.
    """

    def __init__(self, number: int, report: Callable[[str], None] = lambda text: None) -> None:
        self._workers: list[Worker | None] = [None] * number
        self._retired: list[Worker] = []
        self._report = report
        self._next_home = count()
        self._lock = Lock()

    def new_home(self) -> int:
        """The place of a new world."""
        return next(self._next_home) % len(self._workers)

    def worker(self, home: int) -> Worker:
        """The worker at a place, for an episode that begins; a dead or hanging one is replaced.

        Raises:
            EnvUnavailableError: the last one died before it had answered anything.
        """
        with self._lock:
            worker = self._workers[home]
            if worker is not None and worker.is_dead:
                if not worker.has_answered:
                    raise EnvUnavailableError(
                        "a worker process of the environments died before it had begun: play "
                        "with collection.workers=threads to see what the environment does; a "
                        "script of your own must start the run under "
                        '`if __name__ == "__main__":`'
                    )
                num = len(worker.episodes)
                self._report(
                    f"a worker process of the environments died, with {num} episodes in the "
                    "middle; a new one takes its place"
                )
                worker = None
            elif worker is not None and worker.is_retired:
                self._retired.append(worker)
                worker = None
            if worker is None:
                worker = self._workers[home] = Worker()
            for old in [old for old in self._retired if not old.episodes]:
                self._retired.remove(old)
                old.end()
            return worker

    def close(self) -> None:
        for worker in (*self._workers, *self._retired):
            if worker is not None:
                worker.end()
        self._workers, self._retired = [None] * len(self._workers), []


class ProcessTurns(BoundedTurns):
    """Bounded turns of a world that lives in a worker process."""

    _names = count()

    def __init__(self, group: EnvGroup, limit_s: float | None, processes: WorkerProcesses) -> None:
        super().__init__(group, limit_s)
        self._processes = processes
        self._home = processes.new_home()
        self._worker: Worker | None = None
        self._name = next(self._names)
        """Of the world in its worker; a new one after a timeout."""

    def step_turn(self, actions: Any, is_well_formed: bool) -> Any:
        result = super().step_turn(actions, is_well_formed)
        if result.stop_reason is not None and self._worker is not None:
            self._worker.episodes.discard(self._name)
        return result

    def close(self) -> None:
        """The world ends with its process."""

    def _perform(self, what: str, *args: Any) -> Any:
        if what != "step_turn":
            if self._worker is not None:
                self._worker.episodes.discard(self._name)
            self._worker = self._processes.worker(self._home)
            self._worker.episodes.add(self._name)
        worker = self._worker
        assert worker is not None
        message = (self._name, self.group, what, args)
        try:
            return worker.call(message, self.limit_s)
        except ActionTimeoutError:
            worker.is_retired = True
            worker.episodes.discard(self._name)
            self._name = next(self._names)
            raise


def _work(pipe: Connection) -> None:
    """The worker: carries out calls until its pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    worlds: dict[int, TurnEnv] = {}
    lock = Lock()

    def answer(number: int, name: int, make: Callable[[], TurnEnv], what: str, args: Any) -> None:
        error: Exception | None = None
        result: Any = None
        try:
            if name not in worlds:
                worlds[name] = make()
            result = perform(worlds[name], what, *args)
        except Exception as problem:  # noqa: BLE001 - raised again in the parent
            error = problem
        except BaseException as problem:  # noqa: BLE001 - no Ctrl-C comes here: the world raised it
            worlds.pop(name, None)
            error = WorkerDiedError(f"raised {type(problem).__name__}")
        try:
            data = pickle.dumps((number, error, result))
        except Exception as problem:  # noqa: BLE001 - what a world gives may be anything
            told = f"{type(problem).__name__}: {shorten(str(error or problem), 300)}"
            data = pickle.dumps((number, EnvUnavailableError(told), None))
        with lock:
            pipe.send_bytes(data)

    try:
        while True:
            number, name, group, what, args = pipe.recv()
            make = partial(turns_of, group)
            Thread(target=answer, args=(number, name, make, what, args), daemon=True).start()
    except _GONE:
        os._exit(0)  # without waiting for a call that hangs
