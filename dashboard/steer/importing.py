"""Imports started from a page: each is `echoscope import` as a process of its own.

So no page waits for one. An import goes on when the dashboard ends, and one that was killed goes on
where it stopped. Only sources that the dashboard found itself are imported: a browser names none.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from echoscope.store.log.layout import run_name
from echoscope.store.query.listing import RunRow
from echoscope.store.steer.steering import SteeringError
from echoscope.text.progress_lines import LINES, PROGRESS_VARIABLE, read_progress

from ..data.foreign import ForeignSource
from .branching import last_lines, start_apart

MAX_LIVE = 2
"""Imports of one dashboard at once."""
_UNFIT = re.compile(r"[^A-Za-z0-9._]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """How an import stands. Texts come from files: hostile."""

    is_done: bool
    problem: str = ""
    """Why it failed, one sentence; empty while all is well."""
    sentences: tuple[str, ...] = ()
    """What it did, once it has ended."""
    stage: str = ""
    share: float | None = None
    """How much of the stage is done, from 0 to 1; None where that is not known."""


@dataclass(slots=True, kw_only=True, eq=False)
class Import:
    """A process that was started."""

    run_id: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    """What it printed."""
    errors: IO[bytes]

    def report(self) -> ImportProgress:
        """How it stands now."""
        status = self.process.poll()  # first: what it wrote last is then read
        lines = last_lines(self.errors)
        if status is None:
            stage, share = read_progress(lines) or ("starting", None)
            return ImportProgress(is_done=False, stage=stage, share=share)
        if status == 0:  # its last sentence says what to type next
            return ImportProgress(is_done=True, sentences=tuple(last_lines(self.output)[:-1]))
        messages = [line for line in lines if read_progress([line]) is None]
        problem = messages[-1].removeprefix("error: ") if messages else f"exit code {status}"
        if status < 0:
            problem = "the import was stopped. Click Import to continue where it stopped."
        return ImportProgress(is_done=True, problem=problem[:2_000])

    def stop(self) -> None:
        """End it; importing the source again goes on."""
        if self.process.poll() is None:
            self.process.terminate()


_imports: dict[Path, Import] = {}
"""The newest of each source."""
_lock = threading.Lock()


def import_of(source: ForeignSource) -> Import | None:
    """The import of a source that this dashboard started last."""
    return _imports.get(source.path)


def is_importing() -> bool:
    """Whether an import that was started here goes on."""
    return any(begun.process.poll() is None for begun in list(_imports.values()))


def run_of(source: ForeignSource, rows: Iterable[RunRow]) -> RunRow | None:
    """The run that was made of a source; the newest if there are several."""
    path = source.path.resolve()
    return next((row for row in rows if row.source and Path(row.source).resolve() == path), None)


def new_name(source: ForeignSource, root: Path) -> str:
    """The folder under the root for the run of a source: named after it, and not there yet.

    >>> new_name(ForeignSource(path=Path("/data/my run.jsonl")), Path("/nowhere"))
    'my-run'
    """
    name = _UNFIT.sub("-", run_name(source.path)).strip("-.")[:100] or "run"
    if not (root / name).exists():
        return name
    names = (f"{name}-imported{'' if number < 2 else f'-{number}'}" for number in range(1, 10_000))
    return next(free for free in names if not (root / free).exists())


def start(source: ForeignSource, run_id: str, root: Path) -> Import:
    """Import a source into a run under the root, or add what is new in it.

    Raises:
        SteeringError: too many are going on, or the system refuses.
    """
    with _lock:
        old = _imports.get(source.path)
        if old is not None and old.process.poll() is None:
            return old
        if sum(begun.process.poll() is None for begun in _imports.values()) >= MAX_LIVE:
            raise SteeringError(f"{MAX_LIVE} imports are going on; wait until one has ended")
        output, errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 -- kept
        target = f"--output={(root / run_id).absolute()}"
        command = ["import", target, "--", str(source.path.absolute())]
        try:
            root.mkdir(parents=True, exist_ok=True)
            process = start_apart(command, output, errors, {PROGRESS_VARIABLE: LINES})
        except (OSError, ValueError) as error:
            raise SteeringError(f"the import was not started: {error}") from error
        begun = Import(run_id=run_id, process=process, output=output, errors=errors)
        _imports[source.path] = begun
    return begun
