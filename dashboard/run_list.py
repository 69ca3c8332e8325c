"""Every run under the root, read lightly: `run.json` and the end of the journal, no database.

A row is read again only when one of its files changed, so that a list of ten thousand runs costs a
few `stat` calls a run.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..store.annotations import read_annotations
from ..store.durable import is_locked, read_json_object
from ..store.errors import StoreError
from ..store.journal import Record, decode_line
from ..store.layout import Layout
from ..store.schema import check_version
from .problems import Problem

_TAIL_BYTES = 65_536
_MAX_TAIL_BYTES = 16_777_216
_HEADER_BYTES = 1_048_576
MAX_NAME = 255

Mark = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as the list shows it. Texts come from files: hostile."""

    run_id: str
    """Name of the folder under the root: what the URL says."""
    path: Path
    name: str = ""
    project: str = ""
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
    base_model: str = ""
    parent_run_id: str | None = None
    success_rate: float | None = None
    """Of the last acknowledged step."""
    tags: tuple[str, ...] = ()
    """Of the configuration, and those that people gave."""
    note: str = ""
    is_pinned: bool = False
    problem: str = ""
    """Why it cannot be opened; empty for a run that can."""

    @property
    def is_live(self) -> bool:
        return self.status == "running"

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """Whether any text of the row matches."""
        texts = (self.run_id, self.name, self.project, self.status, self.algorithm, self.note)
        return any(pattern.search(t) for t in (*texts, *self.environments, *self.tags))


@dataclass(slots=True)
class _Known:
    mark: Mark
    row: RunRow
    is_closed: bool


@dataclass(slots=True)
class RunList:
    """The rows of one root. May be used from several threads."""

    root: Path
    others: list[str] = field(default_factory=list)
    """Folders that are no runs, as of the last `rows`."""
    _known: dict[str, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self) -> list[RunRow]:
        """All runs: pinned ones, then the newest.

        Raises:
            Problem: the root cannot be listed.
        """
        try:
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries if entry.is_dir()]
        except OSError as error:
            raise missing_root(self.root, error) from error
        with self._lock:
            known, self._known = self._known, {}
            rows = [row for name in names if (row := self._row(name, known)) is not None]
            self.others = sorted(set(names) - {row.run_id for row in rows})
        return sorted(rows, key=lambda row: (not row.is_pinned, -row.created_at, row.run_id))

    def _row(self, name: str, known: Mapping[str, _Known]) -> RunRow | None:
        layout = Layout(self.root / name)
        try:
            mark = _mark(layout)
        except OSError:
            return None  # no run, or removed a moment ago
        found = known.get(name)
        if found is None or found.mark != mark:
            found = _read(layout, name, mark)
        self._known[name] = found
        if found.is_closed or found.row.problem:
            return found.row
        status = "running" if is_locked(layout.writer_lock) else "crashed"
        return replace(found.row, status=status)


def missing_root(root: Path, error: OSError) -> Problem:
    """The root itself cannot be read."""
    return Problem(
        f"{root}: {error.strerror or error}",
        f"Make a first run with: echoscope demo --root {root}",
    )


def run_path(root: Path, run_id: str) -> Path:
    """The folder of a run that a browser named.

    Raises:
        Problem: not the name of a folder directly under the root, or a link that leads out of it.
    """
    is_name = 0 < len(run_id) <= MAX_NAME and run_id not in (".", "..")
    if not is_name or any(c in run_id for c in "/\\\0") or not run_id.isprintable():
        raise Problem(
            f"{run_id[:80]!r} is not the name of a run",
            "A run is named by its folder under the root. Choose one on the page Runs.",
        )
    path = root / run_id
    home = root.resolve()
    if path.resolve().parent != home:
        raise Problem(
            f"{run_id!r} is a link that leads out of {root}",
            "Start the dashboard on the folder that holds it.",
        )
    if not Layout(path).run_json.is_file():
        raise Problem(
            f"there is no run {run_id!r} under {root}",
            "It may have been removed or renamed. Choose another one on the page Runs.",
        )
    return path


def _mark(layout: Layout) -> Mark:
    """Changes when something was acknowledged or noted. Raises OSError where there is no run."""
    run = os.stat(layout.run_json)
    notes, journal = _stat(layout.annotations), _stat(layout.journal)
    return (
        run.st_ino,
        run.st_mtime_ns,
        *((notes.st_mtime_ns, notes.st_size) if notes else (0, 0)),
        *((journal.st_ino, journal.st_size, int(journal.st_mtime)) if journal else (0, 0, 0)),
    )


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _read(layout: Layout, name: str, mark: Mark) -> _Known:
    row = RunRow(run_id=name, path=layout.root)
    try:
        run_path(layout.root.parent, name)
        run = read_json_object(layout.run_json)
        check_version(run.get("schema_version"), name)
        row = _with_notes(_of_run(row, run))
        header, tail = _ends(layout)
    except (StoreError, Problem) as error:
        return _Known(mark, replace(row, problem=_words(error, layout.root)), True)
    state = _state([*header, *tail])
    closed = state.pop("is_closed")
    updated = float(mark[-1]) if mark[-1] else row.created_at
    return _Known(mark, replace(row, updated_at=updated, **state), closed)


def _with_notes(row: RunRow) -> RunRow:
    found = read_annotations(row.path)
    tags = tuple(dict.fromkeys((*row.tags, *found.tags)))
    return replace(row, tags=tags, note=found.note, is_pinned=found.is_pinned)


def _words(error: Exception, root: Path) -> str:
    text = error.text if isinstance(error, Problem) else str(error)
    return text.replace(f"{root}/", "").replace(str(root), root.name)


def _of_run(row: RunRow, run: Mapping[str, Any]) -> RunRow:
    config = run.get("config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            config = None
    config = config if isinstance(config, dict) else {}
    created = run.get("created_at")
    steps = config.get("steps")
    tags = run.get("tags")
    return replace(
        row,
        name=_text(run.get("name")),
        project=_text(run.get("project")),
        created_at=float(created) if isinstance(created, int | float) else 0.0,
        base_model=_text(run.get("base_model")),
        parent_run_id=run["parent_run_id"] if isinstance(run.get("parent_run_id"), str) else None,
        tags=tuple(t for t in tags if isinstance(t, str)) if isinstance(tags, list) else (),
        num_steps=steps if isinstance(steps, int) else None,
        environments=_environments(config),
        algorithm=algorithm_of(config),
    )


def _text(value: object) -> str:
    return value[:MAX_NAME] if isinstance(value, str) else ""


def _entry(config: Mapping[str, Any], *path: str) -> Any:
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _environments(config: Mapping[str, Any]) -> tuple[str, ...]:
    groups = _entry(config, "envs", "train")
    found = [_text(_entry(g, "env")) for g in groups] if isinstance(groups, list) else []
    return tuple(dict.fromkeys(name for name in found if name))


def algorithm_of(config: Mapping[str, Any]) -> str:
    """How a configuration's update is called: kind of advantage, and of loss unless it clips."""
    advantage, loss = (_text(_entry(config, part, "kind")) for part in ("advantage", "loss"))
    return f"{advantage} + {loss}" if advantage and loss not in ("", "clip") else advantage


def _ends(layout: Layout) -> tuple[list[Record], list[Record]]:
    """The header of the live piece of the journal, and its last records up to a step's.

    Raises:
        StoreError: unreadable, or its header is damaged.
    """
    try:
        with layout.journal.open("rb") as file:
            first = file.readline(_HEADER_BYTES)
            header = decode_line(first)
            if header is None or header["kind"] != "journal":
                raise StoreError(f"{layout.journal}: the journal has lost its first record")
            check_version(header.get("schema"), layout.root.name)
            size = file.seek(0, os.SEEK_END)
            length = _TAIL_BYTES
            while True:
                start = max(len(first), size - length)
                file.seek(start)
                lines = file.read(size - start).split(b"\n")[:-1]
                tail = _last_records(lines if start == len(first) else lines[1:])
                is_all = start == len(first) or length >= _MAX_TAIL_BYTES
                if is_all or any(r["kind"] in ("step", "rewind") for r in tail):
                    return [header], tail
                length *= 8
    except FileNotFoundError:
        return [], []  # between two pieces
    except OSError as error:
        raise StoreError(f"{layout.journal}: {error.strerror or error}") from error


def _last_records(lines: list[bytes]) -> list[Record]:
    """Records from the last step or rewind on, in order; damaged ones are left out."""
    found: list[Record] = []
    for line in reversed(lines):
        record = decode_line(line + b"\n")
        if record is None:
            continue
        found.append(record)
        if record["kind"] in ("step", "rewind"):
            break
    return found[::-1]


def _state(records: list[Record]) -> dict[str, Any]:
    """Columns of the row that the journal tells."""
    out: dict[str, Any] = {"status": "", "is_closed": False, "ended_at": None}
    for record in records:
        kind = record["kind"]
        if kind in ("journal", "close"):
            status = record.get("status")
            ended = record.get("ended_at" if kind == "journal" else "wall_time")
            out["status"] = status if isinstance(status, str) else ""
            out["is_closed"] = bool(out["status"])
            out["ended_at"] = float(ended) if isinstance(ended, int | float) else None
        if kind == "rewind":
            out |= {"status": "", "is_closed": False, "ended_at": None}
        step = record.get({"journal": "last_step", "step": "step", "rewind": "from_step"}.get(kind))
        if isinstance(step, int):
            out["last_step"] = step
        if kind == "step":
            rows = record.get("steps")
            rate = rows[0].get("success_rate") if isinstance(rows, list) and rows else None
            out["success_rate"] = rate if isinstance(rate, float) else None
    return out
