"""The sinks of one run: W&B, TensorBoard and trackio beside the store.

Each sink has a bounded queue with a thread of its own. Calls return at once. A sink that fails,
does not answer in time, or falls too far behind is stopped. That is said once and stands in its
status; the run goes on, and `echoscope mirror` copies the rest later.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from echoscope.store.records import Alarm, StepMetrics, Trajectory

from ..config import FrozenModel
from ..judge.record import Verdict
from ..notify.background import MAX_WAITING, BackgroundQueue
from .content import SinkOpening, StepCopy, episode_rows, numbers_of, shows_episodes, tag_of
from .settings import SINK_NAMES, SinkName, SinksConfig, require_packages
from .writers import Writer, open_writer

TIMEOUT_S = 60.0
"""Longest wait for a sink before it is given up, and for all of them at the end of a run."""
COPY_TIMEOUT_S = 3600.0
"""... at the end of a copy of a stored run."""
MIN_FREE_BYTES = 2_000_000
"""wandb and tensorboardX write in the background and tell nobody of a full disk."""

FOLDER = "sinks"


class SinkStatus(FrozenModel):
    """How far a run has been copied."""

    sink: SinkName
    state: Literal["running", "finished", "failed"] = "running"
    where: str = ""
    """A folder, or the address of a page."""
    identity: str = ""
    """The run's id there: a run that goes on stays one run."""
    last_step: int | None = None
    """The last step that the sink has taken; it has all before, too."""
    problem: str = ""

    def in_words(self) -> str:
        """How far it came, and what went wrong.

        >>> SinkStatus(sink="wandb", state="failed", last_step=3, problem="disk full").in_words()
        'failed after step 3 (disk full)'
        """
        far = "before the first step" if self.last_step is None else f"after step {self.last_step}"
        where = f", {self.where}" if self.where else ""
        return f"{self.state} {far}{where}" + (f" ({self.problem})" if self.problem else "")


def path_of(run_path: Path, sink: SinkName) -> Path:
    return run_path / FOLDER / f"{sink}.json"


def write_status(run_path: Path, status: SinkStatus) -> None:
    """Replace the file of a sink. Raises OSError where the disk refuses."""
    path = path_of(run_path, status.sink)
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(status.model_dump_json(indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def read_status(run_path: Path, sink: SinkName) -> SinkStatus | None:
    """What the file of a sink says; None without one, or where it cannot be read."""
    try:
        return SinkStatus.model_validate_json(path_of(run_path, sink).read_bytes())
    except (OSError, ValueError):
        return None


def all_statuses(run_path: Path) -> list[SinkStatus]:
    """The sinks that a run has had."""
    statuses = (read_status(run_path, name) for name in SINK_NAMES)
    return [status for status in statuses if status is not None]


class Mirror:
    """Copies a run to every sink that is on.

    Args:
        run_path: the run's folder; sinks write files below it.
        run_config: what the run was started with, as JSON values.
        on_message: told of what goes wrong, from threads of the sinks.
        is_stored: the run is stored already: a sink that failed before goes on, where that of a
            resumed run stays as it is, so that it never lacks a step between others.

    Raises:
        SinkError: a sink is on whose package is not installed.
    """

    def __init__(
        self,
        config: SinksConfig,
        *,
        run_path: Path,
        run_config: Mapping[str, Any],
        on_message: Callable[[str], None],
        is_stored: bool = False,
    ) -> None:
        require_packages(config)
        self._config, self._run_path, self._is_stored = config, run_path, is_stored
        self._run_config, self._say = run_config, on_message
        self._sinks: list[_Sink] | None = None
        self._last_news: tuple[Any, ...] = ()

    def step(
        self,
        metrics: Sequence[StepMetrics],
        *,
        trajectories: Sequence[Trajectory] = (),
        alarms: Sequence[Alarm] = (),
        verdict: Callable[[], Verdict] | None = None,
    ) -> None:
        """Copy a step: its numbers, what was raised and cleared, the verdict, some episodes.

        Args:
            metrics: of one step, training and evaluation.
            verdict: what is known of the run now; called only where a sink is on.
        """
        if not self._config.active():
            return
        step = metrics[0].step
        values = {key: value for part in metrics for key, value in part.values.items()}
        for part in metrics:
            values |= part.durations_s
        try:
            judged = None if verdict is None else verdict()
        except Exception as error:  # noqa: BLE001 - a copy is never worth a run; it is said
            self._say(f"sinks: a step was not copied: {type(error).__name__}: {error}")
            return
        news = () if judged is None else (judged.state, judged.kinds)
        episodes = trajectories if shows_episodes(step) else ()
        copy = StepCopy(
            step=step,
            numbers=numbers_of(values, judged, tag_of(trajectories)),
            alarms=tuple(alarms),
            verdict=judged,
            is_news=news != self._last_news,
            episodes=episode_rows(episodes, self._config.episodes),
        )
        self._last_news = news
        if self._sinks is None:  # threads start with the first step: a failed start leaves none
            started = [self._start(name) for name in self._config.active()]
            self._sinks = [sink for sink in started if sink is not None]
        for sink in self._sinks:
            sink.put(copy)

    def statuses(self) -> list[SinkStatus]:
        """How far each sink has come."""
        return [sink.status for sink in self._sinks or ()]

    @property
    def num_waiting(self) -> int:
        """Steps that the slowest sink has not taken yet."""
        return max((sink.queue.num_waiting for sink in self._sinks or ()), default=0)

    def has_failed(self) -> bool:
        """Whether a sink has been given up."""
        for sink in self._sinks or ():
            sink.stop_if_it_hangs()
        return any(status.state == "failed" for status in self.statuses())

    def close(self, status: str) -> None:
        """End all sinks together."""
        deadline = time.monotonic() + (COPY_TIMEOUT_S if self._is_stored else TIMEOUT_S)
        for sink in self._sinks or ():
            sink.close(status)
        for sink in self._sinks or ():
            sink.join(deadline)

    def _start(self, name: SinkName) -> _Sink | None:
        before = read_status(self._run_path, name) or SinkStatus(sink=name)
        if before.state == "failed" and not self._is_stored:
            self._say(
                f"sink {name}: {before.in_words()}, so this run is not copied there: `echoscope "
                f"mirror {self._run_path} --to {name}` copies the rest"
            )
            return None
        opening = SinkOpening(
            config=self._config,
            run=self._run_path.name,
            folder=self._run_path.resolve() / FOLDER,
            run_config=self._run_config,
            identity=before.identity,
        )
        running = before.model_copy(update={"state": "running", "problem": ""})
        return _Sink(running, partial(open_writer, name, opening), self._run_path, self._say)


class _Sink:
    """One sink of one run: its queue, its writer, and what became of it. Failed is final."""

    def __init__(
        self,
        status: SinkStatus,
        open_it: Callable[[], Writer],
        run_path: Path,
        say: Callable[[str], None],
    ) -> None:
        self.status = status
        self.queue = BackgroundQueue(f"sink {status.sink}")
        self._run_path, self._say = run_path, say
        self._writer: Writer | None = None
        self._lock = threading.RLock()
        self.queue.put(partial(self._attempt, partial(self._open, open_it)))

    def put(self, copy: StepCopy) -> None:
        self.stop_if_it_hangs()
        if self.queue.num_waiting >= MAX_WAITING:
            self._stop(f"too slow: {MAX_WAITING} steps wait for it")
        self.queue.put(partial(self._attempt, partial(self._write, copy)))

    def close(self, status: str) -> None:
        self.queue.close(partial(self._attempt, partial(self._finish, status)))

    def join(self, deadline: float) -> None:
        while not self.queue.join(0.05) and self.status.state == "running":
            self.stop_if_it_hangs()
            if time.monotonic() > deadline:
                self._stop("it did not finish in time")

    def stop_if_it_hangs(self) -> None:
        if self.queue.busy_s > TIMEOUT_S:
            self._stop(f"no answer within {TIMEOUT_S:g} s")

    def _attempt(self, job: Callable[[], None]) -> None:
        try:
            job()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a stranger's package; it is said
            self._stop(f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])

    def _open(self, open_it: Callable[[], Writer]) -> None:
        self._writer = open_it()
        self._note(where=self._writer.where, identity=self._writer.identity)

    def _write(self, copy: StepCopy) -> None:
        assert self._writer is not None
        self._writer.write(copy)
        folder = Path(self.status.where)
        if folder.is_dir() and (free := shutil.disk_usage(folder).free) < MIN_FREE_BYTES:
            raise OSError(f"the disk of {folder} is full ({free:,} bytes free)")
        self._note(last_step=copy.step)

    def _finish(self, status: str) -> None:
        assert self._writer is not None
        self._writer.close(status)
        self._note(state="finished")

    def _stop(self, why: str) -> None:
        with self._lock:
            if self.status.state != "running":
                return
            self.queue.abandon()
            self.status = self.status.model_copy(update={"state": "failed", "problem": why})
        name = self.status.sink
        self._say(
            f"sink {name}: stopped: {why}; the run goes on. `echoscope mirror {self._run_path} "
            f"--to {name}` copies the rest later"
        )
        with suppress(OSError):  # the message above was said
            write_status(self._run_path, self.status)

    def _note(self, **values: Any) -> None:
        with self._lock:
            if self.status.state == "running":  # else an abandoned writer has come back
                self.status = self.status.model_copy(update=values)
                write_status(self._run_path, self.status)
