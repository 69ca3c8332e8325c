"""Steering: commands arrive at any time and are applied between two steps."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from echoscope.store.records import (
    ALARM_AUTHOR,
    Command,
    CommandAck,
    CommandAction,
    CommandOutcome,
    SettingsRecord,
)
from echoscope.store.steer.commands import Mailbox, new_command
from echoscope.store.steer.settings import overridden
from echoscope.store.steer.steering import NO_CHANGE

from ..config.loading import ConfigError, apply_settings, live_values
from ..config.settings import RunConfig

POLL_S = 0.1
_WATCH_S = 0.5
"""Seconds between two looks into the mailbox beside a call that may hang."""
_LOOK_S = 0.2
"""... and of a measurement."""
PATIENCE_S = 12.0
"""A stop waits so long for the episodes of a step; those of a large model may take minutes."""
REWOUND = "the run goes on as a new run: send it to that one"
"""Answer to what comes after the order to rewind."""
_STOPS = (CommandAction.STOP, CommandAction.STOP_NOW)
_DETAILS = {
    CommandAction.CHECKPOINT: "checkpoint",
    CommandAction.EVALUATE: "evaluation runs with this step",
    CommandAction.REWIND: "goes on as a new run",
    CommandAction.STOP: "stopping with a checkpoint",
    CommandAction.STOP_NOW: "stopping at once",
}
"""What the loop does at a boundary, and the answer to whoever asks for it."""
FIRST_SIGNAL = (
    "stopping after this step with a checkpoint; the step is dropped if its episodes take longer "
    f"than {PATIENCE_S:.0f} s, and at once after a second signal"
)
SECOND_SIGNAL = (
    "stopping now: the step in progress is dropped, and a checkpoint of the last finished step is "
    "written; once more exits without it"
)
THIRD_SIGNAL = "exiting at once: no checkpoint of the last finished step was written"


class StepInterruptedError(BaseException):
    """A second Ctrl-C or a stop_now cut into the episodes; no environment may swallow it."""


@dataclass(slots=True)
class Wishes:
    """What the commands of one boundary ask of the loop, and the settings they leave."""

    config: RunConfig
    asked: set[CommandAction] = field(default_factory=set)
    """Those of `_DETAILS` that were asked for."""
    paused_by_alarm: str = ""
    """The alarm that paused the run just now: what it met is kept in a checkpoint."""


class Control:
    """Reads commands, applies them at the boundary before a step, remembers what was applied.

    Args:
        mailbox: commands that were not seen before.
        replay: what was applied before a crash, by the step it took effect at, as `replayed` gives
            it; it is applied again at that step, so that a resumed run repeats the interrupted one.
    """

    def __init__(
        self, mailbox: Mailbox, run_id: str, replay: Sequence[tuple[int, Command]] = ()
    ) -> None:
        self._mailbox = mailbox
        self._run_id = run_id
        self._replay = list(replay)
        self._waiting: list[Command] = []
        self._stop_now = False
        self._lock = threading.RLock()
        """Held while commands are taken: the watching thread reads them too."""
        self._is_reading = False
        self._is_droppable = False
        self._look_again = 0.0
        self._why_no_rewind: Callable[[Command], str] = lambda command: ""
        self.paused_by = ""
        """Who paused the run; empty while it goes on."""
        self.evaluates_next = False
        """A command asked for an evaluation with the next step."""
        self._told_settings: Mapping[str, Any] | None = None
        """The live settings that this attempt has written down."""

    @property
    def is_paused(self) -> bool:
        return bool(self.paused_by)

    def poll(self) -> None:
        """Collect new commands without applying them."""
        with self._lock:
            self._is_reading = True  # cut off here, what was read would be lost
            self._waiting += self._mailbox.drain()
            self._stop_now |= any(c.action is CommandAction.STOP_NOW for c in self._waiting)
            self._is_reading = False

    def should_abort(self) -> bool:
        """Whether the step in progress is to be dropped; cheap enough to ask every turn."""
        self.poll()
        return self._stop_now

    def is_stopping(self) -> bool:
        """Whether a stop waits for the next boundary: what the step can do without is left out."""
        now = time.monotonic()
        if now >= self._look_again:  # asked many times a second
            self._look_again = now + _LOOK_S
            self.poll()
        with self._lock:
            return any(command.action in _STOPS for command in self._waiting)

    def request(
        self,
        action: CommandAction,
        reason: str,
        settings: Mapping[str, Any] | None = None,
        *,
        issued_by: str = "terminal",
    ) -> None:
        """A command from this process itself."""
        command = new_command(
            self._run_id, action, settings=settings, issued_by=issued_by, reason=reason
        )
        with self._lock:
            self._waiting.append(command)
            self._stop_now |= action is CommandAction.STOP_NOW

    def boundary(
        self,
        step: int,
        config: RunConfig,
        *,
        on_acks: Callable[[Sequence[CommandAck], Sequence[Command], SettingsRecord | None], None],
        on_pause: Callable[[str], None],
        why_no_rewind: Callable[[Command], str] = lambda command: "",
    ) -> Wishes:
        """Apply everything that waits, before step `step`; while paused, stay here.

        Acknowledgements go to `on_acks` at once, with the settings that they leave, so that whoever
        steers sees them take effect; so do settings that nobody has to be answered for, those that
        an attempt begins with or applies again. `on_pause` is told who paused the run,
        once it stays here.
        Returns early from a pause when something is asked for that can be done while paused.
        """
        wishes = Wishes(config=config)
        self._why_no_rewind = why_no_rewind
        due = [command for after, command in self._replay if after <= step]
        self._replay = [(after, command) for after, command in self._replay if after > step]
        for command in due:
            self._apply(command, wishes)
        told = ""
        while True:
            self.poll()
            acks, commands = self._apply_waiting(step, wishes)
            settings = self._new_settings(step, wishes.config)
            if acks or settings is not None:
                on_acks(acks, commands, settings)
            may_wait = wishes.asked <= {CommandAction.EVALUATE} and not wishes.paused_by_alarm
            if not (self.is_paused and may_wait):
                return wishes
            if told != self.paused_by:
                told = self.paused_by
                on_pause(told)
            time.sleep(POLL_S)

    def _new_settings(self, step: int, config: RunConfig) -> SettingsRecord | None:
        """The live settings from a step on; None where the journal has them already."""
        values = live_values(config)
        if values == self._told_settings:
            return None
        self._told_settings = values
        return SettingsRecord(step=step, values=values)

    def refuse_waiting(self, step: int, why: str) -> tuple[list[CommandAck], list[Command]]:
        """Answers to what arrived too late, so that nobody waits for them."""
        self.poll()
        commands = self._take_waiting()
        acks = self._mailbox.take_refusals(step)
        acks += [command.answered(step, CommandOutcome.REJECTED, why) for command in commands]
        return acks, commands

    def _take_waiting(self) -> list[Command]:
        with self._lock:
            commands, self._waiting = self._waiting, []
        return commands

    def _apply_waiting(self, step: int, wishes: Wishes) -> tuple[list[CommandAck], list[Command]]:
        commands = self._take_waiting()
        now = time.time()
        acks = self._mailbox.take_refusals(step)
        if any(command.action is CommandAction.REWIND for command in commands):
            commands.sort(key=lambda command: command.action not in _STOPS)  # it ends all of them
        for command in commands:
            if command.expires_at is not None and command.expires_at < now:
                outcome, detail = CommandOutcome.EXPIRED, "arrived after its expiry"
            else:
                outcome, detail = self._apply(command, wishes)
            if outcome is CommandOutcome.APPLIED:
                self._replay = overridden(self._replay, step, command)
            acks.append(command.answered(step, outcome, detail))
        return acks, commands

    def _apply(self, command: Command, wishes: Wishes) -> tuple[CommandOutcome, str]:
        action = command.action
        if CommandAction.REWIND in wishes.asked:  # the first answer counts
            return CommandOutcome.REJECTED, REWOUND
        if action is CommandAction.SET:
            try:
                changed = apply_settings(wishes.config, command.settings)
            except ConfigError as error:
                return CommandOutcome.REJECTED, str(error)
            detail = _describe_change(wishes.config, changed, command.settings)
            wishes.config = changed
            return CommandOutcome.APPLIED, detail
        if action is CommandAction.EVALUATE and not wishes.config.envs.eval:
            return CommandOutcome.REJECTED, "the run has no environments under envs.eval"
        if action is CommandAction.REWIND:
            is_ending = not wishes.asked.isdisjoint(_STOPS)
            why = "the run is being stopped" if is_ending else self._why_no_rewind(command)
            if why:
                return CommandOutcome.REJECTED, why
        if action is CommandAction.PAUSE:
            detail = f"{NO_CHANGE}already paused" if self.is_paused else "paused"
            if command.issued_by.startswith(ALARM_AUTHOR) and not self.is_paused:
                wishes.paused_by_alarm = command.issued_by
            self.paused_by = self.paused_by or command.issued_by or "somebody"
        elif action is CommandAction.RESUME:
            detail = "resumed" if self.is_paused else f"{NO_CHANGE}was not paused"
            self.paused_by = ""
        else:
            wishes.asked.add(action)
            self.evaluates_next |= action is CommandAction.EVALUATE
            detail = _DETAILS[action]
        return CommandOutcome.APPLIED, detail

    @contextmanager
    def droppable(self) -> Iterator[None]:
        """While the weights rest and episodes are played: a second Ctrl-C or stop_now may cut in.

        Raises:
            StepInterruptedError: it did, wherever an environment was hanging.
        """
        self._is_droppable = True
        try:
            yield
        finally:
            self._is_droppable = False

    def _cut_in(self) -> None:
        """In the main thread, from a signal's handler."""
        if self._is_droppable and self._stop_now and not self._is_reading:
            raise StepInterruptedError

    def _watch(self, main: int, signals: socket.socket, is_over: threading.Event) -> None:
        """In a thread of its own: read commands where the main thread may never come back to.

        Python handles a signal in the main thread, between two of its instructions. One that comes
        just before a call that waits would be handled when the call ends; a second one ends it.
        """
        stop_since = math.inf
        while not is_over.is_set():
            is_told, _, _ = select.select([signals], [], [], _WATCH_S)
            if is_told and set(signals.recv(4096)) != {signal.SIGURG}:
                signal.pthread_kill(main, signal.SIGURG)
            if not self._is_droppable:
                continue
            if not self.is_stopping():
                stop_since = math.inf
            elif time.monotonic() - (stop_since := min(stop_since, time.monotonic())) > PATIENCE_S:
                self._drop_the_step()
            if self.should_abort():
                signal.pthread_kill(main, signal.SIGURG)

    def _drop_the_step(self) -> None:
        """Once, in the name of whoever asked for the stop that has waited long enough."""
        with self._lock:
            authors = [c.issued_by for c in self._waiting if c.action is CommandAction.STOP]
            if authors and not self._stop_now:  # a boundary may have taken it meanwhile
                why = f"the episodes of the step did not end within {PATIENCE_S:.0f} s of a stop"
                self.request(CommandAction.STOP_NOW, why, issued_by=authors[0])

    @contextmanager
    def signals(self, on_message: Callable[[str], None]) -> Iterator[None]:
        """Ctrl-C, SIGTERM or SIGHUP stops at the next boundary, a second Ctrl-C at once.

        A closed terminal may send SIGHUP several times: it never counts as the second. Under
        `nohup` it is ignored, as it was before.
        """
        count = 0

        def say(text: str) -> None:
            try:
                on_message(text)
            except RuntimeError:  # the signal came while the same stream was being written
                os.write(2, f"{text}\n".encode())

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal count
            if number == signal.SIGHUP and count:
                return
            count += 1
            name = signal.Signals(number).name
            if count == 1:
                self.request(CommandAction.STOP, f"{name} in the terminal")
                say(FIRST_SIGNAL)
            elif count == 2:
                self.request(CommandAction.STOP_NOW, f"second {name} in the terminal")
                say(SECOND_SIGNAL)
                self._cut_in()
            else:
                os.write(2, f"{THIRD_SIGNAL}\n".encode())
                os._exit(130)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)

        previous = {number: signal.signal(number, handle) for number in numbers}
        # The watching thread sends it; whoever does not handle it ignores it.
        previous[signal.SIGURG] = signal.signal(signal.SIGURG, lambda *_: self._cut_in())
        is_over = threading.Event()
        watched, told = socket.socketpair()
        told.setblocking(False)
        watcher = threading.Thread(
            target=self._watch, args=(threading.get_ident(), watched, is_over), daemon=True
        )
        with watched, told:
            previous_wakeup = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
            watcher.start()
            try:
                yield
            finally:
                signal.set_wakeup_fd(previous_wakeup)
                is_over.set()
                told.send(bytes([signal.SIGURG]))
                watcher.join()
                for number, old in previous.items():
                    signal.signal(number, old)


def _describe_change(before: RunConfig, after: RunConfig, keys: Iterable[str]) -> str:
    was, now = live_values(before), live_values(after)
    values = [(key, was[key], now[key]) for key in keys]
    changed = [f"{key} {old} -> {new}" for key, old, new in values if old != new]
    if not changed:
        return NO_CHANGE + ", ".join(f"{key} is {new} already" for key, _, new in values)
    return ", ".join(changed)
