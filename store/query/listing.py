"""Every run under a root, read lightly: `run.json` and the end of the journal, no database.

A row is read again only when one of its files changed, so that a list of ten thousand runs costs a
few `stat` calls a run. Who cannot wait for the first reading gets the newest runs first, and of the
others what their folders tell. `details_of` reads more of a single run, for the rows in sight.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from echoscope.text.strict_json import value_at

from ..errors import NotARunError, StoreError
from ..log.durable import open_regular, stat_of
from ..log.index import RunIndex, VisibleFile, read_run_json
from ..log.journal import JournalState, Record, decode_line
from ..log.layout import Layout
from ..log.remote.pulling import is_held
from ..reader import CommandState, command_states, is_starting
from ..status import RUNNING, Origin, RunStatus, origin_of, pace_of, status_of, trainer_name
from ..steer.annotations import read_annotations
from ..steer.commands import MailFolder
from .alarms import attention, raised_now
from .rows import alarm_from_row

_TAIL_BYTES = 65_536
_MAX_TAIL_BYTES = 16_777_216
_HEADER_BYTES = 1_048_576
MAX_NAME = 255

LARGE = 1_000
"""Runs from which on rows are used again for `KEPT_S`: a page asks several times."""
KEPT_S = 2.0
MAX_POINTS = 60
"""Of a spark line."""
MAX_PACKS = 40
"""That a spark line opens; of more, some are left out evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVersion:
    """Changes when something was acknowledged or noted."""

    created_ns: int
    updated: float
    rest: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as the list shows it. Texts come from files: hostile."""

    run_id: str
    """Name of the folder under the root: what the URL says."""
    path: Path
    name: str = ""
    status: str = ""
    """running, finished, stopped, failed, interrupted or crashed; empty with a problem."""
    created_at: float = 0.0
    """Seconds since the epoch; 0 where it is not known."""
    ended_at: float | None = None
    updated_at: float = 0.0
    """When something was last acknowledged."""
    last_step: int = -1
    """-1 before the first acknowledged step."""
    num_steps: int | None = None
    """How many were planned at the start."""
    environments: tuple[str, ...] = ()
    algorithm: str = ""
    origin: Origin = Origin.TRAINED
    trainer: str = ""
    """Of a run that another trainer made: its name, where that is known."""
    source: str = ""
    """Of an imported run: the path of the files that it was made of."""
    base_model: str = ""
    parent_run_id: str | None = None
    """The run that it branched from."""
    branched_at: int | None = None
    """The step of its parent that it went on from."""
    success_rate: float | None = None
    """Of the last acknowledged step."""
    tags: tuple[str, ...] = ()
    """Of the configuration, and those that people gave."""
    noted_tags: tuple[str, ...] = ()
    """Those that people gave, and may take off again."""
    note: str = ""
    is_pinned: bool = False
    problem: str = ""
    """Why it cannot be opened; empty for a run that can."""
    is_read: bool = True
    """False of a run of which only the folder is known so far."""

    @property
    def is_live(self) -> bool:
        return self.status == RUNNING

    @property
    def texts(self) -> tuple[str, ...]:
        """What a filter of runs looks at."""
        texts = (self.run_id, self.name, self.status, self.algorithm, self.trainer)
        return (*texts, self.note, *self.environments, *self.tags)


@dataclass(slots=True)
class _Entry:
    mark: RunVersion | None
    """None of a run that was never read."""
    row: RunRow
    is_closed: bool


@dataclass(slots=True)
class RunList:
    """The rows of one root. May be used from several threads."""

    root: Path
    others: list[str] = field(default_factory=list)
    """Folders that are no runs, and files, as of the last `rows`."""
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _due: dict[str, RunVersion] = field(default_factory=dict)
    """Runs to be read, the newest last, and what they changed to."""
    _num_being_read: int = 0
    _rows: tuple[RunRow, ...] | None = None
    _kept_until: float = 0.0
    _lock: threading.Condition = field(default_factory=threading.Condition)

    def rows(self, most: int | None = None) -> list[RunRow]:
        """All runs: pinned ones, then the newest.

        Args:
            most: Runs to read at most now, the newest first; None for all. Rows of the others have
                `is_read=False`, or are as they were before they moved.

        Raises:
            StoreError: the root cannot be listed.
        """
        with self._lock:
            if time.monotonic() >= self._kept_until:
                self._look()
        num_read = 0
        while (most is None or num_read < most) and self._read_next():
            num_read += 1
        with self._lock:
            self._lock.wait_for(lambda: not self._num_being_read or self._due)
            if self._rows is None:
                self._rows = tuple(sorted(map(_row_now, self._entries.values()), key=_in_order))
            return list(self._rows)

    def look_again(self) -> None:
        """The next answer is read anew: something was noted about a run."""
        with self._lock:
            self._kept_until = 0.0

    def _look(self) -> None:
        """See which runs there are, and which of them have moved."""
        try:
            with os.scandir(self.root) as entries:
                folders, files = [], []
                for entry in entries:
                    if entry.is_dir():
                        folders.append(entry.name)
                    elif not entry.name.startswith("."):
                        files.append(entry.name)
        except OSError as error:
            raise StoreError(f"{self.root}: {error.strerror or error}") from error
        before, self._entries, others = self._entries, {}, files
        due = []
        for name in folders:
            if name.startswith("."):
                continue  # a run that is being started
            mark = _mark(f"{self.root}/{name}")
            if mark is None:
                others.append(name)
                continue
            run = before.get(name) or _unread(self.root / name, mark)
            self._entries[name] = run
            if run.mark != mark:
                due.append((mark.created_ns, name, mark))
        self._due = {name: mark for _, name, mark in sorted(due)}
        self.others = sorted(others)
        self._rows = None
        is_large = len(self._entries) >= LARGE
        self._kept_until = time.monotonic() + KEPT_S if is_large else 0.0

    def _read_next(self) -> bool:
        """Read the newest run that is due; False where none is."""
        with self._lock:
            if not self._due:
                return False
            name, mark = self._due.popitem()
            self._num_being_read += 1
        entry = None
        try:
            entry = _read(self.root, name, mark)
        finally:
            with self._lock:
                self._num_being_read -= 1
                if entry is not None and name in self._entries:  # it may be gone meanwhile
                    self._entries[name], self._rows = entry, None
                self._lock.notify_all()
        return True


def _unread(folder: Path, mark: RunVersion) -> _Entry:
    row = RunRow(run_id=folder.name, path=folder, created_at=mark.created_ns / 1e9, is_read=False)
    return _Entry(None, row, True)


def _row_now(entry: _Entry) -> RunRow:
    if entry.is_closed or entry.row.problem:
        return entry.row
    is_live = is_held(Layout(entry.row.path))
    return replace(entry.row, status=RUNNING if is_live else "crashed")


def _in_order(row: RunRow) -> tuple[object, ...]:
    """Pinned ones first, then the newest."""
    return not row.is_pinned, -row.created_at, row.run_id


def run_path(root: Path, run_id: str) -> Path:
    """The folder of a run whose name somebody typed or a browser sent: hostile text.

    Raises:
        NotARunError: not the name of a folder directly under the root, a link that leads out of
            it, or a folder that holds no run.
    """
    is_name = 0 < len(run_id.encode("utf-8", "replace")) <= MAX_NAME and run_id not in (".", "..")
    if not is_name or any(c in run_id for c in "/\\\0") or not run_id.isprintable():
        raise NotARunError(
            f"{run_id[:80]!r} is not the name of a run: a run is named by its folder under the root"
        )
    path = root / run_id
    # Only a link can lead out: what has a plain name directly under the root lies in it.
    if path.is_symlink() and path.resolve().parent != root.resolve():
        raise NotARunError(
            f"{run_id!r} is a link that leads out of {root}; open the folder that holds the run"
        )
    if not Layout(path).is_run:
        raise NotARunError(f"there is no run {run_id!r} under {root}")
    return path


def _mark(folder: str) -> RunVersion | None:
    """None where there is no run. Plain text instead of paths: this is done for every run."""
    run = stat_of(f"{folder}/run.json")
    if run is None or not stat.S_ISREG(run.st_mode):
        return None
    notes, journal = stat_of(f"{folder}/annotations.ndjson"), stat_of(f"{folder}/journal.ndjson")
    return RunVersion(
        created_ns=run.st_mtime_ns,
        updated=journal.st_mtime if journal else run.st_mtime,
        rest=(
            run.st_ino,
            *((notes.st_mtime_ns, notes.st_size) if notes else ()),
            *((journal.st_ino, journal.st_size) if journal else ()),
        ),
    )


def _read(root: Path, name: str, mark: RunVersion) -> _Entry:
    layout = Layout(root / name)
    row = RunRow(run_id=name, path=layout.root, created_at=mark.created_ns / 1e9)
    try:
        if layout.root.is_symlink() or not name.isprintable():
            run_path(root, name)
        run = read_run_json(layout)
        row = _of_run(row, run)
        state, success_rate = JournalState(run["run_id"]), None
        for record in _ends(layout):
            state.apply(record)
            if record["kind"] == "step":
                success_rate = record["steps"][0]["success_rate"]
    except StoreError as error:
        # Without the folder that the row names anyway.
        problem = str(error).replace(f"{row.path}/", "").replace(str(row.path), name)
        return _Entry(mark, replace(row, problem=problem), True)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        problem = f"it is damaged ({' '.join(repr(error).split())[:200]})"
        return _Entry(mark, replace(row, problem=problem), True)
    row = replace(
        row,
        updated_at=mark.updated,
        status=state.status or "",
        ended_at=state.ended_at,
        last_step=state.last_step,
        success_rate=success_rate if isinstance(success_rate, float) else None,
    )
    return _Entry(mark, row, state.status is not None)


def _of_run(row: RunRow, run: Mapping[str, Any]) -> RunRow:
    config, notes = dict(json.loads(run["config"])), read_annotations(row.path)
    parent = run["parent_run_id"]
    return replace(
        row,
        name=str(run["name"])[:MAX_NAME],
        created_at=float(run["created_at"]),
        base_model=str(run["base_model"])[:MAX_NAME],
        parent_run_id=None if parent is None else str(parent),
        branched_at=value_at(config, int, "branched_from", "step"),
        tags=tuple(dict.fromkeys((*map(str, run["tags"]), *notes.tags))),
        noted_tags=notes.tags,
        note=notes.note,
        is_pinned=notes.is_pinned,
        num_steps=value_at(config, int, "steps"),
        environments=_environments(config),
        algorithm=algorithm_of(config),
        origin=origin_of(config),
        trainer=trainer_name(config),
        source=(value_at(config, str, "imported", "source") or "").partition("\0")[0][:4_096],
    )


def _environments(config: Mapping[str, Any]) -> tuple[str, ...]:
    groups = value_at(config, list, "envs", "train") or ()
    names = (value_at(group, str, "env") for group in groups)
    return tuple(dict.fromkeys(name[:MAX_NAME] for name in names if name))


def algorithm_of(config: Mapping[str, Any]) -> str:
    """How a configuration's update is called: kind of advantage, and of loss unless it clips.

    The user's own go by the name of their function.
    """
    advantage, loss = (_kind(config, part) for part in ("advantage", "loss"))
    return f"{advantage} + {loss}" if advantage and loss not in ("", "clip") else advantage


def _kind(config: Mapping[str, Any], part: str) -> str:
    kind = value_at(config, str, part, "kind") or ""
    own = value_at(config, str, part, "function") if kind == "custom" else None
    return (own or kind)[:MAX_NAME]


def _ends(layout: Layout) -> list[Record]:
    """The header of the live piece of the journal, and its last records up to a step's.

    Raises:
        StoreError: unreadable, or its header is damaged.
    """
    try:
        with open_regular(layout.journal) as file:
            first = file.readline(_HEADER_BYTES)
            header = decode_line(first)
            if header is None or header["kind"] != "journal":
                raise StoreError(f"{layout.journal}: the journal has lost its first record")
            size = file.seek(0, os.SEEK_END)
            length = _TAIL_BYTES
            while True:
                start = max(len(first), size - length)
                file.seek(start)
                lines = file.read(size - start).split(b"\n")[:-1]
                tail = _last_records(lines if start == len(first) else lines[1:])
                is_all = start == len(first) or length >= _MAX_TAIL_BYTES
                if is_all or any(r["kind"] in ("step", "rewind") for r in tail):
                    return [header, *tail]
                length *= 8
    except FileNotFoundError:
        return []  # between two pieces
    except OSError as error:
        raise StoreError(f"{layout.journal}: {error.strerror or error}") from error


def _last_records(lines: list[bytes]) -> list[Record]:
    """Records from the last step or rewind on, in order; damaged ones are left out."""
    last: list[Record] = []
    for line in reversed(lines):
        record = decode_line(line + b"\n")
        if record is None:
            continue
        last.append(record)
        if record["kind"] in ("step", "rewind"):
            break
    return last[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """Of one run. Texts come from files: hostile."""

    success: tuple[float, ...] = ()
    """Success rate over the run, at most MAX_POINTS values; empty where it is not defined."""
    alarm_rule: str = ""
    """The worst alarm that is open; empty for none."""
    commands: tuple[CommandState, ...] = ()
    is_starting: bool = False
    """The current attempt has no step yet."""
    attempt: int = 1
    step_s: float = math.nan
    """Usual seconds a step, where it is not packed away yet."""
    has_text: bool = False
    """It measures its text, so that a verdict takes a moment only."""


def details_of(row: RunRow, index: RunIndex | None = None) -> RunDetails:
    """What a list shows of a run besides its row.

    Args:
        index: Of the run, where it has just been read.

    Raises:
        StoreError: the run cannot be read.
    """
    index = index or RunIndex(row.path)
    success = _success_rates(index)
    alarms = sorted(map(alarm_from_row, index.event_rows("alarms")), key=attrgetter("step"))
    worst = min(raised_now(alarms), key=attention, default=None)
    commands = index.event_rows("commands") + MailFolder(row.path, index.run_id).rows()
    answers = sorted(index.event_rows("command_events"), key=itemgetter("attempt", "sequence"))
    keys = {key for (key,) in index.events.columns("metrics", "key")}
    return RunDetails(
        success=_thinned(success),
        alarm_rule="" if worst is None else worst.rule,
        commands=tuple(command_states(commands, answers)),
        is_starting=is_starting(index),
        attempt=index.state.attempt,
        step_s=_step_s(index),
        has_text=any(key.startswith(("text/", "info/")) for key in keys),
    )


def _success_rates(index: RunIndex) -> list[float]:
    """Success by step; the latest attempt of each."""
    columns = ["step", "attempt", "success_rate"]
    rows = [*index.events.columns("steps", *columns)]
    for file in _some(index.files("steps")):
        table = index.whole_rows(file, columns)
        rows += zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    ordered = sorted(rows, key=itemgetter(0, 1))
    return [*{step: rate for step, _, rate in ordered if rate is not None}.values()]


def _some(files: Sequence[VisibleFile]) -> Sequence[VisibleFile]:
    return files[:: -(-len(files) // MAX_PACKS)] if len(files) > MAX_PACKS else files


def _thinned(values: Sequence[float]) -> tuple[float, ...]:
    """Means of equal ranges, where there are more values than a spark line shows."""
    if len(values) <= MAX_POINTS:
        return tuple(values)
    bounds = [round(i * len(values) / MAX_POINTS) for i in range(MAX_POINTS + 1)]
    parts = [values[a:b] for a, b in itertools.pairwise(bounds)]
    return tuple(sum(part) / len(part) for part in parts)


def row_status(row: RunRow, details: RunDetails, now: float) -> RunStatus:
    """How the run of a row stands now."""
    return status_of(
        row.status,
        details.attempt,
        details.commands,
        is_starting=details.is_starting,
        heard_at=row.updated_at,
        step_s=details.step_s,
        now=now,
        origin=row.origin,
    )


def _step_s(index: RunIndex) -> float:
    rows = index.events.columns("steps", "attempt", "wall_time")
    return pace_of(sorted(time for attempt, time in rows if attempt == index.state.attempt))
