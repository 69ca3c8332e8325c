"""Follow what another trainer writes, step by step, as a run that is judged while it grows.

    watch = Watch(Path("outputs"), Path("runs/outputs"))
    while not is_enough:
        watch.look()
        time.sleep(watch.rest_s)
    watch.close()

A look reads what is new, tells of each step that it has read, and hands the complete ones over to
a thread that judges and writes them: a look waits neither for a measure nor for the disk. It takes
steps back that the trainer has trained again. The run itself says what each of its steps was
written from, so the next watch of the same path reads all files again and goes on from there.
"""

from __future__ import annotations

import itertools
import logging
import queue
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.names import RowNamer
from echoscope.diagnostics.read.rollouts import metrics_mapping, roles_of
from echoscope.diagnostics.read.wandb_address import is_address
from echoscope.recorder.foreign_run import JudgedStep, StepEnd
from echoscope.store.errors import StoreError
from echoscope.store.records import Alarm, AlarmState
from echoscope.store.status import pace_of
from echoscope.text.amounts import counted

from .acting import WatchError
from .address import Address
from .folder import LOOK_S, Folder
from .ledger import Ledger, Look, Waits
from .pipe import Pipe
from .rollouts import Claim
from .watched_run import WatchedRun

logger = logging.getLogger("echoscope.watch")

MAX_LOOK_S = 0.5
"""Between two looks, where one costs much."""
SHARE = 0.02
"""Of a core that looks may take while nothing is written."""
MAX_NAMED = 5
"""Files that are named where none can be followed."""
MAX_STEPS_AHEAD = 32
"""Steps that may wait to be judged; fewer than `rollouts.KEPT_STEPS`, so that they can be handed
over again where the disk refused them."""
MAX_EPISODES_AHEAD = 2_000
"""Episodes that may wait: they are in memory."""
_TRY_AGAIN_S = 10.0
OnStep = Callable[[int, Mapping[str, float]], None]
OnJudged = Callable[[int, Mapping[str, float], Verdict], None]
OnAlarms = Callable[[Sequence[Alarm], Verdict], None]


class Watch:
    """The run of a trainer that is watched.

    Args:
        path: A file, a folder, which may come later, `-` for standard input, or
            `wandb:ENTITY/PROJECT/RUN`.
        run_path: The run's folder.
        settings: What is measured and which alarms are judged, and who is told of them.
        on_message: Told of what a person should know.
        on_step: Told of each step as soon as it was read, with its numbers so far.
        on_judged: Told of each step when it was judged, with the numbers that `on_step` was not
            told of.
        on_alarms: Told of alarms when they are raised, those of the past once and together.

    Raises:
        WatchError: the run's folder holds something else, or the path is a pipe.
        NotifyError: a target cannot be told.
        StoreError: the run cannot be read or written.
    """

    def __init__(
        self,
        path: Path,
        run_path: Path,
        *,
        settings: DiagnosticsConfig | None = None,
        mapping: Mapping[str, Meaning] | None = None,
        waits: Waits | None = None,
        on_message: Callable[[str], None] = logger.warning,
        on_step: OnStep = lambda step, values: None,
        on_judged: OnJudged = lambda step, values, verdict: None,
        on_alarms: OnAlarms = lambda alarms, verdict: None,
    ) -> None:
        if path.exists() and not path.is_dir() and not path.is_file():
            pipe = shlex.quote(str(path))
            raise WatchError(
                f"{path}: is a pipe or a device; `cat {pipe} | echoscope watch -` follows it"
            )
        self.path = path
        self._waits, settings = waits or Waits(), settings or DiagnosticsConfig()
        self._say, self._on_alarms = on_message, on_alarms
        self._on_step, self._on_judged = on_step, on_judged
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        """What the thread that judges has to say."""
        names = metrics_mapping(mapping)
        self._run = WatchedRun(
            run_path, watched=_shown(path), settings=settings, mapping=names, say=self._said.put
        )
        self._notifier = Notifier(settings.notify, run=run_path.name, on_message=on_message)
        claims = self._run.take_up()
        self._ledger = Ledger(self._waits, claims, self._run.stored, roles_of(mapping))
        self._namer = RowNamer(mapping=names, meaning=self._run.run.meaning)
        """Of numbers that are told of before their step is judged."""
        kind = Pipe if self.is_pipe else Address if is_address(path) else Folder
        self._folder: Folder = kind(
            path,
            own=run_path,
            ledger=self._ledger,
            mapping=mapping or {},
            say=on_message,
            line_quiet_s=self._waits.line_quiet_s,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._jobs: deque[tuple[Future[Any], Callable[[Any], None], int]] = deque()
        """What the thread was asked, who takes the answer, and of a step its episodes and 1."""
        self.last_step = self._handed = max(claims, default=-1)
        """`last_step` was judged last; -1 before the first. `_handed` was handed over to be."""
        self._verdict = self._run.run.verdict()
        self._has_more = False
        """Complete steps wait because many others wait to be judged."""
        self._shown: dict[int, set[str]] = {}
        """Step that was told of and is not judged yet -> the names of its numbers."""
        self._newest_shown = self._handed
        self._told: set[tuple[str, int]] = set()
        """Alarms that were told of, by rule and step."""
        self._open: dict[str, Alarm] = {}
        """Rule -> its alarm that is raised now."""
        self._times: deque[float] = deque(maxlen=64)
        self._is_behind = True
        self._was_asked_to_catch_up = False
        self._began_at = time.time()
        self._said_waiting = self._said_what = False
        self._is_waiting = False
        self._broken_at: float | None = None
        """When writing failed last; None while the run can be written."""
        self._was_any = bool(claims)
        self.rest_s = LOOK_S
        """Seconds until the next look."""
        self.num_steps = 0
        """Steps that were judged."""

    @property
    def is_ended(self) -> bool:
        """Nothing more will come: standard input has ended, or the run at the server."""
        return self._folder.is_ended

    @property
    def is_pipe(self) -> bool:
        """Standard input is watched: it tells itself when it ends."""
        return str(self.path) == "-"

    @property
    def num_judged(self) -> int:
        """Steps of the run, those of earlier watches included, as far as it has any."""
        return self.num_steps + self._was_any

    @property
    def is_behind(self) -> bool:
        """What was there when the watch began was not read to its end yet."""
        return self._is_behind or self._has_more

    @property
    def is_unanswered(self) -> bool:
        """A server was asked and did not answer; it is asked again."""
        return self._folder.is_unanswered

    @property
    def num_bytes_left(self) -> int:
        """What is left to read of what is there."""
        return self._folder.num_bytes_left

    def verdict(self) -> Verdict:
        """What was known of the run after the last step that was judged."""
        return self._verdict

    def look(self, *, is_end: bool = False) -> None:
        """Read what is new, and hand over the steps that are complete.

        Args:
            is_end: Nothing more will be written.
        """
        started = time.thread_time()  # a busy machine is no reason to look less often
        look = self._folder.look(is_end=is_end or self._folder.is_ended)
        took = time.thread_time() - started
        self._say_where(look)
        self._take_results()
        can_write = self._can_write()
        if not look.is_behind:
            if can_write:
                self._take_back(look)
            self._hand(look, may_hand=can_write)
        self._is_behind &= look.is_behind or self._has_more
        if not self._is_behind:
            self._say_what()
            if can_write and not self._was_asked_to_catch_up:
                self._was_asked_to_catch_up = True
                self._submit(self._run.run.verdict, lambda v: self._tell(self._open.values(), v))
        self._take_results()
        self.rest_s = min(MAX_LOOK_S, max(LOOK_S, took / SHARE))
        if look.is_new or self._is_waiting:
            self.rest_s = LOOK_S
        if self.num_bytes_left:
            self.rest_s = 0.0
        elif self._has_more:
            self.rest_s = LOOK_S / 10

    def wait(self) -> None:
        """Until what was handed over is judged and on the disk."""
        wait([future for future, _, _ in self._jobs])
        self._take_results()

    def close(self, status: str = "finished") -> None:
        """End the watch; the run stays. Raises nothing for what the disk does: it is said."""
        self.wait()
        self._say_left()
        self._notifier.close(status, self.verdict if self._run.run.writer else None)
        self._thread.shutdown()
        try:
            self._run.close(status)
        except StoreError as error:
            self._say(f"the run could not be ended: {error}")
        self._folder.close()

    def abandon(self) -> None:
        """The program ends now: nothing is judged or said any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._folder.abandon()

    # --- what is said of the files

    def _say_left(self) -> None:
        """At the end: what was read and not judged, or not taken."""
        left, rollouts = self._ledger.waiting(self.last_step), self._ledger.rollouts
        if left:
            steps = f"step {left[0]}" if len(left) == 1 else f"steps {left[0]} to {left[-1]}"
            if self._has_more:
                self._say(f"{steps} were not judged yet: the next watch does so")
            else:
                self._say(f"{steps} may not be written to the end: not judged")
        if late := rollouts.num_late:
            self._say(
                f"{counted(late, 'episode')} came after their step was judged, and "
                f"{'is' if late == 1 else 'are'} not stored"
            )
        for reason, times in rollouts.refused.most_common(5):
            self._say(f"{counted(times, 'row')} were left out: {reason}")

    def _say_what(self) -> None:
        """Once, where nothing can be followed yet: what is waited for, and what lies there."""
        if self._said_what or self._ledger.has_any or not self._folder.is_there:
            return
        self._said_what = True
        unread = self._folder.unread()
        sentence = f"{_shown(self.path)}: nothing to follow yet"
        if unread:
            named = "; ".join(f"{name}: {reason}" for name, reason in unread[:MAX_NAMED])
            more = len(unread) - MAX_NAMED
            sentence += (
                f" in {counted(len(unread), 'file')} ({named}{f'; {more} more' * (more > 0)})"
            )
        self._say(f"{sentence}. Waiting for {self._folder.awaited}.")

    def _say_where(self, look: Look) -> None:
        if not self._folder.is_there and not self._said_waiting:
            self._said_waiting = True
            self._say(f"{_shown(self.path)} is not there yet: waiting for it")
        elif self._folder.is_there and self._said_waiting and look.is_new:
            self._said_waiting = False
            self._say(f"{_shown(self.path)} is there")

    # --- steps that are taken back

    def _take_back(self, look: Look) -> None:
        """Steps of which the files say something else than the run."""
        ledger = self._ledger
        if ledger.is_reading_again:
            first = ledger.first_difference()
            if first is not None:
                self._say(
                    f"the files say something else of step {first} than the run: steps from there "
                    "are replaced"
                )
                self._rewind(first)
            return
        again = ledger.began_again()
        if again is not None and again <= self._handed:
            self._say(f"the trainer began again at step {again}: steps from there are replaced")
            self._rewind(again)
            return
        late = ledger.late(look)
        for step in late:
            if ledger.can_write_again(step, self._handed):
                self._say(f"more of step {step} came after it was judged: judged again from there")
                self._rewind(step)
                return
            ledger.leave(step)
            steps = self._handed - step
            self._say(f"more of step {step} came {counted(steps, 'step')} late: left out")

    def _rewind(self, first: int) -> None:
        self._handed = self._ledger.rewind(first)
        self._shown = {s: names for s, names in self._shown.items() if s < first}
        self._newest_shown = min(self._newest_shown, first - 1)
        last = max(self._ledger.claims, default=-1)

        def taken_back(verdict: Verdict) -> None:
            self._open = {rule: a for rule, a in self._open.items() if a.step < first}
            self.last_step, self._verdict = last, verdict

        self._submit(partial(self._run.take_back, first), taken_back)

    # --- steps that are judged

    def _hand(self, look: Look, *, may_hand: bool) -> None:
        """Hand over the complete steps, and tell of those that must wait."""
        ledger, pace_s = self._ledger, pace_of(list(self._times))
        complete: list[int] = []
        usual, waiting = ledger.of_step(self._handed), ledger.waiting(self._handed)
        for step in waiting:
            if not (self.is_ended or ledger.is_complete(step, usual, look, pace_s)):
                break
            complete.append(step)
            usual = ledger.of_step(step)
        self._is_waiting = len(waiting) > len(complete)
        num_free = self._num_free() if may_hand else 0
        self._has_more = may_hand and len(complete) > num_free
        complete = complete[:num_free]
        later = (step for step in waiting[len(complete) :] if step > self._newest_shown)
        read = list(itertools.takewhile(lambda step: ledger.is_read(step, look), later))
        self._namer.learn({step: ledger.numbers(step) for step in [*complete, *read]})
        for step in complete:
            self._hand_step(step)
        for step in read:
            self._show(step)
        if complete:
            ledger.trim(self._handed)
            self._submit(self._run.flush)

    def _num_free(self) -> int:
        """Steps that may be handed over now."""
        sizes = [size for _, _, size in self._jobs if size]
        is_full = sum(sizes) - len(sizes) >= MAX_EPISODES_AHEAD
        return 0 if is_full else max(0, MAX_STEPS_AHEAD - len(sizes))

    def _show(self, step: int) -> None:
        if step > self._newest_shown:
            values = self._namer.named(self._ledger.numbers(step))
            self._newest_shown, self._shown[step] = step, set(values)
            self._on_step(step, values)

    def _hand_step(self, step: int) -> None:
        ledger, is_past = self._ledger, self._is_behind
        content = ledger.rollouts.content(step)
        for why, times in content.refused.items():
            self._say(f"step {step}: {times} episodes were not taken: {why}")
        self._show(step)
        ledger.written(step)
        end = StepEnd(step, ledger.numbers(step), self._began_at if is_past else time.time())
        self._submit(
            partial(self._run.commit, end, content, ledger.claims[step], ledger.rollouts.trainer),
            partial(self._take_judged, is_past=is_past),
            1 + len(content.trajectories),
        )
        self._handed = step
        self._times.append(end.at)

    def _submit(
        self, job: Callable[[], Any], take: Callable[[Any], None] = lambda _: None, size: int = 0
    ) -> None:
        """Have the thread do something, after all that it was asked before."""
        self._jobs.append((self._thread.submit(job), take, size))

    def _take_results(self) -> None:
        while self._jobs and self._jobs[0][0].done():
            future, take, _ = self._jobs.popleft()
            try:
                result = future.result()
            except StoreError as error:
                self._take_failed(error)
            else:
                take(result)
        while not self._said.empty():
            self._say(self._said.get())

    def _take_judged(self, result: tuple[JudgedStep, Verdict], *, is_past: bool) -> None:
        judged, self._verdict = result
        self.last_step = step = judged.metrics.step
        self.num_steps += 1
        told_of, values = self._shown.pop(step, set()), judged.metrics.values
        self._on_judged(step, {k: v for k, v in values.items() if k not in told_of}, self._verdict)
        for alarm in judged.alarms:
            self._open.pop(alarm.rule, None)
        raised = {a.rule: a for a in judged.alarms if a.state is AlarmState.RAISED}
        self._open |= raised
        if not is_past:
            self._tell(raised.values(), self._verdict)

    def _tell(self, alarms: Iterable[Alarm], verdict: Verdict) -> None:
        """Tell people of what is raised, each alarm once, whatever is read again."""
        new = [a for a in alarms if (a.rule, a.step) not in self._told]
        if new:
            self._told |= {(alarm.rule, alarm.step) for alarm in new}
            self._notifier.observe(new, lambda: verdict)
            self._on_alarms(new, verdict)

    # --- the disk

    def _can_write(self) -> bool:
        """Whether the run can be written; where it could not, that is tried from time to time."""
        if self._broken_at is None:
            return True
        if time.monotonic() - self._broken_at >= _TRY_AGAIN_S:
            self._broken_at = time.monotonic()
            self._submit(self._run.take_up, self._take_mended)
        return False

    def _take_failed(self, error: StoreError) -> None:
        if self._broken_at is None:
            self._say(f"{error}; it is tried again every {_TRY_AGAIN_S:.0f} s")
        self._broken_at = time.monotonic()
        self._was_asked_to_catch_up = False

    def _take_mended(self, claims: Mapping[int, Claim]) -> None:
        """Steps that were handed over in vain are handed over once more."""
        self._broken_at = None
        self.last_step = max(claims, default=-1)
        self._handed = self._ledger.rewind(self.last_step + 1)
        self._say(f"the run can be written again: it goes on after step {self.last_step}")
        if self._handed < self.last_step:  # the disk refused while steps were to be taken back
            self._rewind(self._handed + 1)


def _shown(path: Path) -> str:
    if is_address(path):
        return str(path)
    return "standard input" if str(path) == "-" else str(path.absolute())
