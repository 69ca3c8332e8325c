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

from .acting import WatchError
from .folder import Folder
from .ledger import Look
from .metrics import Row

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
        self.is_there, self.awaited = True, "the run's first row of metrics"
        self._ask_at = self._asked_at = 0.0
        self._question: Future[ServerRun] | None = None
        self._is_closed = threading.Event()
        self._was_answered = False
        self._trouble = ""
        self._run_state = ""

    def close(self) -> None:
        self._is_closed.set()
        super().close()

    def abandon(self) -> None:
        self._is_closed.set()
        super().abandon()

    def look(self, *, is_end: bool = False) -> Look:
        """Ask where it is time to, and take the answer when it has come.

        Raises:
            WatchError: the server says that it will never tell of this run, before it told of it.
        """
        look = Look()
        if self.is_ended:
            return look  # steps may still wait to be judged, but the server has no more
        if not self._asked_at:
            self._say(f"{self.path}: asking the server for all rows of the run")
        if self._question is None and (is_end or look.at >= self._ask_at):
            self._asked_at = look.at
            self._question = self._readers.submit(
                ask, str(self.path), self._mapping, is_wanted=lambda: not self._is_closed.is_set()
            )
        if self._question is not None and (is_end or self._question.done()):
            self._take_answer(self._question, look)
            self._question = None
        look.is_behind = not self._was_answered
        return look

    def _take_answer(self, question: Future[ServerRun], look: Look) -> None:
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
            self.is_unanswered = True
            return
        if self._trouble:
            self._say(f"{self.path}: the server answers again")
            self._trouble, self.is_unanswered = "", False
        took_s = time.monotonic() - self._asked_at
        self._ask_at = time.monotonic() + max(ASK_S, SHARE * took_s)
        num_new = self._take_rows(run, look)
        self._take_state(run.state, num_new)
        self._was_answered = True

    def _take_rows(self, run: ServerRun, look: Look) -> int:
        """Take all rows of the run once more; how many steps are new."""
        if run.metrics is None:
            return 0
        address, ledger = str(self.path), self.ledger
        before = ledger.metrics[address].newest if address in ledger.metrics else -1
        rows: list[Row] = [(step, values, 1.0) for step, values in run.metrics.table.rows()]
        newest = max((step for step, _, _ in rows), default=-1)
        asked_at = self._asked_at if newest > before else 0.0
        self._take(address, rows, look, asked_at, is_again=True)
        return max(0, newest - before)

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
