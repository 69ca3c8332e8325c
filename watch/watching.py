"""Follow what another trainer writes, step by step, as a run that is judged while it grows.

    watch = Watch(Path("outputs"), Path("runs/outputs"))
    while not is_enough:
        watch.look()
        time.sleep(watch.rest_s)
    watch.close()

A look reads what is new, tells of each step that it has read, and hands the complete ones over to
a thread that judges and writes them (`judging`): a look waits neither for a measure nor for the
disk. It takes steps back that the trainer has trained again. How far each file was read stands
beside the run in `watch.json`, so that the next watch of the same path goes on from there.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import queue
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.run_meaning import RunMeaning
from echoscope.diagnostics.read.wandb_address import is_address
from echoscope.store.errors import StoreError
from echoscope.store.records import Alarm, AlarmState
from echoscope.store.status import pace_of
from echoscope.text.amounts import counted

from .address import Address
from .folder import LOOK_S, ROLLOUTS, Changes, Folder
from .judging import CaughtUp, Failed, Judge, Judged, Mended, TakenBack
from .keeping import Keeper, WatchError, whole_step
from .pipe import Pipe
from .rollouts import KEPT_STEPS
from .steps import Sources, Waits

logger = logging.getLogger("echoscope.watch")

MAX_LOOK_S = 0.5
"""Between two looks, where one costs much."""
SHARE = 0.02
"""Of a core that looks may take while nothing is written."""
MAX_NAMED = 5
"""Files that are named where none can be followed."""
STATE_NAME = "watch.json"
_STATE_S = 2.0
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
        self.path, self.run_path = path, run_path
        self._settings = settings or DiagnosticsConfig()
        self._waits = waits or Waits()
        self._say, self._on_alarms = on_message, on_alarms
        self._on_step, self._on_judged = on_step, on_judged
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        """What the thread that judges has to say."""
        self._keeper = Keeper(
            run_path, watched=_shown(path), settings=self._settings, say=self._said.put
        )
        self._notifier = Notifier(self._settings.notify, run=run_path.name, on_message=on_message)
        stored = self._keeper.take_up()
        state = _read_state(run_path) if stored is not None else {}
        kind = Pipe if _is_pipe(path) else Address if is_address(path) else Folder
        self._folder: Folder = kind(
            path,
            own=run_path,
            mapping=mapping or {},
            say=on_message,
            line_quiet_s=self._waits.line_quiet_s,
            state=state.get("files", {}),
            meaning=stored.meaning if stored is not None else RunMeaning(),
        )
        if stored is not None:
            self._folder.stored = stored.values
            self._folder.rollouts.know(stored.episodes)
        self._judge = Judge(self._keeper)
        self.last_step = self._handed = self._settled = self._resumed = self._keeper.last_step
        """`last_step` was judged last; -1 before the first. `_handed` was handed over to be."""
        self._has_more = False
        """Complete steps wait because many others wait to be judged."""
        self._shown: dict[int, set[str]] = {}
        """Step that was told of and is not judged yet -> the names of its numbers."""
        self._newest_shown = self._handed
        self._included: dict[int, set[str]] = {}
        """Step -> the sources it was judged by, of the newest steps."""
        self._told: set[tuple[str, int]] = {(str(r), int(s)) for r, s in state.get("told", [])}
        self._open: dict[str, Alarm] = {}
        """Rule -> its alarm that is raised now."""
        self._times: list[float] = []
        self._is_behind = True
        self._was_asked_to_catch_up = False
        self._began_at = time.time()
        self._said_waiting = self._said_what = self._said_stragglers = False
        self._late_at = -math.inf
        """When steps were last judged again because of episodes that came late."""
        self._saved_at = self._save_took_s = 0.0
        self._is_dirty = self._is_waiting = False
        self._broken_at: float | None = None
        """When writing failed last; None while the run can be written."""
        self._was_any = stored is not None and self._resumed >= 0
        self.rest_s = LOOK_S
        """Seconds until the next look."""
        self.num_steps = 0
        """Steps that were judged."""

    @property
    def is_ended(self) -> bool:
        """Nothing more will come: standard input has ended."""
        return self._folder.is_ended

    @property
    def is_pipe(self) -> bool:
        """Standard input is watched: it tells itself when it ends."""
        return _is_pipe(self.path)

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
        return self._judge.verdict

    def look(self, *, is_end: bool = False) -> None:
        """Read what is new, and hand over the steps that are complete.

        Args:
            is_end: Nothing more will be written.
        """
        started = time.thread_time()  # a busy machine is no reason to look less often
        changes = self._folder.look(is_end=is_end or self._folder.is_ended)
        took = time.thread_time() - started
        self._say_where(changes)
        self._take_results()
        can_write = self._can_write()
        if can_write:
            self._take_back(changes)
        may_hand = can_write and not (changes.is_reading and self._is_behind)
        self._hand(changes, is_end=is_end or self._folder.is_ended, may_hand=may_hand)
        self._is_behind &= changes.is_behind or changes.is_reading or self._has_more
        if not self._is_behind:
            self._say_what()
        if can_write:
            if not (self._is_behind or self._was_asked_to_catch_up):
                self._was_asked_to_catch_up = True
                self._judge.catch_up()
            self._save(is_end=is_end)
        self._take_results()
        self.rest_s = min(MAX_LOOK_S, max(LOOK_S, took / SHARE))
        if changes.is_new or self._is_waiting:
            self.rest_s = LOOK_S
        if changes.is_behind:
            self.rest_s = 0.0
        elif self._has_more:
            self.rest_s = LOOK_S / 10

    def wait(self) -> None:
        """Until what was handed over is judged and on the disk."""
        self._judge.wait()
        self._take_results()

    def close(self, status: str = "finished") -> None:
        """End the watch; the run stays. Raises nothing for what the disk does: it is said."""
        self.wait()
        left = self._sources().waiting(self.last_step)
        if left:
            steps = f"step {left[0]}" if len(left) == 1 else f"steps {left[0]} to {left[-1]}"
            if self._has_more:
                self._say(f"{steps} were not judged yet: the next watch does so")
            else:
                self._say(f"{steps} may not be written to the end: not judged")
        late = self._folder.rollouts.num_late
        if late:
            self._say(
                f"{counted(late, 'episode')} came after their step was judged, and "
                f"{'is' if late == 1 else 'are'} not stored"
            )
        for name, num_samples in self._folder.unfinished():
            if num_samples:
                self._say(
                    f"{name}: its last validation has only {counted(num_samples, 'sample')} so "
                    "far: not judged"
                )
        for reason, times in self._folder.rollouts.refused.most_common(5):
            self._say(f"{counted(times, 'row')} were left out: {reason}")
        verdict = self.verdict()
        self._notifier.close(status, (lambda: verdict) if self._keeper.is_open else None)
        if self._broken_at is None:
            self._save(is_end=True)
        self._judge.end()
        self._take_results()
        try:
            self._keeper.close(status)
        except StoreError as error:
            self._say(f"the run could not be ended: {error}")
        self._folder.close()

    def abandon(self) -> None:
        """The program ends now: nothing is judged or said any more."""
        self._folder.abandon()

    # --- steps

    def _sources(self, changes: Changes | None = None) -> Sources:
        folder, changes = self._folder, changes or Changes()
        silent = [n for n in folder.numbers.values() if n.window.newest < 0 and n.is_open]
        return Sources(
            numbers=folder.numbers,
            rollouts=folder.rollouts,
            is_behind=changes.is_behind,
            is_unopened=changes.is_unopened,
            num_silent=len(silent),
        )

    def _say_what(self) -> None:
        """Once, where nothing can be followed yet: what is waited for, and what lies there."""
        if self._said_what or self._folder.has_any or not self._folder.is_there:
            return
        self._said_what = True
        unread = self._folder.unread()
        words = f"{_shown(self.path)}: nothing to follow yet"
        if unread:
            named = "; ".join(f"{name}: {reason}" for name, reason in unread[:MAX_NAMED])
            more = len(unread) - MAX_NAMED
            words += f" in {counted(len(unread), 'file')} ({named}{f'; {more} more' * (more > 0)})"
        self._say(f"{words}. Waiting for {self._folder.awaited}.")

    def _say_where(self, changes: Changes) -> None:
        if not self._folder.is_there and not self._said_waiting:
            self._said_waiting = True
            self._say(f"{_shown(self.path)} is not there yet: waiting for it")
        elif self._folder.is_there and self._said_waiting and changes.is_new:
            self._said_waiting = False
            self._say(f"{_shown(self.path)} is there")

    def _take_back(self, changes: Changes) -> None:
        """What the trainer does again, and numbers and episodes of steps that were judged without
        them."""
        if changes.repeated:
            first = min(changes.repeated.values())
            self._folder.forget(first, but=changes.repeated.keys())
            if first <= self._handed:
                self._say(f"the trainer began again at step {first}: steps from there are replaced")
                self._rewind(first)
            return
        rollouts = self._folder.rollouts
        episodes = self._late_episodes(changes)
        late = {step for step in changes.late | self._new_tellers() if step <= self._handed}
        if late and not self._can_judge_again(min(late)):
            first = min(late)
            num_steps = self._handed - first
            self._say(f"numbers of step {first} came {num_steps} steps late: left out")
            for step in late & self._included.keys():
                self._included[step] |= self._sources().of_step(step)
            late = set()
        if not (late or episodes):
            return
        first = min(late | episodes.keys())
        for step, num in episodes.items():
            self._say(
                f"{counted(num, 'episode')} of step {step} came after step {step} was judged: "
                f"judged again from there"
            )
            rollouts.take_late(step)
        if late and min(late) not in episodes:
            self._say(f"numbers of step {min(late)} came late: judged again from there")
        self._late_at = changes.at
        rollouts.take_back(first)
        self._rewind(first)

    def _late_episodes(self, changes: Changes) -> dict[int, int]:
        """Judged step -> how many of its episodes came later and can be added to it now."""
        rollouts, waits = self._folder.rollouts, self._waits
        for step, num in list(rollouts.late.items()):
            if not self._can_judge_again(step):
                rollouts.leave_late(step)
                self._say(
                    f"{counted(num, 'episode')} of step {step} came after step {step} was judged, "
                    f"{self._handed - step} steps late: not stored"
                )
        is_quiet = changes.at - rollouts.changed_at >= waits.line_quiet_s
        is_rested = changes.at - self._late_at >= waits.quiet_s
        self._say_stragglers(is_quiet=is_quiet)
        return dict(rollouts.late) if is_quiet and is_rested else {}

    def _say_stragglers(self, *, is_quiet: bool) -> None:
        """Once: episodes that are not stored, because they are few and come behind later steps."""
        stragglers = self._folder.rollouts.stragglers
        if stragglers and is_quiet and not self._said_stragglers:
            self._said_stragglers = True
            step, num = min(stragglers.items())
            self._say(
                f"{counted(num, 'episode')} of step {step} came after step {step} was judged: not "
                "stored. The end says how many there are of all steps"
            )

    def _can_judge_again(self, first: int) -> bool:
        """Whether all that the steps from `first` on were judged by is still known."""
        kept = range(first, self._handed + 1)
        return len(kept) <= KEPT_STEPS and all(map(self._folder.rollouts.is_known, kept))

    def _new_tellers(self) -> set[int]:
        """Judged steps that a growing file tells of which was silent then."""
        out = set()
        for name, numbers in self._folder.numbers.items():
            if numbers.text is not None:
                steps = (s for s, names in self._included.items() if name not in names)
                out |= {s for s in steps if s in numbers.window and s > self._resumed}
        return out

    def _rewind(self, first: int) -> None:
        self._judge.take_back(first)
        self._included = {s: names for s, names in self._included.items() if s < first}
        self._shown = {s: names for s, names in self._shown.items() if s < first}
        self._handed = max(self._included, default=first - 1)
        self._newest_shown = min(self._newest_shown, first - 1)
        self._settled = min(self._settled, self._handed)
        self._resumed = min(self._resumed, self._handed)

    def _hand(self, changes: Changes, *, is_end: bool, may_hand: bool) -> None:
        """Hand over the complete steps, and tell of those that must wait."""
        now = changes.at
        sources = self._sources(changes)
        pace = pace_of(self._times)
        usual: set[str] = self._included.get(self._handed, set())
        complete: list[int] = []
        waiting = sources.waiting(self._handed)
        for step in waiting:
            is_ended = is_end and self._folder.is_ended
            if not is_ended and not sources.is_complete(step, usual, self._waits, now, pace):
                break
            complete.append(step)
            usual = sources.of_step(step)
        self._is_waiting = len(waiting) > len(complete)
        num_free = self._judge.num_free if may_hand else 0
        self._has_more = may_hand and len(complete) > num_free
        complete = complete[:num_free]
        later = (step for step in waiting[len(complete) :] if step > self._newest_shown)
        read = list(itertools.takewhile(lambda s: sources.is_read(s, self._waits, now), later))
        numbers = self._numbers(sources, [*complete, *read])
        for step in complete:
            self._hand_step(step, numbers[step], sources.of_step(step))
        for step in read:
            self._show(step, numbers[step])
        if complete:
            self._folder.settled(self._handed)
            self._settled = self._handed

    def _numbers(self, sources: Sources, steps: Sequence[int]) -> dict[int, dict[str, float]]:
        out: dict[int, dict[str, float]] = {step: {} for step in steps}
        for source in sources.numbers.values() if steps else ():
            for step, values in source.window.named(steps).items():
                out[step] |= values
        return out

    def _show(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._newest_shown:
            self._newest_shown, self._shown[step] = step, set(values)
            self._on_step(step, values)

    def _hand_step(self, step: int, numbers: Mapping[str, float], told: set[str]) -> None:
        rollouts = self._folder.rollouts
        wall_time = self._began_at if self._is_behind else time.time()
        whole = whole_step(
            self.run_path.name,
            step,
            numbers,
            rollouts.drafts(step) if ROLLOUTS in told else (),
            rollouts.signature(step),
            wall_time,
            self._folder.namer,
        )
        for why, times in whole.content.refused.items():
            self._say(f"step {step}: {times} episodes were not taken: {why}")
        self._show(step, whole.values)
        self._judge.hand(whole, trainer=rollouts.trainer, is_past=self._is_behind)
        rollouts.written(step)
        self._handed = step
        self._included[step] = told
        if len(self._included) > 2 * KEPT_STEPS:
            newest = sorted(self._included)[-KEPT_STEPS:]
            self._included = {s: self._included[s] for s in newest}
        self._times = [*self._times[-64:], wall_time]
        self._is_dirty = True

    # --- what was judged

    def _take_results(self) -> None:
        while not self._said.empty():
            self._say(self._said.get())
        for result in self._judge.results():
            match result:
                case Judged():
                    self._take_judged(result)
                case TakenBack(first, last_step):
                    self._open = {rule: a for rule, a in self._open.items() if a.step < first}
                    self.last_step = last_step
                case CaughtUp(verdict):
                    self._tell(self._open.values(), verdict)
                case Failed(error):
                    self._take_failed(error)
                case Mended(last_step):
                    self._take_mended(last_step)

    def _take_judged(self, judged: Judged) -> None:
        self.last_step = judged.step
        self.num_steps += 1
        told_of = self._shown.pop(judged.step, set())
        more = {key: value for key, value in judged.values.items() if key not in told_of}
        self._on_judged(judged.step, more, judged.verdict)
        for alarm in judged.alarms:
            if alarm.state is AlarmState.RAISED:
                self._open[alarm.rule] = alarm
            else:
                self._open.pop(alarm.rule, None)
        if not judged.is_past:
            raised = [alarm for alarm in judged.alarms if alarm.state is AlarmState.RAISED]
            self._tell(raised, judged.verdict)

    def _tell(self, alarms: Iterable[Alarm], verdict: Verdict) -> None:
        """Tell people of what is raised, each alarm once, whatever is read again."""
        new = [a for a in alarms if (a.rule, a.step) not in self._told]
        if not new:
            return
        self._told |= {(alarm.rule, alarm.step) for alarm in new}
        self._is_dirty = True
        self._notifier.observe(new, lambda: verdict)
        self._on_alarms(new, verdict)

    # --- the disk

    def _can_write(self) -> bool:
        """Whether the run can be written; where it could not, that is tried from time to time."""
        if self._broken_at is None:
            return True
        if time.monotonic() - self._broken_at >= _TRY_AGAIN_S:
            self._broken_at = time.monotonic()
            self._judge.mend()
        return False

    def _take_failed(self, error: StoreError) -> None:
        if self._broken_at is None:
            self._say(f"{error}; it is tried again every {_TRY_AGAIN_S:.0f} s")
        self._broken_at = time.monotonic()
        self._was_asked_to_catch_up = False

    def _take_mended(self, last_step: int) -> None:
        """Steps that were handed over in vain are handed over once more."""
        self._broken_at = None
        self.last_step = self._handed = last_step
        self._folder.rollouts.take_back(last_step + 1)
        self._included = {s: names for s, names in self._included.items() if s <= last_step}
        self._say(f"the run can be written again: it goes on after step {last_step}")

    def _save(self, *, is_end: bool) -> None:
        """Keep how far the files were read, once the steps from there are on the disk."""
        now = time.monotonic()
        is_early = now - self._saved_at < max(_STATE_S, self._save_took_s / SHARE)
        if not self._is_dirty or (is_early and not is_end) or self._handed < self._settled:
            return
        self._saved_at, self._is_dirty = now, False
        state = {"files": self._folder.state(), "told": sorted(self._told)[-1000:]}
        self._save_took_s = time.monotonic() - now
        path = self.run_path / STATE_NAME
        self._judge.after(lambda: _write_state(path, state))


def _write_state(path: Path, state: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(state), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def _read_state(run_path: Path) -> dict[str, Any]:
    """What an earlier watch has kept; nothing where it cannot be read: files are read again."""
    try:
        state = json.loads((run_path / STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def _is_pipe(path: Path) -> bool:
    return str(path) == "-"


def _shown(path: Path) -> str:
    if is_address(path):
        return str(path)
    return "standard input" if _is_pipe(path) else str(path.absolute())
