"""A run at a W&B server, asked again and again.

Its public API tells all rows of a run. So each time all of them are asked for, and the longer that
takes, the longer is the rest after it.
"""

from __future__ import annotations

import time
from typing import Any

from echoscope.diagnostics.read.records import Collector, MetricsFileError, Reading
from echoscope.diagnostics.read.wandb_address import NoAnswerError, ServerRun, WandbProcess, path_of

from .folder import Folder
from .ledger import Look, Metrics, Told
from .watched_run import WatchError

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


class WandbRun(Folder):
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
        self._told = self.ledger.told.setdefault(str(self.path), Told(is_growing=True))
        self._ask_at = self._asked_at = 0.0
        self._question: WandbProcess | None = None
        self._was_answered = False
        self._run_state = ""

    def close(self) -> None:
        if self._question is not None:
            self._question.close()
        super().close()

    def look(self) -> Look:
        """Ask where it is time to, and take the answer when it has come.

        Raises:
            WatchError: the server says that it will never tell of this run, before it told of it.
        """
        look = Look()
        if self.is_ended:
            return look  # steps may still wait to be judged, but the server has no more
        try:
            if self._question is None and look.at >= self._ask_at:
                self._asked_at, self._question = look.at, WandbProcess(str(self.path))
            if self._question is not None and self._question.is_done():
                question, self._question = self._question, None
                try:
                    self._take(question.answer(), look)
                finally:
                    question.close()
        except (MetricsFileError, OSError) as error:
            if not (self._was_answered or isinstance(error, NoAnswerError | OSError)):
                raise WatchError(str(error)) from None
            self._say_once(f"{error}. The server is asked again every {ASK_S:.0f} s.")
            self._ask_at, self.is_unanswered = time.monotonic() + ASK_S, True
        look.is_behind = not self._was_answered
        return look

    def _take(self, run: ServerRun, look: Look) -> None:
        """Take all rows of the run once more."""
        now, before = time.monotonic(), self._told.metrics.newest
        self._ask_at = now + max(ASK_S, SHARE * (now - self._asked_at))
        self.is_unanswered, self._was_answered, is_first = False, True, not self._was_answered
        reading = Reading(str(self.path), self._mapping, make_builder=Metrics)
        collector = Collector(reading, "wandb")
        for row in run.rows:
            collector.add(row)
        look.is_new |= self._told.take(collector.settle(), self._asked_at)
        # The end comes before the last rows: the run has ended where an answer adds nothing.
        is_over = is_first or (self._run_state == run.state and self._told.metrics.newest == before)
        if run.state in ENDS and is_over:
            self._say(ENDS[run.state])
            self.is_ended = True
        self._run_state = run.state
