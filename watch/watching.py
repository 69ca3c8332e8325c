"""Follow what another trainer writes, step by step, as a run that is judged while it grows.

    watch = Watch(Path("outputs"), Path("runs/outputs"))
    while not is_enough:
        watch.look()
        time.sleep(watch.rest_s)
    watch.close()

A look reads what is new, takes steps back of which the files say something else by now, and judges
and writes the complete ones. The run itself says what each of its steps was written from, so the
next watch of the same path reads all files again and goes on from there.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.rollouts import metrics_mapping, roles_of
from echoscope.diagnostics.read.wandb_address import is_address
from echoscope.recorder.foreign_run import StepEnd
from echoscope.store.errors import StoreError
from echoscope.store.query.alarms import raised_now
from echoscope.store.records import Alarm
from echoscope.store.status import pace_of
from echoscope.text.amounts import counted, step_words

from .folder import LOOK_S, Folder
from .ledger import Ledger, Look, Waits
from .pipe import Pipe
from .wandb_run import WandbRun
from .watched_run import WatchedRun, WatchError

logger = logging.getLogger("echoscope.watch")

MAX_LOOK_S = 0.5
"""Between two looks, where one costs much; and in one look, for judging."""
SHARE = 0.02
"""Of a core that looks may take while nothing is written."""
MAX_NAMED = 5
"""Files that are named where none can be followed."""
_TRY_AGAIN_S = 10.0
OnStep = Callable[[int, Mapping[str, float], Verdict], None]
OnAlarms = Callable[[Sequence[Alarm], Verdict], None]


class Watch:
    """The run of a trainer that is watched.

    Args:
        path: A file, a folder, which may come later, `-` for standard input, or
            `wandb:ENTITY/PROJECT/RUN`.
        run_path: The run's folder.
        settings: What is measured and which alarms are judged, and who is told of them.
        on_message: Told of what a person should know.
        on_step: Told of each step when it was judged.
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
        on_step: OnStep = lambda step, values, verdict: None,
        on_alarms: OnAlarms = lambda alarms, verdict: None,
    ) -> None:
        if path.exists() and not path.is_dir() and not path.is_file():
            pipe = shlex.quote(str(path))
            raise WatchError(
                f"{path}: is a pipe or a device; `cat {pipe} | echoscope watch -` follows it"
            )
        self.path = path
        waits, settings = waits or Waits(), settings or DiagnosticsConfig()
        self._say, self._on_step, self._on_alarms = on_message, on_step, on_alarms
        names = metrics_mapping(mapping)
        self._run = WatchedRun(
            run_path, watched=_shown(path), settings=settings, mapping=names, say=on_message
        )
        self._notifier = Notifier(settings.notify, run=run_path.name, on_message=on_message)
        claims = self._run.take_up()
        self._ledger = Ledger(waits, claims, roles_of(mapping))
        kind = Pipe if self.is_pipe else WandbRun if is_address(path) else Folder
        self.source: Folder = kind(
            path,
            own=run_path,
            ledger=self._ledger,
            mapping=mapping or {},
            say=on_message,
            line_quiet_s=waits.line_quiet_s,
        )
        """What is read: how far, and whether more will come."""
        self.last_step = max(claims, default=-1)
        """The step that was judged last; -1 before the first."""
        self._told: set[tuple[str, int]] = set()
        """Alarms that were told of, by rule and step."""
        self._alarms: list[Alarm] = []
        """Those that the steps of this watch raised or cleared."""
        self._times: deque[float] = deque(maxlen=64)
        self._began_at = time.time()
        self._is_behind = True
        """What was there when the watch began was not judged to its end yet."""
        self._has_more = False
        """Complete steps wait for the next look."""
        self._said_waiting = self._said_what = False
        self._broken_at: float | None = None
        """When writing failed last; None while the run can be written."""
        self.rest_s = LOOK_S
        """Seconds until the next look."""

    @property
    def is_pipe(self) -> bool:
        """Standard input is watched: it tells itself when it ends."""
        return str(self.path) == "-"

    @property
    def is_begun(self) -> bool:
        """Whether the run has a step."""
        return self.last_step >= 0

    @property
    def is_behind(self) -> bool:
        """What was there when the watch began was not judged to its end yet."""
        return self._is_behind or self._has_more

    def verdict(self) -> Verdict:
        """What is known of the run after the last step that was judged."""
        return self._run.verdict()

    def look(self) -> None:
        """Read what is new, and judge the steps that are complete."""
        started = time.thread_time()  # a busy machine is no reason to look less often
        look = self.source.look()
        took = time.thread_time() - started
        self._say_where(look)
        is_waiting = False
        if not look.is_behind and self._can_write():
            try:
                self._take_back(look)
                is_waiting = self._judge(look)
                self._run.flush()
            except StoreError as error:
                self._take_failed(error)
        self._is_behind &= look.is_behind or self._has_more
        if not self._is_behind:
            self._say_what()
            if self._broken_at is None and self.is_begun:
                self._tell(self._alarms)
        self.rest_s = min(MAX_LOOK_S, max(LOOK_S, took / SHARE))
        if look.is_new or is_waiting:
            self.rest_s = LOOK_S
        if self.source.num_bytes_left or self._has_more:
            self.rest_s = 0.0

    def close(self, status: str = "finished") -> None:
        """End the watch; the run stays. Raises nothing for what the disk does: it is said."""
        self._say_left()
        self._notifier.close(status, self.verdict if self.is_begun else None)
        try:
            self._run.close(status)
        except StoreError as error:
            self._say(f"the run could not be ended: {error}")
        self.source.close()

    # --- what is said of the files

    def _say_left(self) -> None:
        """At the end: what was read and not judged, or not taken."""
        left, rollouts = self._ledger.waiting(self.last_step), self._ledger.rollouts
        if left:
            steps = step_words((left[0], left[-1]))
            if self._has_more:
                self._say(f"{steps} were not judged yet: the next watch does so")
            else:
                self._say(f"{steps} may not be written to the end: not judged")
        if late := rollouts.num_late:
            self._say(
                f"{counted(late, 'episode')} came after their step was judged, and "
                f"{'is' if late == 1 else 'are'} not stored"
            )
        for reason, times in rollouts.refused.counts.most_common(5):
            self._say(f"{counted(times, 'row')} were left out: {reason}")

    def _say_what(self) -> None:
        """Once, where nothing can be followed yet: what is waited for, and what lies there."""
        if self._said_what or self._ledger.has_any or not self.source.is_there:
            return
        self._said_what = True
        names, sentence = self.source.names(), f"{_shown(self.path)}: nothing to follow yet"
        if names:
            more = f", {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            named = f"{', '.join(names[:MAX_NAMED])}{more}"
            sentence += f" in {counted(len(names), 'file')} ({named})"
        self._say(f"{sentence}. Waiting for {self.source.awaited}.")

    def _say_where(self, look: Look) -> None:
        if not self.source.is_there and not self._said_waiting:
            self._said_waiting = True
            self._say(f"{_shown(self.path)} is not there yet: waiting for it")
        elif self.source.is_there and self._said_waiting and look.is_new:
            self._said_waiting = False
            self._say(f"{_shown(self.path)} is there")

    # --- steps that are taken back, and steps that are judged

    def _take_back(self, look: Look) -> None:
        """Take the run back to the first step of which the files say more, or something else."""
        ledger, is_reading_again = self._ledger, self._ledger.rollouts.is_reading_again
        while difference := ledger.difference(look):
            first = difference.step
            if not difference.can_write:
                steps = counted(self.last_step - first, "step")
                self._say(f"more of step {first} came {steps} late: left out")
                ledger.leave(first)
                continue
            if is_reading_again:
                self._say(
                    f"the files say something else of step {first} than the run: steps from there "
                    "are replaced"
                )
            elif difference.is_again:
                self._say(f"the trainer began again at step {first}: steps from there are replaced")
                ledger.begin_again(first)
            else:
                self._say(f"more of step {first} came after it was judged: judged again from there")
            ledger.rewind(first)
            self._run.take_back(first)
            self.last_step = max(ledger.claims, default=-1)
            self._alarms = [alarm for alarm in self._alarms if alarm.step < first]
            return

    def _judge(self, look: Look) -> bool:
        """Judge complete steps, one at least, for as long as a look may take.

        Returns whether others are incomplete.
        """
        ledger, pace_s, began = self._ledger, pace_of(list(self._times)), time.monotonic()
        self._has_more = is_over = False
        for step in ledger.waiting(self.last_step):
            usual = ledger.of_step(self.last_step)
            if not (self.source.is_ended or ledger.is_complete(step, usual, look, pace_s)):
                return True
            if is_over:
                self._has_more = True
                break
            self._judge_step(step)
            is_over = time.monotonic() - began > MAX_LOOK_S
        return False

    def _judge_step(self, step: int) -> None:
        rollouts = self._ledger.rollouts
        content = rollouts.content(step)
        for why, times in content.refused.items():
            self._say(f"step {step}: {times} episodes were not taken: {why}")
        wall_time = self._began_at if self._is_behind else time.time()
        end = StepEnd(step, self._ledger.numbers(step), wall_time)
        judged = self._run.commit(end, content, rollouts.signature(step), rollouts.trainer)
        self._ledger.written(step)
        self.last_step = step
        self._times.append(wall_time)
        self._on_step(step, judged.values, self.verdict())
        self._alarms += judged.alarms
        if not self._is_behind:
            self._tell(judged.alarms)

    def _tell(self, events: Iterable[Alarm]) -> None:
        """Tell people of what is raised, each alarm once, whatever is read again."""
        new = [a for a in raised_now(events) if (a.rule, a.step) not in self._told]
        if new:
            self._told |= {(alarm.rule, alarm.step) for alarm in new}
            self._notifier.observe(new, self.verdict)
            self._on_alarms(new, self.verdict())

    # --- the disk

    def _can_write(self) -> bool:
        """Whether the run can be written; where it could not, that is tried from time to time."""
        if self._broken_at is None:
            return True
        if time.monotonic() - self._broken_at < _TRY_AGAIN_S:
            return False
        try:
            claims = self._run.take_up()
        except StoreError:
            self._broken_at = time.monotonic()
            return False
        self._broken_at = None
        self.last_step = max(claims, default=-1)
        self._ledger.rewind(self.last_step + 1)
        self._say(f"the run can be written again: it goes on after step {self.last_step}")
        return True

    def _take_failed(self, error: StoreError) -> None:
        with suppress(StoreError):  # the first error says why
            self._run.close("failed")
        self._say(f"{error}; it is tried again every {_TRY_AGAIN_S:.0f} s")
        self._broken_at = time.monotonic()


def _shown(path: Path) -> str:
    if is_address(path):
        return str(path)
    return "standard input" if str(path) == "-" else str(path.absolute())
