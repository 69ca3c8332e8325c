"""The recorder's thread: it takes what the caller hands over, and hands commands back.

Nothing that goes wrong here reaches the training. It is said once by `on_message`, and it stands in
`problem`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from echoscope.store.records import Command
from echoscope.text.sentences import in_one_line

from .steps import RunSteps, Say

POLL_S = 0.5
"""Seconds between two looks for commands."""


class WritingThread:
    """Takes jobs from the caller in their order, and hands commands back.

    Args:
        open_steps: makes the steps that this thread writes; called once, in the caller's thread,
            with `on_trouble` and `on_command` of `RunSteps`.
        on_message: called in this thread.

    Raises:
        NotifyError, StoreError: as of `Recorder`.
    """

    def __init__(self, open_steps: Callable[..., RunSteps], *, on_message: Say) -> None:
        self.problem = ""
        """What went wrong last; empty while all is well."""
        self.commands: deque[Command] = deque()
        """Put in by this thread, taken out by the caller's."""
        self._say = on_message
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.steps = open_steps(on_trouble=self.trouble, on_command=self.commands.append)
        """Only jobs call its methods."""
        self._thread = threading.Thread(target=self._run, name="echoscope-recorder", daemon=True)
        self._thread.start()

    @property
    def num_lost(self) -> int:
        """Episodes and steps that were handed over and not written."""
        return self.steps.num_lost

    @property
    def num_jobs(self) -> int:
        """Jobs that wait."""
        return self._jobs.qsize()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, job: Callable[[], None]) -> None:
        """Have the thread do something, after all that it was asked before. Returns at once."""
        self._jobs.put(job)

    def end(self) -> None:
        """The thread ends after all that it was asked before."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end after `end`; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def trouble(self, text: str) -> None:
        """Say what went wrong, unless it is what went wrong last."""
        if text != self.problem:
            self._say(f"recorder: {text}")
        self.problem = text

    def _run(self) -> None:
        """Until `end`, whatever happens."""
        next_look = 0.0
        while True:
            with suppress(queue.Empty):
                job = self._jobs.get(timeout=POLL_S)
                if job is None:
                    return
                self._try(job)
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + POLL_S
                self._try(self._look)

    def _look(self) -> None:
        self.commands.extend(self.steps.new_commands())

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - the training goes on, and it is said
            self.trouble(in_one_line(error))
        else:
            if self.steps.is_well_again():
                self.problem = ""
