"""The sinks of one run: W&B, TensorBoard and trackio beside the store.

Each sink has a bounded queue with a thread of its own. Calls return at once. What fails is said
once and stands in the sink's status; the run goes on. A sink that does not answer in time is
abandoned, and so is one that fails five times in a row.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from echoscope.store.records import Alarm, StepMetrics, Trajectory
from echoscope.text.amounts import counted

from ..judge.record import Verdict
from ..notify.background import BackgroundQueue
from .content import Opening, StepCopy, Writer, open_writer, tag_of
from .settings import SinkName, SinksConfig, require_packages
from .status import FOLDER, SinkStatus, read_status, write_status

MAX_FAILURES = 5
MIN_FREE_BYTES = 2_000_000
"""wandb and tensorboardX write in the background and tell nobody of a full disk."""


class Mirror:
    """Copies a run to every sink that is on.

    Args:
        run_path: the run's folder; sinks without a folder of their own write below it.
        run_config: what the run was started with, as JSON values.
        on_message: told of what goes wrong, from threads of the sinks.

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
    ) -> None:
        require_packages(config)
        self._config, self._run_path = config, run_path
        self._run_config, self._say = run_config, on_message
        self._sinks: list[_Sink] | None = None
        self._last_news: tuple[Any, ...] = ()

    @property
    def is_on(self) -> bool:
        return bool(self._config.active())

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
        values: dict[str, float] = {}
        for part in metrics:
            values |= part.values
        for part in metrics:
            values |= part.durations_s
        self.copy(
            metrics[0].step, values, trajectories=trajectories, alarms=alarms, verdict=verdict
        )

    def copy(
        self,
        step: int,
        values: Mapping[str, float],
        *,
        trajectories: Sequence[Trajectory] = (),
        alarms: Sequence[Alarm] = (),
        verdict: Callable[[], Verdict] | None = None,
    ) -> None:
        """As `step`, with all numbers in one mapping."""
        if not self.is_on:
            return
        try:
            known = None if verdict is None else verdict()
        except Exception as error:  # noqa: BLE001 - a copy is never worth a run; it is said
            self._say(f"sinks: a step was not copied: {type(error).__name__}: {error}")
            return
        shows_episodes = self._config.episodes and is_due(step, self._config.episodes_every)
        news = () if known is None else (known.state, known.kinds)
        copy = StepCopy(
            step=step,
            values=values,
            alarms=tuple(alarms),
            verdict=known,
            is_news=news != self._last_news,
            episodes=tuple(trajectories) if shows_episodes else (),
            tag=tag_of(trajectories),
        )
        self._last_news = news
        if self._sinks is None:  # threads start with the first step: a failed start leaves none
            self._sinks = [self._start(name) for name in self._config.active()]
        for sink in self._sinks:
            sink.put(copy)

    def statuses(self) -> list[SinkStatus]:
        """How far each sink has come."""
        return [sink.status for sink in self._sinks or ()]

    @property
    def has_failed(self) -> bool:
        """Whether a sink has been given up."""
        for sink in self._sinks or ():
            sink.give_up_if_it_hangs()
        return any(sink.status.state == "failed" for sink in self._sinks or ())

    @property
    def num_waiting(self) -> int:
        """Steps that the slowest sink has not taken yet."""
        return max((sink.queue.num_waiting for sink in self._sinks or ()), default=0)

    def close(self, status: str) -> None:
        """End all sinks together; waits at most `finish_s`."""
        deadline = time.monotonic() + self._config.finish_s
        for sink in self._sinks or ():
            sink.close(status)
        for sink in self._sinks or ():
            sink.join(deadline)

    def _start(self, name: SinkName) -> _Sink:
        before = read_status(self._run_path, name) or SinkStatus(sink=name)
        opening = Opening(
            config=self._config,
            run=self._run_path.name,
            folder=self._run_path.resolve() / FOLDER,
            run_config=self._run_config,
            identity=before.identity,
        )
        return _Sink(
            before.model_copy(update={"state": "running", "problem": ""}),
            partial(open_writer, name, opening),
            run_path=self._run_path,
            timeout_s=self._config.timeout_s,
            say=self._say,
        )


class _Sink:
    """One sink of one run: its queue, its writer, and what became of it. Failed is final."""

    def __init__(
        self,
        status: SinkStatus,
        open_it: Callable[[], Writer],
        *,
        run_path: Path,
        timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.status = status
        self.queue = BackgroundQueue(f"sink {status.sink}")
        self._open_it, self._run_path, self._timeout_s = open_it, run_path, timeout_s
        self._tell = say
        self._writer: Writer | None = None
        self._num_failures = self._num_dropped = self._num_in_hand = 0
        self._lock = threading.RLock()
        self.queue.put(self._open)

    def put(self, copy: StepCopy) -> None:
        self.give_up_if_it_hangs()
        self.queue.put(partial(self._write, copy))

    def close(self, status: str) -> None:
        self.queue.close(partial(self._finish, status))

    def join(self, deadline: float) -> None:
        while not self.queue.join(0.05) and self.status.state == "running":
            self.give_up_if_it_hangs()
            if time.monotonic() > deadline:
                self._stop("it did not finish in time")

    def give_up_if_it_hangs(self) -> None:
        if self.queue.busy_s > self._timeout_s and self.status.state == "running":
            self._stop(f"no answer within {self._timeout_s:g} s")

    def _open(self) -> None:
        try:
            self._writer = self._open_it()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a stranger's package; it is said
            self._stop(f"it refuses the run: {_words(error)}")
        else:
            self._note(where=self._writer.where, identity=self._writer.identity)

    def _write(self, copy: StepCopy) -> None:
        num_dropped = self.queue.num_dropped - self._num_dropped
        if num_dropped:
            self._num_dropped += num_dropped
            self._trouble(f"too slow: {counted(num_dropped, 'step')} lost", num_dropped)
        assert self._writer is not None
        try:
            self._num_in_hand = 1
            self._writer.write(copy)
            self._require_room()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a stranger's package; it is said
            self._num_in_hand = 0
            self._num_failures += 1
            self._trouble(_words(error), 1)
            if self._num_failures == MAX_FAILURES:
                self._stop(f"it failed {MAX_FAILURES} times in a row: {_words(error)}")
        else:
            self._num_failures = self._num_in_hand = 0
            self._note(last_step=copy.step)

    def _finish(self, status: str) -> None:
        assert self._writer is not None
        try:
            self._writer.close(status)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a stranger's package; it is said
            self._trouble(_words(error), 0)
            self._note(state="failed")
        else:
            self._note(state="finished")

    def _require_room(self) -> None:
        folder = Path(self.status.where)
        if folder.is_dir() and (free := shutil.disk_usage(folder).free) < MIN_FREE_BYTES:
            raise OSError(f"the disk of {folder} is full ({free:,} bytes free)")

    def _stop(self, why: str) -> None:
        with self._lock:
            if self.status.state == "failed":
                return
            num_lost = self.status.num_lost + self._num_in_hand + self.queue.abandon()
            self._note(state="failed", problem=why, num_lost=num_lost)
        name = self.status.sink
        self._tell(
            f"sink {name}: stopped: {why}; the run goes on. `echoscope mirror {self._run_path} "
            f"--to {name}` copies the rest later"
        )

    def _trouble(self, why: str, num_lost: int) -> None:
        if why != self.status.problem:
            self._tell(f"sink {self.status.sink}: {why}")
        self._note(problem=why, num_lost=self.status.num_lost + num_lost)

    def _note(self, **values: Any) -> None:
        with self._lock:
            if self.status.state == "failed":  # an abandoned writer has come back
                return
            self.status = self.status.model_copy(update=values)
            try:
                write_status(self._run_path, self.status)
            except OSError as error:
                if not self.status.problem:
                    problem = f"its status is not written: {error}"
                    self.status = self.status.model_copy(update={"problem": problem})
                    self._tell(f"sink {self.status.sink}: {problem}")


def is_due(step: int, every: int) -> bool:
    """At the first step, and at every multiple."""
    return step == 1 or step % every == 0


def _words(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the package ended: {error}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
