"""The steps of a recorded run: each is measured, judged, written, and told to people and tools.

A thread does it. Nothing that goes wrong here reaches the training: it is said once by
`on_message`, and it stands in `problem`. What was not written is counted. A folder that refuses (a
full disk, say) is tried again every `RETRY_S`: the run goes on there as soon as it can.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.alarms import action_commands
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.sinks.mirror import Mirror
from echoscope.diagnostics.tools.foreign_step import ForeignStep
from echoscope.store.errors import RunBusyError, RunExistsError, StoreError
from echoscope.store.importers.draft import Draft
from echoscope.store.importers.steps.episodes import StepEpisodes
from echoscope.store.log.layout import Layout, shown_path
from echoscope.store.reader import open_run
from echoscope.store.records import Alarm, Command, CommandAck, SettingsRecord
from echoscope.store.steer.commands import Mailbox, post
from echoscope.store.writer import RunWriter
from echoscope.text.amounts import counted
from echoscope.text.sentences import in_one_line

from .episodes import GivenEpisode, take
from .foreign_run import ForeignRun, StepEnd
from .orders import values_of

POLL_S = 0.5
"""Seconds between two looks for commands."""
RETRY_S = 10.0
_START_S = 2.0
"""How long another process may take to lay out the folder that both want to start."""

Say = Callable[[str], None]


class RunSteps(threading.Thread):
    """The steps of a recorded run. The caller's thread may call `put`, `end` and `trouble`.

    Raises:
        NotifyError, StoreError: as of `Recorder`.
    """

    def __init__(
        self,
        *,
        path: Path,
        name: str,
        config: Mapping[str, Any],
        live: Mapping[str, Any],
        meanings: Mapping[str, Meaning],
        settings: DiagnosticsConfig,
        notifier: Notifier,
        mirror: Mirror,
        on_message: Say,
    ) -> None:
        super().__init__(name="echoscope-recorder", daemon=True)
        self.num_lost = 0
        """Episodes and steps that were handed over and not written."""
        self.problem = ""
        self.commands: deque[Command] = deque()
        """Put in by this thread, taken out by the caller's."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._path, self._settings, self._notifier = path, settings, notifier
        self._live = live
        self._mirror, self._say = mirror, on_message
        self._run = ForeignRun(
            path,
            trainer=config.get("trainer"),
            settings=settings,
            meanings=meanings,
            given_by="meanings",
            say=lambda text: on_message(f"recorder: {text}"),
            live=values_of(live),
        )
        self._waiting: list[GivenEpisode | Draft] = []
        self._unwritten: dict[int, int] = {}
        """Steps that the writer has, and may not have written yet: the step and its episodes."""
        self._answers: list[tuple[list[CommandAck], list[Command], SettingsRecord]] = []
        """Answers to commands that could not be written."""
        self._handed: set[str] = set()
        """Commands that went past the mailbox."""
        self._create(name, config)
        self._busy: RunBusyError | None = None
        """Another process writes the folder. It stays so: what comes between would be lost."""
        self._refusal: Exception | None = None
        """The folder refused with it; it is tried again at `_retry_at`."""
        self._retry_at = 0.0
        self._is_reopened = False
        self._last_step = 0
        self._mailbox: Mailbox | None = None
        self._open_mailbox()
        self.start()

    @property
    def num_jobs(self) -> int:
        """Jobs that wait."""
        return self._jobs.qsize()

    def put(self, job: Callable[..., None], *args: Any) -> None:
        """Have the thread do something, after all that it was asked before. Returns at once."""
        self._jobs.put(partial(job, *args))

    def end(self, timeout_s: float) -> bool:
        """Wait until the thread has done all that it was asked; whether it has."""
        self._jobs.put(None)
        self.join(timeout_s)
        return not self.is_alive()

    def trouble(self, text: str) -> None:
        """Say what went wrong, unless it is what went wrong last."""
        if text != self.problem:
            self._say(f"recorder: {text}")
        self.problem = text

    def run(self) -> None:
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

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 -- the training goes on, and it is said
            self.trouble(in_one_line(error))
        else:
            if self._is_reopened:
                self._is_reopened, self.problem = False, ""

    def _create(self, name: str, config: Mapping[str, Any]) -> None:
        """Where the folder holds a recorded run, its first step says where it goes on."""
        if not Layout(self._path).is_run:
            try:
                self._run.writer = RunWriter.create(
                    self._path,
                    run_id=self._path.name,
                    name=name,
                    config=dict(config),
                    live_knobs=self._live,
                    tags=("recorded",),
                )
                return
            except RunExistsError:
                if not self._is_started_by_another():
                    raise
        _require_recorded(self._path)

    def _is_started_by_another(self) -> bool:
        """Whether another process lays out the folder at this moment; waits until it has."""
        layout = Layout(self._path)
        deadline = time.monotonic() + _START_S
        while not layout.is_run:
            if time.monotonic() > deadline or not layout.writer_lock.exists():
                return False
            time.sleep(0.02)
        return True

    def _look(self) -> None:
        """Take new commands for the caller. Those that no run can obey are answered here."""
        if self._mailbox is None:
            return
        commands = [c for c in self._mailbox.drain() if c.command_id not in self._handed]
        refusals = self._mailbox.take_refusals(self._last_step + 1)
        if refusals and self._run.writer is not None:
            self._run.writer.record_acks(refusals)
        self.commands.extend(commands)

    def add(self, episode: GivenEpisode | Draft) -> None:
        """An episode of the step that `commit` ends."""
        self._waiting.append(episode)

    def answer(
        self, acks: list[CommandAck], commands: list[Command], settings: SettingsRecord
    ) -> None:
        """The caller has answered commands."""
        self._run.settings_changed(settings)
        self._answers.append((acks, commands, settings))
        self._write_answers()

    def flush(self) -> None:
        if self._run.writer is not None:
            self._writing(RunWriter.flush)

    def close(self, status: str) -> None:
        try:
            self._notifier.close(status, self._run.verdict)
        finally:
            try:
                self._end(status)
            finally:
                self._mirror.close(status)

    def _end(self, status: str) -> None:
        if self._waiting:
            self.num_lost += len(self._waiting)
            self._say(
                f"recorder: {counted(len(self._waiting), 'episode')} after the last step: not "
                "written, because no step followed"
            )
        if self._refusal is not None:
            self._reopen()
        if self._run.writer is not None:
            self._write_answers()
            self._writing(RunWriter.flush)
            self._writing(lambda writer: writer.close(status=status))

    def commit(self, step: StepEnd) -> None:
        """Write a step, and tell others of it whether or not the folder takes it."""
        waiting, self._waiting = self._waiting, []
        try:
            if self._run.writer is None and self._refusal is None:
                self._resume(step.number)
            judged = self._judged(step, waiting)
        except BaseException:
            self.num_lost += 1 + len(waiting)
            raise
        num_taken = len(judged.content.trajectories)
        self.num_lost += len(waiting) - num_taken
        try:
            self._write(judged)
            self._last_step = step.number
        except BaseException:
            self.num_lost += 1 + num_taken
            raise
        finally:
            self._tell(judged.alarms)

    def _judged(self, step: StepEnd, waiting: list[GivenEpisode | Draft]) -> ForeignStep:
        """The step with what is measured of it and the alarms that it raised or cleared."""
        content = StepEpisodes(step.number)
        for episode in waiting:
            take(content, episode)
        for why, times in content.refused.items():
            were = "was" if times == 1 else "were"
            self._say(
                f"recorder: step {step.number}: {counted(times, 'episode')} {were} not written: "
                f"{why}"
            )
        return self._run.judge(step, content)

    def _write(self, judged: ForeignStep) -> None:
        """Hand a step to the writer, and its copy to the sinks."""
        if self._refusal is not None:
            self._reopen()
        written = self._writing(judged.write).acknowledged_step
        self._unwritten = {s: n for s, n in self._unwritten.items() if s > written}
        self._unwritten[judged.content.step] = 1 + len(judged.content.trajectories)
        self._mirror.step(
            judged.metrics(self._path.name),
            trajectories=judged.content.trajectories,
            alarms=judged.alarms,
            verdict=self._run.verdict,
        )

    def _tell(self, alarms: list[Alarm]) -> None:
        try:
            self._notifier.observe(alarms, self._run.verdict)
        except Exception as error:  # noqa: BLE001 - the step counts, and it is said
            self.trouble(f"cannot tell people: {in_one_line(error)}")
        for alarm in alarms:
            self._say(f"{alarm.severity.value}: {alarm.message}")
        self._act_on(alarms)

    def _act_on(self, alarms: list[Alarm]) -> None:
        """Pause or stop where an alarm may: by the mailbox, as a person would.

        Where the folder does not take the command, it goes to the caller directly: a full disk must
        not keep a collapsed run going.
        """
        commands = action_commands(
            alarms, self._settings.alarms, run_id=self._path.name, now=time.time()
        )
        for command in commands:
            try:
                post(self._path, command)
            except OSError as error:
                self.trouble(f"an alarm's {command.action.value} goes past the folder: {error}")
                self._handed.add(command.command_id)
                self.commands.append(command)

    def _write_answers(self) -> None:
        while self._answers and self._run.writer is not None:
            self._writing(lambda writer: writer.record_acks(*self._answers[0]))
            self._answers.pop(0)

    # -- a folder that refuses -------------------------------------------------------------------

    def _writing(self, do: Callable[[RunWriter], None]) -> RunWriter:
        """Call the writer, and return it.

        Where it refuses, count what it had, and let it go until it is due.

        A writer that failed once refuses for good: what it had not written by then is lost.
        """
        writer = self._run.writer
        if writer is None:
            assert self._refusal is not None
            raise self._refusal.with_traceback(None)
        try:
            do(writer)
        except Exception as error:
            self._run.writer = None
            with suppress(Exception):  # it lets the folder go all the same
                writer.close(status="failed")
            written = writer.acknowledged_step
            self.num_lost += sum(n for step, n in self._unwritten.items() if step > written)
            self._unwritten.clear()
            self._refusal = error
            self._retry_at = time.monotonic() + (RETRY_S if isinstance(error, OSError) else 0.0)
            raise
        return writer

    def _reopen(self) -> None:
        """Go on in the folder that refused, at most every `RETRY_S`."""
        if time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + RETRY_S
        try:
            last = open_run(self._path).info().last_step
            self._run.writer = RunWriter.resume(self._path, from_step=last)
        except (OSError, ValueError):
            return  # what was said first still holds
        self._refusal, self._is_reopened = None, True
        self._open_mailbox()
        self._say(f"recorder: {shown_path(self._path)} is written again, after step {last}")
        self._write_answers()

    def _resume(self, first: int) -> None:
        """Go on with the run of the folder: its steps from `first` on are replaced."""
        if self._busy is not None:
            raise self._busy
        try:
            steps = self._run.resume(first)
        except RunBusyError as error:
            self._busy = error
            raise
        except ValueError as error:
            raise StoreError(str(error)) from error
        self._open_mailbox()
        if (values := values_of(self._live)) != self._run.live.now:
            # What an earlier attempt was told to set does not hold in this one.
            self.answer([], [], SettingsRecord(step=first, values=values))
        if steps:
            then = (
                f"steps from {first} on are replaced"
                if steps[-1] >= first
                else f"it goes on with step {first}"
            )
            self._say(
                f"{shown_path(self._path)} holds a run of {counted(len(steps), 'step')}; {then}"
            )

    def _open_mailbox(self) -> None:
        if self._mailbox is None and self._run.writer is not None:
            self._mailbox = Mailbox(self._path, self._run.writer.seen_command_ids)


def _require_recorded(path: Path) -> None:
    """Raises StoreError for a run that did not come from a recorder."""
    config = open_run(path).info().config
    imported = config.get("imported")
    if isinstance(imported, Mapping):
        raise StoreError(
            f"{shown_path(path)}: was imported from {imported.get('trainer')}; record into "
            "another folder"
        )
    if not config.get("recorded"):
        raise StoreError(
            f"{shown_path(path)}: holds a run that Echoscope trained itself; record into another "
            "folder"
        )
