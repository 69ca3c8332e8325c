"""Judges and writes the steps, in a thread of its own: what is read and shown waits for none of it.

Everything that touches the run is a job, and jobs are done in the order in which they were handed
over. What came of them is taken by `results`, in that order too.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.errors import StoreError
from echoscope.store.records import Alarm

from .keeping import Keeper, WholeStep

MAX_STEPS_AHEAD = 32
"""Steps that may wait to be judged; fewer than `rollouts.KEPT_STEPS`, so that they can be handed
over again where the disk refused them."""
MAX_EPISODES_AHEAD = 2_000
"""Episodes that may wait: they are in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A step was judged."""

    step: int
    alarms: Sequence[Alarm]
    """What it raised or cleared."""
    values: dict[str, float]
    """All its numbers, measured ones included."""
    verdict: Verdict
    """After this step."""
    is_past: bool
    """It was there when the watch began."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Steps from `first` on are hidden."""

    first: int
    last_step: int
    """The last step that is left."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All steps of the past are judged."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Failed:
    """The run could not be written; what was handed over meanwhile is dropped, until `mend`."""

    error: StoreError


@dataclass(frozen=True, slots=True)
class Mended:
    """The run can be written again, after `last_step`."""

    last_step: int


Result = Judged | TakenBack | CaughtUp | Failed | Mended


class Judge:
    """The thread that has the run."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._results: queue.SimpleQueue[Result | Exception] = queue.SimpleQueue()
        self._num_steps = self._num_episodes = 0
        self._lock = threading.Lock()
        self._is_broken = False
        self.verdict = keeper.verdict()
        """After the last step that was judged."""
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)
        self._thread.start()

    @property
    def num_free(self) -> int:
        """Steps that may be handed over now."""
        with self._lock:
            is_full = self._num_episodes >= MAX_EPISODES_AHEAD
            return 0 if is_full else max(0, MAX_STEPS_AHEAD - self._num_steps)

    def hand(self, whole: WholeStep, *, trainer: str, is_past: bool) -> None:
        """Judge a step and write it."""
        with self._lock:
            self._num_steps += 1
            self._num_episodes += whole.num_episodes

        def commit() -> None:
            if not self._keeper.is_open:
                self._keeper.begin(trainer)
            alarms, values = self._keeper.commit(whole)
            self.verdict = self._keeper.verdict()
            self._results.put(
                Judged(
                    step=whole.step,
                    alarms=alarms,
                    values=values,
                    verdict=self.verdict,
                    is_past=is_past,
                )
            )

        def done() -> None:
            try:
                self._try(commit)
            finally:
                with self._lock:
                    self._num_steps -= 1
                    self._num_episodes -= whole.num_episodes

        self._jobs.put(done)

    def take_back(self, first: int) -> None:
        """Hide the steps from `first` on."""

        def work() -> None:
            self._keeper.take_back(first)
            self.verdict = self._keeper.verdict()
            self._results.put(TakenBack(first, self._keeper.last_step))

        self._jobs.put(lambda: self._try(work))

    def catch_up(self) -> None:
        """Say when all that was handed over so far is judged."""
        self._jobs.put(lambda: self._try(lambda: self._results.put(CaughtUp(self.verdict))))

    def after(self, work: Callable[[], None]) -> None:
        """Do something once all that was handed over so far is on the disk; not if that failed."""

        def flushed() -> None:
            self._keeper.flush()
            work()

        self._jobs.put(lambda: self._try(flushed))

    def mend(self) -> None:
        """Try to go on after a failure."""

        def work() -> None:
            self._is_broken = False
            self._keeper.take_up()
            self.verdict = self._keeper.verdict()
            self._results.put(Mended(self._keeper.last_step))

        self._jobs.put(lambda: self._try(work, is_always=True))

    def results(self) -> list[Result]:
        """What came of the jobs since the last call.

        Raises:
            Exception: what the thread met that is no failure of the disk.
        """
        out: list[Result] = []
        while True:
            try:
                result = self._results.get_nowait()
            except queue.Empty:
                return out
            if isinstance(result, Exception):
                raise result
            out.append(result)

    def wait(self) -> None:
        """Until all jobs are done and what they wrote is on the disk."""
        self._jobs.join()

    def end(self) -> None:
        """Do what was handed over, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if job is None:
                    return
                job()
                if self._jobs.empty():
                    self._try(self._keeper.flush)
            finally:
                self._jobs.task_done()

    def _try(self, work: Callable[[], None], *, is_always: bool = False) -> None:
        if self._is_broken and not is_always:
            return
        try:
            work()
        except StoreError as error:
            self._is_broken = True
            with contextlib.suppress(StoreError):  # the first error is the one that says why
                self._keeper.close("failed")
            self._results.put(Failed(error))
        except Exception as error:  # noqa: BLE001 - raised where the results are taken
            self._is_broken = True
            self._results.put(error)
