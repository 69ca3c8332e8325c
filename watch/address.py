"""A run at a W&B server, asked again and again.

Its public API tells all rows of a run. So each time all of them are asked for, and the longer that
takes, the longer is the rest after it. A question is asked in a thread of its own, since a server
that hangs is given up after a minute and a half at most.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.wandb_address import NoAnswerError, ServerRun, ask, path_of

from .folder import Changes, Folder, Numbers
from .keeping import WatchError
from .window import Row, Window

ASK_S = 30.0
"""Between two questions at least ..."""
SHARE = 10.0
"""... and so many times what the answer took."""
ENDS = {
    "finished": "W&B says that the run finished",
    "failed": "W&B says that the run failed: its program ended with an error",
    "killed": "W&B says that the run was killed",
}
"""States after which nothing more comes."""
CRASHED = (
    "W&B says that the run crashed: its program has sent no sign of life for some minutes. The "
    "watch goes on, in case the program is heard again"
)


class Address(Folder):
    """The rows of metrics of `wandb:ENTITY/PROJECT/RUN`.

    Raises:
        WatchError: the address has not these three parts.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        try:
            path_of(str(self.path))
        except MetricsFileError as error:
            raise WatchError(str(error)) from None
        self._ask_at = self._asked_at = 0.0
        self._question: Future[ServerRun] | None = None
        self._is_closed = threading.Event()
        self._was_answered = False
        self._trouble = ""
        self._run_state = ""

    @property
    def is_there(self) -> bool:
        return True

    @property
    def awaited(self) -> str:
        return "the run's first row of metrics"

    @property
    def is_unanswered(self) -> bool:
        return bool(self._trouble)

    def close(self) -> None:
        self._is_closed.set()
        super().close()

    def abandon(self) -> None:
        self._is_closed.set()
        super().abandon()

    def look(self, *, is_end: bool = False) -> Changes:
        """Ask where it is time to, and take the answer when it has come.

        Raises:
            WatchError: the server says that it will never tell of this run, before it told of it.
        """
        changes = Changes()
        if self.is_ended:
            return changes  # steps may still wait to be judged, but the server has no more
        if not self._asked_at:
            self._say(f"{self.path}: asking the server for all rows of the run")
        if self._question is None and (is_end or changes.at >= self._ask_at):
            self._asked_at = changes.at
            self._question = self._readers.submit(
                ask, str(self.path), self._mapping, is_wanted=lambda: not self._is_closed.is_set()
            )
        if self._question is not None and (is_end or self._question.done()):
            self._take_answer(self._question, changes)
            self._question = None
        changes.is_reading = not self._was_answered
        return changes

    def _take_answer(self, question: Future[ServerRun], changes: Changes) -> None:
        try:
            run = question.result()
        except (MetricsFileError, OSError) as error:
            is_passing = isinstance(error, NoAnswerError | OSError)
            if not (self._was_answered or is_passing):
                raise WatchError(str(error)) from None
            if str(error) != self._trouble:
                end = "" if str(error).endswith("?") else "."
                self._say(f"{error}{end} The server is asked again every {ASK_S:.0f} s.")
            self._trouble, self._ask_at = str(error), time.monotonic() + ASK_S
            return
        if self._trouble:
            self._say(f"{self.path}: the server answers again")
            self._trouble = ""
        took_s = time.monotonic() - self._asked_at
        self._ask_at = time.monotonic() + max(ASK_S, SHARE * took_s)
        num_new = self._take_rows(run, changes)
        self._take_state(run.state, num_new)
        self._was_answered = True

    def _take_rows(self, run: ServerRun, changes: Changes) -> int:
        """Take all rows of the run once more; how many steps are new."""
        if run.metrics is None:
            return 0
        address = str(self.path)
        numbers = self.numbers.get(address)
        if numbers is None:
            numbers = self.numbers[address] = Numbers(window=Window(namer=self.namer))
            if self.stored:
                numbers.window.know(self.stored)
        rows: list[Row] = [(step, values, 1.0) for step, values in run.metrics.table.rows()]
        before = numbers.window.newest
        self._take(address, numbers, rows, True, changes)
        if numbers.window.newest > before:
            numbers.changed_at = self._asked_at
        return max(0, numbers.window.newest - before)

    def _take_state(self, state: str, num_new: int) -> None:
        """The end comes before the last rows: the run has ended where an answer adds nothing."""
        is_first, before = not self._was_answered, self._run_state
        self._run_state = state
        if state in ENDS and (is_first or (before == state and not num_new)):
            self._say(ENDS[state])
            self.is_ended = True
        elif state == "crashed" != before:
            self._say(CRASHED)
        elif before == "crashed" and state == "running":
            self._say("W&B says that the run goes on")

    def settled(self, last: int) -> None:
        for numbers in self.numbers.values():
            numbers.window.trim(last)

    def state(self) -> dict[str, Any]:
        return {}
