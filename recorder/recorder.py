"""Five lines in anyone's training loop: every episode kept, alarms raised, commands obeyed.

    recorder = echoscope.Recorder("runs/mine", config=vars(args))
    for step in range(1, steps + 1):
        ...
        recorder.episode(messages, reward=reward, group=prompt_id)     # once an episode
        recorder.step(step, {"loss": loss, "entropy": entropy})        # once a step
        if recorder.should_stop:
            break
    recorder.close()

The calls only put what they are given into a queue. A thread makes trajectories of it, measures,
judges and writes. What goes wrong there never reaches the training: it is said by `on_message`,
and stands in `problem`.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from echoscope.diagnostics.config import AlarmConfig, DiagnosticsConfig, NotifyConfig
from echoscope.diagnostics.judge.advice.situation import Situation, terms_of
from echoscope.diagnostics.judge.alarms import action_commands
from echoscope.diagnostics.monitor import Instruments, Monitor
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.read.names import is_ours, to_our_names
from echoscope.diagnostics.tools.setting_errors import checked
from echoscope.store.errors import RunBusyError, StoreError
from echoscope.store.importers.draft import Draft
from echoscope.store.importers.importing import step_metrics
from echoscope.store.log.layout import Layout, shown_path
from echoscope.store.reader import open_run
from echoscope.store.records import (
    Command,
    CommandAck,
    IntArray,
    SettingsRecord,
    StepMetrics,
)
from echoscope.store.steer.commands import Mailbox, post
from echoscope.store.writer import STATUSES, RunWriter
from echoscope.text.amounts import counted

from .episodes import Episode, StepEpisodes
from .orders import OnCheckpoint, OnSet, Orders

logger = logging.getLogger("echoscope.recorder")

MAX_WAITING = 20_000
"""Calls that wait for the writing thread; further episodes are dropped, and counted."""
POLL_S = 0.5
"""Seconds between two looks for commands."""
_PAUSE_S = 0.1
_CLOSE_S = 60.0
"""How long `close` waits for what is still to be written."""


class Recorder:
    """A run that another trainer trains, in a folder that all of Echoscope reads.

    One process writes a run. All methods are for one thread, the trainer's.

    Args:
        path: the run's folder. An earlier run there goes on: steps from the first one that is
            recorded now replace its own.
        config: what the run was started with; shown, never interpreted. Keep secrets out.
        live: settings that may change while the run goes on, as JSON Schema with the present
            `value`: `{"lr": {"type": "number", "exclusiveMinimum": 0, "value": 1e-5}}`.
        on_set: called in `step` with checked new values of `live`.
        on_checkpoint: called in `step` where somebody asks for a checkpoint.
        alarms: settings of the alarms, as under `diagnostics.alarms`: `{"actions": {"LOW_SUCCESS":
            "stop"}}`.
        notify: who is told, as under `diagnostics.notify`.
        total_steps: how many steps the run will take, where that is known.
        on_message: told of alarms and of what went wrong, from the writing thread. None: the log
            `echoscope.recorder`.

    Raises:
        SettingError: a wrong setting in `alarms` or `notify`; a ValueError of one sentence.
        NotifyError: a target of `notify` cannot be told.
        StoreError: the folder holds something else, such as a run that was imported or that
            Echoscope trained, or the disk refuses.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        live: Mapping[str, Mapping[str, Any]] | None = None,
        on_set: OnSet | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        alarms: Mapping[str, Any] | None = None,
        notify: Mapping[str, Any] | None = None,
        total_steps: int | None = None,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self.problem = ""
        """What went wrong last in the writing thread; empty while all is well."""
        self.num_lost = 0
        """Episodes and steps that were not written."""
        self._say = on_message or logger.warning
        self._orders = Orders(live or {}, on_set, on_checkpoint)
        self._commands: deque[Command] = deque()
        """Put in by the writing thread, taken out by the caller's."""
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._last_step: int | None = None
        self._status = ""
        settings = DiagnosticsConfig(alarms=checked(AlarmConfig, alarms or {}, ("alarms",)))
        self._work = _Work(
            path=self.path,
            name=name or self.path.name,
            config=dict(config or {})
            | ({} if total_steps is None else {"steps": total_steps})
            | {"recorded": True},
            live=self._orders.live,
            settings=settings,
            notifier=Notifier(
                checked(NotifyConfig, notify or {}, ("notify",)),
                run=self.path.name,
                on_message=self._say,
            ),
            recorder=self,
        )
        self._thread = threading.Thread(target=self._run, name="echoscope-recorder", daemon=True)
        self._thread.start()

    @property
    def should_stop(self) -> bool:
        """Somebody, or an alarm that may, asked for the end of the run."""
        return self._orders.should_stop

    def episode(
        self,
        messages: Sequence[Mapping[str, Any]],
        reward: float = math.nan,
        *,
        turn_rewards: Sequence[float] | None = None,
        group: str | int | None = None,
        success: bool | None = None,
        env: str = "",
        is_eval: bool = False,
        **fields: Any,
    ) -> None:
        """Record an episode of the step that the next `step` names.

        Args:
            messages: as chat templates and the OpenAI API take them; each message of the assistant
                is a turn. Do not change them afterwards.
            reward: of the whole episode; it stands at the last turn. Or give `turn_rewards`, one
                a turn.
            group: siblings, sampled for one task, have the same; None: those with the same prompt.
            success: whether the task was solved; None where that is not known.
            is_eval: of an evaluation, not of training.
            fields: anything else; kept beside the episode.

        Raises:
            ValueError: the recorder is closed.
        """
        self._require_open()
        if self._jobs.qsize() >= MAX_WAITING:
            self._lose("the disk is too slow: episodes are dropped")
            return
        self._jobs.put(
            Episode(
                messages=messages,
                reward=reward,
                turn_rewards=turn_rewards,
                group=None if group is None else str(group),
                success=success,
                env=env,
                is_eval=is_eval,
                fields=fields,
            )
        )

    def drafts(self, drafts: Iterable[Draft]) -> None:
        """Record episodes that a reader of another trainer's files has made."""
        self._require_open()
        for draft in drafts:
            self._jobs.put(draft)

    def step(self, step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """End a step: its episodes and numbers are written, and commands are obeyed.

        `record` and then `obey`.

        Args:
            step: counts up from 1 (0: an evaluation before training).
            metrics: numbers under any names. Those of verl, TRL, RAGEN and prime-rl are
                understood; `docs/metrics-guide.md` has the list ("Names in other trainers").

        Raises:
            ValueError: the step does not come after the last one, or the recorder is closed.
        """
        self.record(step, metrics)
        self.obey(step)

    def record(self, step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Write a step's episodes and numbers; arguments and errors as of `step`."""
        self._require_open()
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(f"step is {step}, but must come after step {self._last_step}")
        self._last_step = step
        self._jobs.put(_Step(step, numbers_of(metrics or {}), time.time()))

    def obey(self, step: int) -> None:
        """Obey commands between two steps.

        Returns at once, but for a pause that somebody asked for, which lasts until `resume` or
        `stop`.

        Args:
            step: the last that has trained.
        """
        while True:
            if self._commands:
                commands = [self._commands.popleft() for _ in range(len(self._commands))]
                acks = [self._orders.apply(command, step + 1) for command in commands]
                self._jobs.put(
                    _Acks(
                        acks, commands, SettingsRecord(step=step + 1, values=self._orders.values())
                    )
                )
            if not self._orders.is_paused or not self._thread.is_alive():
                return
            time.sleep(_PAUSE_S)

    def _require_open(self) -> None:
        if self._status:
            raise ValueError("the recorder is closed")

    def flush(self, timeout_s: float = _CLOSE_S) -> bool:
        """Wait until everything recorded so far is on the disk; whether it is."""
        is_done = threading.Event()
        self._jobs.put(is_done)
        return is_done.wait(timeout_s) and not self.problem

    def close(self, status: str = "") -> None:
        """Write what is left, and let the run go. Never raises for what the disk does.

        Args:
            status: finished, stopped, failed or interrupted; "": stopped where somebody asked for
                the end, else finished.
        """
        if self._status:
            return
        self._status = status or ("stopped" if self.should_stop else "finished")
        if self._status not in STATUSES:
            wrong, self._status = self._status, ""
            raise ValueError(f"status is {wrong!r}, but must be one of {', '.join(STATUSES)}")
        self._jobs.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            self._trouble(f"not everything was written within {_CLOSE_S:.0f} s")

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.close("" if kind is None else "interrupted" if interrupted else "failed")

    def _run(self) -> None:
        """The writing thread: until `close`, whatever happens in it."""
        next_look = 0.0
        while True:
            try:
                job = self._jobs.get(timeout=POLL_S)
            except queue.Empty:
                job = _LOOK
            num_with_it = self._work.num_waiting if isinstance(job, _Step) else 0
            try:
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + POLL_S
                    self._commands.extend(self._work.new_commands())
                if job is None:
                    self._work.close(self._status)
                    return
                if isinstance(job, threading.Event):
                    self._work.flush()
                    job.set()
                elif job is not _LOOK:
                    self._work.do(job)
            except Exception as error:  # noqa: BLE001 - the training goes on, and it is said
                if isinstance(job, Episode | Draft | _Step):
                    self.num_lost += 1 + num_with_it
                self._trouble(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
                if job is None:
                    return
                if isinstance(job, threading.Event):
                    job.set()

    def _lose(self, why: str) -> None:
        self.num_lost += 1
        self._trouble(why)

    def _trouble(self, text: str) -> None:
        if text != self.problem:
            self._say(f"recorder: {text}")
        self.problem = text

    def say(self, text: str) -> None:
        """For the writing thread."""
        self._say(text)


_LOOK = object()
"""No job: time to look for commands."""


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    values: dict[str, float]
    at: float
    """In seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class _Acks:
    acks: list[CommandAck]
    commands: list[Command]
    settings: SettingsRecord


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values: Python's, NumPy's, and tensors of one element.

    >>> numbers_of({"loss": 0.5, "note": "text", "flag": True})
    {'loss': 0.5, 'flag': 1.0}
    """
    if all(type(value) is float for value in metrics.values()):
        return dict(metrics)
    out: dict[str, float] = {}
    for key, value in metrics.items():
        if isinstance(value, int | float):
            number = value
        elif hasattr(value, "item"):
            try:
                number = value.item()
            except (ValueError, RuntimeError):
                continue  # more than one element
        else:
            continue
        try:
            out[str(key)] = float(number)
        except (TypeError, ValueError, OverflowError):
            continue
    return out


def _undecodable(tokens: IntArray) -> str:
    raise ValueError("a recorded run has no tokenizer")


class _Work:
    """What the writing thread does and knows. No method is called from elsewhere."""

    def __init__(
        self,
        *,
        path: Path,
        name: str,
        config: Mapping[str, Any],
        live: Mapping[str, Any],
        settings: DiagnosticsConfig,
        notifier: Notifier,
        recorder: Recorder,
    ) -> None:
        self._path, self._settings, self._notifier = path, settings, notifier
        self._say = recorder.say
        self._monitor = Monitor(settings, run_id=path.name, on_message=recorder.say)
        self._monitor.situate(Situation(run=str(path), trainer=terms_of(config.get("trainer"))))
        self._waiting: list[Episode | Draft] = []
        if Layout(path).run_json.is_file():
            _require_recorded(path)
            self._writer: RunWriter | None = None
        else:
            self._writer = RunWriter.create(
                path,
                run_id=path.name,
                name=name,
                config=dict(config),
                live_knobs=live,
                tags=("recorded",),
            )
        self._busy: RunBusyError | None = None
        """Another process writes the folder. It stays so: what comes between would be lost."""
        seen = frozenset() if self._writer is None else self._writer.seen_command_ids
        self._mailbox = None if self._writer is None else Mailbox(path, seen)

    @property
    def num_waiting(self) -> int:
        """Episodes that belong to the next step."""
        return len(self._waiting)

    def new_commands(self) -> list[Command]:
        return [] if self._mailbox is None else self._mailbox.drain()

    def do(self, job: Any) -> None:
        if isinstance(job, Episode | Draft):
            self._waiting.append(job)
        elif isinstance(job, _Step):
            self._commit(job)
        elif self._writer is not None:
            self._writer.record_acks(job.acks, job.commands, job.settings)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self, status: str) -> None:
        self._notifier.close(status, self._monitor.diagnosis.verdict)
        if self._writer is not None:
            if self._waiting:
                self._say(f"recorder: {len(self._waiting)} episodes of no step were not written")
            self._writer.close(status=status)

    def _commit(self, step: _Step) -> None:
        waiting, self._waiting = self._waiting, []
        if self._writer is None:
            self._resume(step.number)
        assert self._writer is not None
        content = StepEpisodes(step.number)
        for episode in waiting:
            content.add(episode)
        for why, times in content.refused.items():
            self._say(f"recorder: step {step.number}: {times} episodes were not written: {why}")
        made = step_metrics(self._path.name, step.number, content.trajectories)
        values = {**(made.values if content.trajectories else {}), **named(step.values)}
        records = []
        batch = content.batch()
        if batch.groups and step.number > 0:
            instruments = Instruments(decode=_undecodable)
            measured = self._monitor.measure(step.number, batch, self._settings, instruments)
            texts = {k: v for k, v in measured.values.items() if k.startswith("text/")}
            values |= texts
            records = measured.records
        alarms = self._monitor.judge(step.number, values)
        self._writer.commit_step(
            metrics=[
                StepMetrics(
                    run_id=self._path.name,
                    step=step.number,
                    phase="train" if step.number else "eval",
                    policy_version=None,
                    wall_time=step.at,
                    values=values,
                )
            ],
            trajectories=content.trajectories,
            outcomes=content.outcomes,
            alarms=alarms,
            diagnostics=records,
        )
        self._notifier.observe(alarms, self._monitor.diagnosis.verdict)
        for alarm in alarms:
            self._say(f"{alarm.severity.value}: {alarm.message}")
        for command in action_commands(
            alarms, self._settings.alarms, run_id=self._path.name, now=time.time()
        ):
            post(self._path, command)

    def _resume(self, first: int) -> None:
        """Go on with the run of the folder: its steps from `first` on are replaced."""
        if self._busy is not None:
            raise self._busy
        reader = open_run(self._path)
        last = reader.info().last_step
        numbers = reader.sql("SELECT DISTINCT step FROM metrics ORDER BY step")
        steps = numbers.column("step").to_pylist()
        rows = reader.sql("SELECT step, key, value FROM metrics WHERE step < $1", [first])
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
        by_step: dict[int, dict[str, float]] = {}
        for row in rows.to_pylist():
            value = math.nan if row["value"] is None else row["value"]
            by_step.setdefault(row["step"], {})[row["key"]] = value
        for number in sorted(by_step):
            self._monitor.judge(number, by_step[number])


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


def named(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers under their own names, and under ours where a name is understood."""
    foreign = {key: np.array([value]) for key, value in values.items() if not is_ours(key)}
    ours = to_our_names(foreign).columns if foreign else {}
    known = {key: float(column[0]) for key, column in ours.items() if key not in values}
    return {**values, **known}
