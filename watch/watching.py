"""Follow what another trainer writes, step by step, as a run that is judged while it grows.

    watch = Watch(Path("outputs"), Path("runs/outputs"))
    while not is_enough:
        watch.look()
        time.sleep(watch.rest_s)
    watch.close()

A look reads what is new, writes and judges the steps that are complete, and takes steps back that
the trainer has trained again. How far each file was read stands beside the run in `watch.json`, so
that the next watch of the same path goes on from there.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.notify.notifier import Notifier
from echoscope.diagnostics.read.foreign_names import Meaning
from echoscope.diagnostics.read.wandb_address import is_address
from echoscope.store.errors import StoreError
from echoscope.store.records import Alarm, AlarmState
from echoscope.store.status import pace_of
from echoscope.text.amounts import counted

from .address import Address
from .folder import ROLLOUTS, Changes, Folder
from .keeping import Keeper
from .pipe import Pipe
from .rollouts import KEPT_STEPS
from .steps import Sources, Waits

logger = logging.getLogger("echoscope.watch")

LOOK_S = 0.2
"""Between two looks."""
SHARE = 0.02
"""Of a core that looks may take where a folder has very many files: longer rests then."""
STATE_NAME = "watch.json"
_STATE_S = 2.0
_TRY_AGAIN_S = 10.0
OnStep = Callable[[int, Mapping[str, float]], None]
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
        WatchError: the run's folder holds something else.
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
        on_alarms: OnAlarms = lambda alarms, verdict: None,
    ) -> None:
        self.path, self.run_path = path, run_path
        self._settings = settings or DiagnosticsConfig()
        self._waits = waits or Waits()
        self._say, self._on_step, self._on_alarms = on_message, on_step, on_alarms
        self._keeper = Keeper(
            run_path, watched=_shown(path), settings=self._settings, say=on_message
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
        )
        if stored is not None:
            self._folder.stored = stored.values
            self._folder.rollouts.know(stored.episodes)
        self._resumed = self._keeper.last_step
        self._included: dict[int, set[str]] = {}
        """Step -> the sources it was judged by, of the newest steps."""
        self._told: set[tuple[str, int]] = {(str(r), int(s)) for r, s in state.get("told", [])}
        self._open: dict[str, Alarm] = {}
        """Rule -> its alarm that is raised now."""
        self._times: list[float] = []
        self._is_behind = True
        self._began_at = time.time()
        self._said_waiting = False
        self._saved_at = self._save_took_s = 0.0
        self._is_dirty = self._is_waiting = False
        self._broken_at: float | None = None
        self.rest_s = LOOK_S
        """Seconds until the next look."""
        self.num_steps = 0
        """Steps that were judged."""

    @property
    def last_step(self) -> int:
        """The last step that was judged; -1 before the first."""
        return self._keeper.last_step

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
        return self.num_steps + (self._resumed >= 0)

    @property
    def is_behind(self) -> bool:
        """What was there when the watch began was not read to its end yet."""
        return self._is_behind

    @property
    def num_bytes_left(self) -> int:
        """What is left to read of what is there."""
        return self._folder.num_bytes_left

    @property
    def is_open(self) -> bool:
        """Whether there is a run."""
        return self._keeper.is_open

    def verdict(self) -> Verdict:
        """What is known of the run now."""
        return self._keeper.verdict()

    def look(self, *, is_end: bool = False) -> None:
        """Read what is new, and judge the steps that are complete.

        Args:
            is_end: Nothing more will be written.
        """
        started = time.thread_time()  # a busy machine is no reason to look less often
        changes = self._folder.look(is_end=is_end or self._folder.is_ended)
        is_first = self._is_behind
        self._is_behind &= changes.is_behind
        self._say_where(changes)
        try:
            if self._recovered():
                self._take_back(changes)
                self._judge(changes, time.monotonic(), is_end=is_end or self._folder.is_ended)
                if is_first and not self._is_behind:
                    self._tell(self._open.values())
                self._save(is_end=is_end)
        except StoreError as error:
            self._broken(error)
        took = time.thread_time() - started
        self.rest_s = 0.0 if changes.is_behind else max(LOOK_S, (took / SHARE) * (took > 0.01))
        if changes.is_new or self._is_waiting:
            self.rest_s = min(self.rest_s, LOOK_S)

    def close(self, status: str = "finished") -> None:
        """End the watch; the run stays. Raises nothing for what the disk does: it is said."""
        left = self._sources(is_behind=False).waiting(self.last_step)
        if left:
            steps = f"step {left[0]}" if len(left) == 1 else f"steps {left[0]} to {left[-1]}"
            self._say(f"{steps} may not be written to the end: not judged")
        late = self._folder.rollouts.num_late()
        if late:
            self._say(f"{counted(late, 'episode')} came after their step was judged: left out")
        for reason, times in self._folder.rollouts.refused.most_common(5):
            self._say(f"{counted(times, 'row')} were left out: {reason}")
        self._notifier.close(status, self._keeper.verdict if self.is_open else None)
        try:
            if self.is_open:
                self._save(is_end=True)
            self._keeper.close(status)
        except StoreError as error:
            self._say(f"the run could not be ended: {error}")
        self._folder.close()

    # --- steps

    def _sources(self, *, is_behind: bool) -> Sources:
        folder = self._folder
        silent = [n for n in folder.numbers.values() if n.window.newest < 0 and n.is_open]
        return Sources(
            numbers=folder.numbers,
            rollouts=folder.rollouts,
            is_behind=is_behind,
            num_silent=len(silent),
        )

    def _say_where(self, changes: Changes) -> None:
        if not self._folder.is_there and not self._said_waiting:
            self._said_waiting = True
            self._say(f"{_shown(self.path)} is not there yet: waiting for it")
        elif self._folder.is_there and self._said_waiting and changes.is_new:
            self._said_waiting = False
            self._say(f"{_shown(self.path)} is there")

    def _take_back(self, changes: Changes) -> None:
        """What the trainer does again, and numbers of steps that were judged without them."""
        if changes.repeated:
            first = min(changes.repeated.values())
            self._folder.forget(first, but=changes.repeated.keys())
            if first <= self.last_step:
                self._say(f"the trainer began again at step {first}: steps from there are replaced")
                self._rewind(first)
            return
        late = {step for step in changes.late | self._new_tellers() if step <= self.last_step}
        if not late or not self.is_open:
            return
        first = min(late)
        kept = range(first, self.last_step + 1)
        if len(kept) <= KEPT_STEPS and all(map(self._folder.rollouts.is_known, kept)):
            self._say(f"numbers of step {first} came late: judged again from there")
            self._folder.rollouts.take_back(first)
            self._rewind(first)
        else:
            self._say(f"numbers of step {first} came {len(kept) - 1} steps late: left out")
            for step in late & self._included.keys():
                self._included[step] |= self._sources(is_behind=False).of_step(step)

    def _new_tellers(self) -> set[int]:
        """Judged steps that a growing file tells of which was silent then."""
        out = set()
        for name, numbers in self._folder.numbers.items():
            if numbers.text is not None:
                steps = (s for s, names in self._included.items() if name not in names)
                out |= {s for s in steps if s in numbers.window and s > self._resumed}
        return out

    def _rewind(self, first: int) -> None:
        self._keeper.take_back(first)
        self._included = {s: names for s, names in self._included.items() if s < first}
        self._open = {rule: a for rule, a in self._open.items() if a.step < first}
        self._resumed = min(self._resumed, self.last_step)

    def _judge(self, changes: Changes, now: float, *, is_end: bool) -> None:
        sources = self._sources(is_behind=changes.is_behind)
        pace = pace_of(self._times)
        usual: set[str] = self._included.get(self.last_step, set())
        complete: list[int] = []
        waiting = sources.waiting(self.last_step)
        for step in waiting:
            is_ended = is_end and self._folder.is_ended
            if not is_ended and not sources.is_complete(step, usual, self._waits, now, pace):
                break
            complete.append(step)
            usual = sources.of_step(step)
        self._is_waiting = len(waiting) > len(complete)
        if not complete:
            return
        if not self.is_open:
            self._keeper.begin(self._folder.rollouts.trainer)
        numbers: dict[int, dict[str, float]] = {step: {} for step in complete}
        for source in sources.numbers.values():
            for step, values in source.window.named(complete).items():
                numbers[step] |= values
        for step in complete:
            self._commit(step, numbers[step], sources.of_step(step))
        self._keeper.flush()
        self._folder.settled(self.last_step)

    def _commit(self, step: int, numbers: Mapping[str, float], told: set[str]) -> None:
        rollouts = self._folder.rollouts
        wall_time = self._began_at if self._is_behind else time.time()
        alarms, values = self._keeper.commit(
            step,
            numbers,
            rollouts.drafts(step) if ROLLOUTS in told else (),
            rollouts.signature(step),
            wall_time,
        )
        rollouts.written(step)
        self._included[step] = told
        if len(self._included) > 2 * KEPT_STEPS:
            newest = sorted(self._included)[-KEPT_STEPS:]
            self._included = {s: self._included[s] for s in newest}
        self._times = [*self._times[-64:], wall_time]
        self.num_steps += 1
        self._is_dirty = True
        self._on_step(step, values)
        for alarm in alarms:
            if alarm.state is AlarmState.RAISED:
                self._open[alarm.rule] = alarm
            else:
                self._open.pop(alarm.rule, None)
        if not self._is_behind:
            self._tell([alarm for alarm in alarms if alarm.state is AlarmState.RAISED])

    def _tell(self, alarms: Iterable[Alarm]) -> None:
        """Tell people of what is raised, each alarm once, whatever is read again."""
        new = [a for a in alarms if (a.rule, a.step) not in self._told]
        if not new:
            return
        self._told |= {(alarm.rule, alarm.step) for alarm in new}
        self._notifier.observe(new, self._keeper.verdict)
        self._on_alarms(new, self._keeper.verdict())

    # --- the disk

    def _recovered(self) -> bool:
        """Whether the run can be written (again)."""
        if self._broken_at is None:
            return True
        if time.monotonic() - self._broken_at < _TRY_AGAIN_S:
            return False
        self._keeper.take_up()
        self._folder.rollouts.take_back(self.last_step + 1)
        self._broken_at = None
        self._say(f"the run can be written again: it goes on after step {self.last_step}")
        return True

    def _broken(self, error: StoreError) -> None:
        if self._broken_at is None:
            self._say(f"{error}; it is tried again every {_TRY_AGAIN_S:.0f} s")
        self._broken_at = time.monotonic()
        try:
            self._keeper.close("failed")
        except StoreError:
            logger.debug("the run that cannot be written was let go", exc_info=True)

    def _save(self, *, is_end: bool) -> None:
        """Keep how far the files were read, once the steps from there are on the disk."""
        now = time.monotonic()
        is_early = now - self._saved_at < max(_STATE_S, self._save_took_s / SHARE)
        if not self.is_open or not self._is_dirty or (is_early and not is_end):
            return
        self._saved_at, self._is_dirty = now, False
        state = {"files": self._folder.state(), "told": sorted(self._told)[-1000:]}
        path = self.run_path / STATE_NAME
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(state), encoding="utf-8")
            os.replace(temporary, path)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
        self._save_took_s = time.monotonic() - now


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
