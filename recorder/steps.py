"""The steps of a recorded run: each is measured, judged, written, and told to people and tools.

What was not written is counted. A folder that refuses (a full disk, say) is tried again every
`RETRY_S`: the run goes on there as soon as it can.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.advice.situation import Situation, terms_of
from echoscope.diagnostics.judge.alarms import action_commands
from echoscope.diagnostics.monitor import Instruments, Measured, Monitor
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.names import RowNamer
from echoscope.diagnostics.read.run_meaning import RunMeaning
from echoscope.diagnostics.read.table import stored_meaning, stored_rows
from echoscope.diagnostics.sinks.mirror import Mirror
from echoscope.store.errors import RunBusyError, RunExistsError, StoreError
from echoscope.store.importers.beside.metrics import without_reconstructed
from echoscope.store.importers.draft import Draft
from echoscope.store.importers.importing import step_metrics
from echoscope.store.log.layout import Layout, shown_path
from echoscope.store.reader import open_run
from echoscope.store.records import (
    Alarm,
    Command,
    CommandAck,
    DiagnosticRecord,
    IntArray,
    SettingsRecord,
    StepMetrics,
)
from echoscope.store.steer.commands import Mailbox, post
from echoscope.store.writer import RunWriter
from echoscope.text.amounts import counted
from echoscope.text.wrapping import in_one_line

from .episodes import Episode, StepEpisodes

RETRY_S = 10.0
"""Seconds between two attempts to write to a folder that refused."""
_START_S = 2.0
"""How long another process may take to lay out the folder that both want to start."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StepJob:
    """The end of a step: write it."""

    number: int
    values: dict[str, float]
    at: float
    """In seconds since the epoch."""
    information: Measured | None = None
    """What the caller measured with its policy."""


@dataclass(frozen=True, slots=True)
class AcksJob:
    """Commands that the caller has answered."""

    acks: list[CommandAck]
    commands: list[Command]
    settings: SettingsRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgedStep:
    """A step as it is written."""

    metrics: StepMetrics
    content: StepEpisodes
    records: list[DiagnosticRecord]
    alarms: list[Alarm]


def _undecodable(tokens: IntArray) -> str:
    raise ValueError("a recorded run has no tokenizer")


class RunSteps:
    """The steps of a recorded run. Only the thread calls its methods.

    Args:
        on_trouble: told what went wrong beside the writing.
        on_command: takes an alarm's command that the folder does not take.
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
        on_trouble: Say,
        on_command: Callable[[Command], None],
    ) -> None:
        self.num_lost = 0
        self._path, self._settings, self._notifier = path, settings, notifier
        self._mirror = mirror
        self._say, self._trouble, self._hand_over = on_message, on_trouble, on_command
        self._situation = Situation(run=str(path), trainer=terms_of(config.get("trainer")))
        self._monitor = self._new_monitor()
        self._meanings = meanings
        self._namer = self._new_namer(RunMeaning())
        self._meaning = RunMeaning()
        """As it is stored."""
        self._noted: set[str] = set()
        """Notes on the trainer's numbers that were said."""
        self._waiting: list[Episode | Draft] = []
        """Episodes of the step that is not over."""
        self._unwritten: dict[int, int] = {}
        """Steps that the writer has, and may not have written yet: the step and its episodes."""
        self._answers: list[AcksJob] = []
        """Answers to commands that could not be written."""
        self._handed: set[str] = set()
        """Commands that went past the mailbox."""
        self._writer = self._create(name, config, live)
        self._busy: RunBusyError | None = None
        """Another process writes the folder. It stays so: what comes between would be lost."""
        self._refusal: Exception | None = None
        """The folder refused with it; it is tried again at `_retry_at`."""
        self._retry_at = 0.0
        self._is_reopened = False
        self._last_step = 0
        seen = frozenset() if self._writer is None else self._writer.seen_command_ids
        self._mailbox = None if self._writer is None else Mailbox(path, seen)

    def _create(
        self, name: str, config: Mapping[str, Any], live: Mapping[str, Any]
    ) -> RunWriter | None:
        """None where the folder holds a recorded run: its first step says where it goes on."""
        if not Layout(self._path).run_json.is_file():
            try:
                return RunWriter.create(
                    self._path,
                    run_id=self._path.name,
                    name=name,
                    config=dict(config),
                    live_knobs=live,
                    tags=("recorded",),
                )
            except RunExistsError:
                if not self._is_started_by_another():
                    raise
        _require_recorded(self._path)
        return None

    def _is_started_by_another(self) -> bool:
        """Whether another process lays out the folder at this moment; waits until it has."""
        layout = Layout(self._path)
        deadline = time.monotonic() + _START_S
        while not layout.run_json.is_file():
            if time.monotonic() > deadline or not layout.writer_lock.exists():
                return False
            time.sleep(0.02)
        return True

    def is_well_again(self) -> bool:
        """True once after the folder took a step again."""
        is_reopened, self._is_reopened = self._is_reopened, False
        return is_reopened

    def new_commands(self) -> list[Command]:
        """Commands for the caller. Those that no run can obey are answered here."""
        if self._mailbox is None:
            return []
        commands = [c for c in self._mailbox.drain() if c.command_id not in self._handed]
        refusals = self._mailbox.take_refusals(self._last_step + 1)
        if refusals and self._writer is not None:
            self._writer.record_acks(refusals)
        return commands

    def do(self, job: Episode | Draft | StepJob | AcksJob) -> None:
        if isinstance(job, Episode | Draft):
            self._waiting.append(job)
        elif isinstance(job, AcksJob):
            self._answers.append(job)
            self._write_answers()
        else:
            self._commit(job)

    def flush(self) -> None:
        if self._writer is not None:
            self._writing(self._writer.flush)

    def close(self, status: str) -> None:
        try:
            self._notifier.close(status, self._monitor.diagnosis.verdict)
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
        if self._writer is not None:
            self._writing(lambda: self._close_writer(status))

    def _close_writer(self, status: str) -> None:
        assert self._writer is not None
        self._write_answers()
        self._writer.flush()
        self._writer.close(status=status)

    def _commit(self, step: StepJob) -> None:
        """Write a step, and tell others of it whether or not the folder takes it."""
        waiting, self._waiting = self._waiting, []
        try:
            if self._writer is None and self._refusal is None:
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

    def _judged(self, step: StepJob, waiting: list[Episode | Draft]) -> _JudgedStep:
        """The step with what is measured of it and the alarms that it raised or cleared."""
        content = StepEpisodes(step.number)
        for episode in waiting:
            content.add(episode)
        for why, times in content.refused.items():
            were = "was" if times == 1 else "were"
            self._say(
                f"recorder: step {step.number}: {counted(times, 'episode')} {were} not written: "
                f"{why}"
            )
        values, records = self._measured(step, content)
        return _JudgedStep(
            metrics=StepMetrics(
                run_id=self._path.name,
                step=step.number,
                phase="train" if step.number else "eval",
                policy_version=None,
                wall_time=step.at,
                values=values,
            ),
            content=content,
            records=records,
            alarms=self._monitor.judge(step.number, values),
        )

    def _write(self, judged: _JudgedStep) -> None:
        """Hand a step to the writer, and its copy to the sinks."""
        if self._refusal is not None:
            self._reopen()
        self._writing(partial(self._hand_to_writer, judged))
        assert self._writer is not None
        written, content = self._writer.acknowledged_step, judged.content
        self._unwritten = {s: n for s, n in self._unwritten.items() if s > written}
        self._unwritten[judged.metrics.step] = 1 + len(content.trajectories)
        self._mirror.step(
            [judged.metrics],
            trajectories=content.trajectories,
            alarms=judged.alarms,
            verdict=self._monitor.diagnosis.verdict,
        )

    def _tell(self, alarms: list[Alarm]) -> None:
        self._beside("tell people", lambda: self._tell_people(alarms))
        for alarm in alarms:
            self._say(f"{alarm.severity.value}: {alarm.message}")
        self._act_on(alarms)

    def _hand_to_writer(self, judged: _JudgedStep) -> None:
        assert self._writer is not None
        self._writer.commit_step(
            metrics=[judged.metrics],
            trajectories=judged.content.trajectories,
            outcomes=judged.content.outcomes,
            alarms=judged.alarms,
            diagnostics=judged.records,
        )

    def _measured(
        self, step: StepJob, content: StepEpisodes
    ) -> tuple[dict[str, float], list[DiagnosticRecord]]:
        """What is known of a step: counted, read from its text, and the trainer's own numbers."""
        values = self._numbers(step, content)
        records = self._meaning_records(step.number)
        if step.information is not None:
            values |= step.information.values
            records += step.information.records
        batch = content.batch()
        if not batch.groups or step.number <= 0:
            return values, records
        instruments = Instruments(decode=_undecodable)
        measured = self._monitor.measure(step.number, batch, self._settings, instruments)
        texts = {k: v for k, v in measured.values.items() if k.startswith("text/")}
        return values | texts, [*records, *measured.records]

    def _numbers(self, step: StepJob, content: StepEpisodes) -> dict[str, float]:
        """What is counted from the episodes, and the trainer's numbers under their names and ours.

        A key has one source in all steps: what the trainer's numbers tell is not counted, and what
        was counted first is not read from a later column.
        """
        self._namer.learn({step.number: step.values})
        for note in self._namer.notes:
            if note not in self._noted:
                self._noted.add(note)
                self._say(f"recorder: {note}")
        counted: Mapping[str, float] = {}
        if content.trajectories:
            counted = step_metrics(self._path.name, step.number, content.trajectories).values
            self._namer.leave(counted)
        told = self._namer.meaning.of_key
        counted = without_reconstructed(counted) if "reward/return_mean" in told else counted
        left = {key: value for key, value in counted.items() if key not in told}
        return left | self._namer.named(step.values)

    def _meaning_records(self, step: int) -> list[DiagnosticRecord]:
        """What the numbers mean, where that is not stored yet.

        Where earlier steps mean something else now, they are judged again.
        """
        earlier, self._meaning = self._meaning, self._namer.meaning
        if earlier == self._meaning:
            return []
        if earlier.is_revised_by(self._meaning) and self._writer is not None:
            self._writing(self._writer.flush)
            self._monitor = self._new_monitor()
            self._judge_again(step)
        return [self._meaning.record(step)]

    def _judge_again(self, before: int) -> None:
        """Follow the steps of the folder, by what their numbers mean now."""
        for number, values in stored_rows(open_run(self._path), before):
            self._monitor.judge(number, values | self._namer.meaning.row(values))

    def _new_monitor(self) -> Monitor:
        monitor = Monitor(self._settings, run_id=self._path.name, on_message=self._say)
        monitor.situate(self._situation)
        return monitor

    def _new_namer(self, meaning: RunMeaning) -> RowNamer:
        return RowNamer(mapping=self._meanings, meaning=meaning, given_by="meanings")

    def _tell_people(self, alarms: list[Alarm]) -> None:
        self._notifier.observe(alarms, self._monitor.diagnosis.verdict)

    def _beside(self, what: str, do: Callable[[], None]) -> None:
        """Something that happens beside the writing of a step, and must not count against it."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - the step counts, and it is said
            self._trouble(f"cannot {what}: {in_one_line(error)}")

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
                self._trouble(f"an alarm's {command.action.value} goes past the folder: {error}")
                self._handed.add(command.command_id)
                self._hand_over(command)

    def _write_answers(self) -> None:
        if self._writer is None:
            return
        while self._answers:
            self._writing(partial(self._record_acks, self._answers[0]))
            self._answers.pop(0)

    def _record_acks(self, job: AcksJob) -> None:
        assert self._writer is not None
        self._writer.record_acks(job.acks, job.commands, job.settings)

    # -- a folder that refuses -------------------------------------------------------------------

    def _writing(self, do: Callable[[], None]) -> None:
        """Call the writer. Where it refuses, count what it had, and let it go until it is due.

        A writer that failed once refuses for good: what it had not written by then is lost.
        """
        if self._writer is None:
            assert self._refusal is not None
            raise self._refusal.with_traceback(None)
        try:
            do()
        except Exception as error:
            writer, self._writer = self._writer, None
            with suppress(Exception):  # it lets the folder go all the same
                writer.close(status="failed")
            written = writer.acknowledged_step
            self.num_lost += sum(n for step, n in self._unwritten.items() if step > written)
            self._unwritten.clear()
            self._refusal = error
            self._retry_at = time.monotonic() + (RETRY_S if isinstance(error, OSError) else 0.0)
            raise

    def _reopen(self) -> None:
        """Go on in the folder that refused, at most every `RETRY_S`."""
        if time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + RETRY_S
        try:
            last = open_run(self._path).info().last_step
            self._writer = RunWriter.resume(self._path, from_step=last)
        except (OSError, ValueError):
            return  # what was said first still holds
        self._refusal, self._is_reopened = None, True
        if self._mailbox is None:
            self._mailbox = Mailbox(self._path, self._writer.seen_command_ids)
        self._say(f"recorder: {shown_path(self._path)} is written again, after step {last}")
        self._write_answers()

    def _resume(self, first: int) -> None:
        """Go on with the run of the folder: its steps from `first` on are replaced."""
        if self._busy is not None:
            raise self._busy
        reader = open_run(self._path)
        last = reader.info().last_step
        numbers = reader.sql("SELECT DISTINCT step FROM metrics ORDER BY step")
        steps = numbers.column("step").to_pylist()
        self._namer = self._new_namer(stored_meaning(reader))
        try:
            self._writer = RunWriter.resume(self._path, from_step=min(first - 1, last))
        except RunBusyError as error:
            self._busy = error
            raise
        except ValueError as error:
            raise StoreError(str(error)) from error
        self._mailbox = Mailbox(self._path, self._writer.seen_command_ids)
        if steps:
            then = (
                f"steps from {first} on are replaced"
                if steps[-1] >= first
                else f"it goes on with step {first}"
            )
            self._say(
                f"{shown_path(self._path)} holds a run of {counted(len(steps), 'step')}; {then}"
            )
        self._judge_again(first)


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
