"""The trainer's side of a run: hand over a step, go on training.

A background thread does the writing behind a bounded queue; the caller waits only while the queue
is full. A step counts once its journal record is fsynced (`acknowledged_step`). The process may
die at any instant: what was acknowledged stays, what was not never becomes visible.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from .errors import StoreError, StoreWriteError
from .log.committer import Committer, StepContent, load_committer
from .log.durable import FileLock
from .log.index import read_run_json
from .log.journal import JournalState
from .log.layout import Layout
from .log.remote.pulling import refuse_copy
from .log.starting import describe, start
from .query.rows import EventRecord, check_trajectory, plain
from .records import (
    Alarm,
    CheckpointRecord,
    Command,
    CommandAck,
    DiagnosticRecord,
    SettingsRecord,
    StepMetrics,
    Trajectory,
    TrajectoryOutcome,
)
from .schema import SCHEMA_VERSION

logger = logging.getLogger("echoscope.store")

STATUSES = ("finished", "stopped", "failed", "interrupted")
_MICRO_AGE_S = 2.0
_QUEUE_SIZE = 4
"""Steps (or calls of `add_trajectories`) that may wait to be written."""
_LOCK_PATIENCE_S = 2.0
_JOB = Callable[[Committer], None]


class RunWriter:
    """Writes one run. One process at a time; all methods from one thread."""

    def __init__(
        self,
        layout: Layout,
        lock: FileLock,
        committer: Committer,
        seen: set[str],
        *,
        is_packing: bool,
    ) -> None:
        """Use `create` or `resume`."""
        # The first array makes pyarrow import pandas where that is installed, a third of a second.
        # Here it delays a start; in the thread it would hold up the trainer's first step.
        pa.array([0])
        self._lock = lock
        self._committer = committer
        self._is_packing = is_packing
        self.path = layout.root
        self.run_id = committer.state.run_id
        self.attempt = committer.state.attempt
        self.seen_command_ids = frozenset(seen)
        """Commands that were acknowledged before: seed a `Mailbox` with them."""
        self.acknowledged_step = committer.state.last_step
        """The last step whose record is fsynced; -1 before the first."""
        self._last_step = self.acknowledged_step
        self._open: dict[int, dict[str, Trajectory]] = {}
        self._error: Exception | None = None
        self._is_closed = False
        self._packer: subprocess.Popen[bytes] | None = None
        # Only the thread touches these two.
        self._waiting: list[Trajectory] = []
        self._waiting_since = 0.0
        self._jobs: queue.Queue[_JOB | None] = queue.Queue(maxsize=_QUEUE_SIZE)
        self._thread = threading.Thread(target=self._work, name="echoscope-writer", daemon=True)
        self._thread.start()

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        run_id: str,
        config: Mapping[str, Any],
        live_knobs: Mapping[str, Any] | None = None,
        name: str = "",
        base_model: str = "",
        tokenizer: str | None = None,
        parent_run_id: str | None = None,
        tags: Sequence[str] = (),
        rotate_every: int = 256,
        is_packing: bool = True,
    ) -> RunWriter:
        """Start a run in a new or empty folder.

        Args:
            rotate_every: steps after which a piece of the journal is complete.
            is_packing: pack complete pieces in a process of low priority beside the training.

        Raises:
            RunExistsError: the folder is not empty.
            StoreWriteError: the disk refuses.
        """
        from echoscope import __version__

        layout = Layout(Path(path).resolve())
        layout.require_text()
        state = JournalState(run_id)
        state.description = plain(
            {
                "run_id": run_id,
                "schema_version": SCHEMA_VERSION,
                "name": name,
                "project": "",
                "base_model": base_model,
                "tokenizer": tokenizer,
                "parent_run_id": parent_run_id,
                "tags": list(tags),
                "config": json.dumps(plain(config)),
                "live_knobs": json.dumps(plain(live_knobs or {})),
                "created_at": time.time(),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "code_version": __version__,
            }
        )
        lock, journal = start(layout, state)
        committer = Committer(layout, journal, state, rotate_every=rotate_every)
        return cls(layout, lock, committer, set(), is_packing=is_packing)

    @classmethod
    def resume(
        cls,
        path: Path,
        *,
        from_step: int,
        config: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        rotate_every: int = 256,
        is_packing: bool = True,
    ) -> RunWriter:
        """Go on with a run after step `from_step` (-1: from the start) as its next attempt.

        Steps after `from_step` that earlier attempts wrote are hidden from now on.

        Args:
            config, tags: What the run says of itself from now on; None leaves it as it is.

        Raises:
            NotARunError: no run there.
            RunBusyError: another process writes it.
            ValueError: the run never acknowledged `from_step`.
            StoreError: the run cannot be read or written.
        """
        layout = Layout(Path(path).resolve())
        described = read_run_json(layout)
        refuse_copy(layout)
        lock = FileLock(layout.writer_lock)
        lock.acquire(wait_s=_LOCK_PATIENCE_S)
        try:
            committer, seen = load_committer(layout, rotate_every=rotate_every)
            last = committer.state.last_step
            if not -1 <= from_step <= last:
                raise ValueError(
                    f"{layout.root}: cannot resume after step {from_step}; "
                    f"the last acknowledged step is {last}"
                )
            if config is not None:
                described["config"] = json.dumps(plain(config))
            if tags is not None:
                described["tags"] = list(tags)
            if config is not None or tags is not None:
                describe(layout, committer.state, described)
            committer.rewind(from_step, pid=os.getpid(), host=socket.gethostname())
        except BaseException:
            lock.release()
            raise
        return cls(layout, lock, committer, seen, is_packing=is_packing)

    def add_trajectories(self, trajectories: Sequence[Trajectory]) -> None:
        """Hand over finished trajectories of a step that is not over.

        They become visible within about two seconds, or with the step where that is sooner.

        Raises:
            ValueError: an id given twice, or a step that is already written.
            StoreWriteError: writing failed earlier.
        """
        self._raise_error()
        for trajectory in trajectories:
            check_trajectory(trajectory, None)
            self._require_later(trajectory.step)
            _add_once(self._open.setdefault(trajectory.step, {}), trajectory)
        taken = tuple(trajectories)
        if taken:
            self._put(lambda committer: self._take(committer, taken))

    def commit_step(
        self,
        *,
        metrics: Sequence[StepMetrics],
        trajectories: Sequence[Trajectory] = (),
        outcomes: Sequence[TrajectoryOutcome] = (),
        alarms: Sequence[Alarm] = (),
        diagnostics: Sequence[DiagnosticRecord] = (),
    ) -> None:
        """Hand over a whole step: it becomes one journal record.

        Trajectories given to `add_trajectories` for this step belong to it and need not be given
        again. Each outcome is joined with its trajectory; evaluation trajectories need none.

        Raises:
            ValueError: no metrics, several steps at once, a step that does not come after the
                last one, or an outcome without its trajectory.
            StoreWriteError: writing failed earlier.
        """
        self._raise_error()
        step = self._step_of(metrics)
        step_rows = dict(self._open.get(step, {}))
        for trajectory in trajectories:
            if trajectory.step != step:
                raise ValueError(f"{trajectory.id} does not belong to step {step}")
            _add_once(step_rows, trajectory)
        by_id = {outcome.trajectory_id: outcome for outcome in outcomes}
        if len(by_id) != len(outcomes):
            raise ValueError(f"step {step}: a trajectory has two outcomes")
        for missing in by_id.keys() - step_rows.keys():
            raise ValueError(f"step {step}: outcome of {missing}, a trajectory it does not have")
        for trajectory in step_rows.values():
            check_trajectory(trajectory, by_id.get(trajectory.id))
        self._last_step = step
        self._open = {s: rows for s, rows in self._open.items() if s > step}
        content = StepContent(
            step=step,
            metrics=metrics,
            trajectories=sorted(step_rows.values(), key=lambda t: t.id),
            outcomes=outcomes,
            alarms=alarms,
            diagnostics=diagnostics,
        )

        def commit(committer: Committer) -> None:
            self._waiting = [t for t in self._waiting if t.step != step]
            is_rotated = committer.commit_step(content)
            self.acknowledged_step = step
            if is_rotated and self._is_packing:
                self._start_packing()

        self._put(commit)

    def record_acks(
        self,
        acks: Sequence[CommandAck],
        commands: Sequence[Command] = (),
        settings: SettingsRecord | None = None,
    ) -> None:
        """Acknowledge commands outside a step, with the live settings that they leave if any did.

        Bodies not given are read from the mailbox.
        """
        self._put_events(*acks, *commands, *([] if settings is None else [settings]))

    def record_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Alarms outside a step."""
        self._put_events(*alarms)

    def record_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """A checkpoint written, or deleted, outside a step."""
        self._put_events(checkpoint)

    def _put_events(self, *events: EventRecord) -> None:
        if events:
            self._put(lambda committer: committer.commit_events(events))

    def flush(self) -> None:
        """Wait until everything handed over is on the disk, finished trajectories included.

        Raises:
            StoreWriteError: writing failed.
        """
        is_done = threading.Event()

        def finish(committer: Committer) -> None:
            self._commit_waiting(committer)
            is_done.set()

        self._put(finish)
        while not is_done.wait(0.1):
            self._raise_error()
        self._raise_error()

    def close(self, *, status: str) -> None:
        """Write what is left and the run's last record, and let the run go.

        Args:
            status: `"finished"`, `"stopped"`, `"failed"` or `"interrupted"`.

        Raises:
            ValueError: another status.
            StoreWriteError: writing failed, now or earlier. The run is let go all the same.
        """
        if status not in STATUSES:
            raise ValueError(f"status is {status!r}, but must be one of {', '.join(STATUSES)}")
        if self._is_closed:
            return
        self._is_closed = True

        def finish(committer: Committer) -> None:
            self._commit_waiting(committer)
            committer.end(status)

        self._jobs.put(finish)
        self._jobs.put(None)
        self._thread.join()
        try:
            self._committer.release()
        finally:
            self._lock.release()
        self._raise_error()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close as `finished`, or as `failed` or `interrupted` where an exception passes."""
        if kind is None:
            self.close(status="finished")
            return
        try:
            self.close(status="interrupted" if kind is KeyboardInterrupt else "failed")
        except StoreError as second:
            if error is not None:
                error.add_note(str(second))

    def _step_of(self, metrics: Sequence[StepMetrics]) -> int:
        steps = {entry.step for entry in metrics}
        if len(steps) != 1:
            raise ValueError(f"metrics are for steps {sorted(steps)}, but must be for one step")
        runs = {entry.run_id for entry in metrics} - {self.run_id}
        if runs:
            raise ValueError(f"metrics of run {runs.pop()!r} do not belong to {self.run_id!r}")
        (step,) = steps
        self._require_later(step)
        return step

    def _require_later(self, step: int) -> None:
        if step <= self._last_step:
            raise ValueError(f"step {step} does not come after step {self._last_step}")

    def _put(self, job: _JOB) -> None:
        if self._is_closed:
            raise StoreWriteError(f"{self.path}: the writer is closed")
        self._raise_error()
        self._jobs.put(job)

    def _raise_error(self) -> None:
        error = self._error
        if error is None:
            return
        if isinstance(error, OSError):
            why = error.strerror or str(error)
            raise StoreWriteError(
                f"{self.path}: writing failed ({why}); the run is safe up to step "
                f"{self.acknowledged_step}"
            ) from error
        raise error

    def _work(self) -> None:
        """The thread: one job after the other. After a failure it only empties the queue."""
        while True:
            try:
                job = self._jobs.get(timeout=self._patience_s())
            except queue.Empty:
                job = self._commit_waiting
            if job is None:
                return
            if self._error is not None:
                continue
            try:
                job(self._committer)
            except Exception as error:  # noqa: BLE001 - every later call raises it
                self._error = error

    def _patience_s(self) -> float | None:
        if not self._waiting or self._error is not None:
            return None
        return max(0.0, self._waiting_since + _MICRO_AGE_S - time.monotonic())

    def _take(self, committer: Committer, trajectories: Sequence[Trajectory]) -> None:
        if not self._waiting:
            self._waiting_since = time.monotonic()
        self._waiting += trajectories

    def _commit_waiting(self, committer: Committer) -> None:
        waiting, self._waiting = self._waiting, []
        for step in sorted({t.step for t in waiting}):
            committer.commit_micro(step, [t for t in waiting if t.step == step])

    def _start_packing(self) -> None:
        """Pack in a process of its own: its memory, its crash and its time are not ours."""
        if self._packer is not None:
            code = self._packer.poll()
            if code is None:
                return
            if code:
                logger.warning(
                    "%s: packing left files as they are; `echoscope runs verify %s` says why",
                    self.path,
                    self.path,
                )
        command = [sys.executable, "-m", "echoscope.store.log.packing", str(self.path)]
        nothing = subprocess.DEVNULL
        try:
            self._packer = subprocess.Popen(
                command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
            )
        except OSError as error:
            logger.warning("%s: cannot pack beside the training: %s", self.path, error)


def _add_once(step_rows: dict[str, Trajectory], trajectory: Trajectory) -> None:
    """Add a trajectory to those of its step; it may have been handed over before."""
    if step_rows.setdefault(trajectory.id, trajectory) is not trajectory:
        raise ValueError(f"two different trajectories have the id {trajectory.id}")
