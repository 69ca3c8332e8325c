"""What `echoscope watch` does itself when an alarm is raised: end, or run a command.

It cannot stop the trainer: that is another process, which reads nothing of ours. A command can.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.notify.message import of_verdict
from echoscope.diagnostics.notify.sending import SendError, sender
from echoscope.store.errors import StoreError
from echoscope.store.records import SEVERITY_RANK, Alarm, AlarmSeverity

COMMAND_S = 60.0
"""A command that has not ended by then is killed."""
_COMMAND = "command:"


class WatchError(StoreError):
    """Nothing can be watched like that; one sentence with the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What to do when an alarm is raised."""

    is_exit: bool = False
    commands: tuple[str, ...] = ()


def parse_actions(words: Sequence[str]) -> Actions:
    """What `--on-alarm` says.

    >>> parse_actions(["exit", "command:kill -INT 4711"])
    Actions(is_exit=True, commands=('kill -INT 4711',))

    Raises:
        WatchError: a word that is none of them.
    """
    commands = []
    for word in words:
        if word.startswith(_COMMAND) and word.removeprefix(_COMMAND).strip():
            commands.append(word.removeprefix(_COMMAND).strip())
        elif word not in ("exit", "notify"):
            raise WatchError(
                f"--on-alarm is {word!r}, but must be notify, exit or command:COMMAND, such as "
                "'command:kill -INT 4711'"
            )
    return Actions(is_exit="exit" in words, commands=tuple(commands))


@dataclass(slots=True, kw_only=True)
class Acting:
    """Carries out the actions; told of each alarm once."""

    actions: Actions
    run: str
    severity: Literal["warning", "critical"]
    """The mildest alarm that counts."""
    say: Callable[[str], None]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    should_exit: bool = False
    _threads: list[threading.Thread] = field(default_factory=list)

    def __call__(self, alarms: Sequence[Alarm], verdict: Verdict) -> None:
        """Take in alarms that were raised. Returns at once."""
        worth = {AlarmSeverity.CRITICAL}
        if self.severity == "warning":
            worth.add(AlarmSeverity.WARNING)
        alarms = [alarm for alarm in alarms if alarm.severity in worth]
        if not alarms:
            return
        self.should_exit |= self.actions.is_exit
        for command in self.actions.commands:
            thread = threading.Thread(
                target=self._run, args=(command, alarms, verdict), name="on-alarm", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def wait(self) -> None:
        """Until the commands have ended."""
        for thread in self._threads:
            thread.join(COMMAND_S + 5)

    def _run(self, command: str, alarms: Sequence[Alarm], verdict: Verdict) -> None:
        environ = {
            **self.environ,
            "ECHOSCOPE_RULES": " ".join(alarm.rule for alarm in alarms),
            "ECHOSCOPE_SEVERITY": _worst(alarms),
            "ECHOSCOPE_STEP": str(alarms[-1].step),
            "ECHOSCOPE_STATE": verdict.state.value,
        }
        try:
            tell = sender(f"command:{command}", environ, COMMAND_S)
            tell(of_verdict(verdict, alarms, run=self.run))
        except SendError as error:
            self.say(f"--on-alarm command: {error}")


def _worst(alarms: Sequence[Alarm]) -> str:
    return max((alarm.severity for alarm in alarms), key=SEVERITY_RANK.__getitem__).value
