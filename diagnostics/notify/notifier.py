"""Tells people of alarms, without ever keeping the trainer waiting.

Every target has a queue and a thread of its own: one that hangs holds up nobody else. The first
alarm is told at once. What is raised within `every_s` of a message is told together afterwards, so
that one collapse with seven alarms is one message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from echoscope.store.records import Alarm, AlarmSeverity, AlarmState

from ..config import NotifyConfig
from ..judge.record import Verdict
from .background import BackgroundQueue
from .message import Notification, Occasion, of_verdict
from .sending import Send, SendError, name_of, sender

WAITS_S = (2.0, 10.0, 60.0)
"""Between attempts, of which there is one more."""
MAX_PENDING = 1000
"""Alarms that wait for the next message; of more, the last ones are told."""
END_S = 15.0
"""How long the end of a run waits for messages that are under way."""


class Notifier:
    """The messages of one run.

    Args:
        run: its id.
        on_message: told of each message that could not be sent, from a thread of the target.

    Raises:
        NotifyError: a target cannot be told as it is configured.
    """

    def __init__(
        self,
        config: NotifyConfig,
        *,
        run: str,
        on_message: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._clock = config, clock
        self._about = partial(of_verdict, run=run, dashboard_url=config.dashboard_url)
        self._lines = [
            _Line(target, sender(target, os.environ), on_message) for target in config.targets
        ]
        self._pending: list[Alarm] = []
        self._last_at: float | None = None

    def observe(self, alarms: Sequence[Alarm], verdict: Callable[[], Verdict]) -> None:
        """Take in what a step raised and cleared. Returns at once; call it at every step.

        Args:
            verdict: what is known of the run now; called only where a message is due.
        """
        if not self._lines:
            return
        worth = {AlarmSeverity.CRITICAL}
        if self._config.severity == "warning":
            worth.add(AlarmSeverity.WARNING)
        self._pending += [
            alarm
            for alarm in alarms
            if alarm.state is AlarmState.RAISED and alarm.severity in worth
        ]
        self._pending = self._pending[-MAX_PENDING:]
        now = self._clock()
        if self._pending and (self._last_at is None or now - self._last_at >= self._config.every_s):
            self._last_at = now
            self._tell(self._message(verdict()))

    def tell(self, text: str, verdict: Callable[[], Verdict]) -> None:
        """Tell what was done about the run, at once: a message of its own, whatever `every_s` is.

        Args:
            text: one paragraph.
        """
        if self._lines:
            told = self._about(verdict(), occasion="guard")
            self._tell(replace(told, text=text, evidence=(), advice=""))

    def close(self, status: str, verdict: Callable[[], Verdict] | None = None) -> None:
        """Tell how the run ended, where that is wanted, and wait `END_S` for what is under way.

        Alarms that were raised since the last message are told only by the message of the end: the
        collapse that they belong to has been told already.
        """
        if self._config.at_end and verdict is not None and self._lines:
            self._tell(self._message(verdict(), status=status))
        for line in self._lines:
            line.queue.close()
        deadline = time.monotonic() + END_S
        for line in self._lines:
            line.join(max(0.0, deadline - time.monotonic()))

    def _message(self, verdict: Verdict, *, status: str = "") -> Notification:
        alarms, self._pending = self._pending, []
        occasion: Occasion = "end" if status else "alarm"
        return self._about(verdict, alarms, occasion=occasion, status=status)

    def _tell(self, message: Notification) -> None:
        for line in self._lines:
            line.put(message)


class _Line:
    """The messages of one target, one after the other."""

    def __init__(self, target: str, send: Send, say: Callable[[str], None]) -> None:
        self._name, self._send, self._say = name_of(target), send, say
        self.queue = BackgroundQueue(f"notify {self._name}")

    def put(self, message: Notification) -> None:
        self.queue.put(partial(self._deliver, message))

    def join(self, timeout_s: float) -> None:
        if not self.queue.join(timeout_s):
            self._say(f"a message to {self._name} is not sent: the run has ended")

    def _deliver(self, message: Notification) -> None:
        """The end of a run cuts a wait short: then the next attempt is made at once."""
        for attempt, wait_s in enumerate((*WAITS_S, None), 1):
            try:
                self._send(message)
                return
            except SendError as error:
                if wait_s is None or not error.can_retry:
                    times = "" if attempt == 1 else f" ({attempt} attempts)"
                    self._say(f"could not tell {self._name}: {error}{times}")
                    return
                self.queue.pause(max(wait_s, error.after_s))
