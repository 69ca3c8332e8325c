"""Imports started from a page: each is `echoscope import` as a process of its own.

So no page waits for one. An import goes on when the dashboard ends, and one that was killed goes on
where it stopped. Only sources that the dashboard found itself are imported: a browser names none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from echoscope.store.importers.progress_lines import LINES, PROGRESS_VARIABLE, read_progress
from echoscope.store.query.listing import RunRow

from ..data.foreign import Source
from ..web.gate import PASSWORD_VARIABLE

MAX_LIVE = 2
"""Imports of one dashboard at once."""
NICENESS = 5
_TAIL_BYTES = 65_536
MAX_REPORT_BYTES = 64 << 20
_UNFIT = re.compile(r"[^A-Za-z0-9._]+")
_SUFFIXES = (".zst", ".gz", ".bz2", ".xz", ".zip", ".jsonl", ".json", ".parquet", ".eval", ".csv")


class ImportRefusedError(ValueError):
    """An import that cannot be started, with the reason in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """How an import stands. Texts come from files: hostile."""

    is_done: bool
    problem: str = ""
    """Why it failed, one sentence; empty while all is well."""
    sentences: tuple[str, ...] = ()
    """What it did, once it has ended."""
    num_refused: int = 0
    """Files that should hold something and were not taken."""
    num_skipped: int = 0
    """Rows of its other files that were not taken."""
    stage: str = ""
    share: float | None = None
    """How much of the stage is done, from 0 to 1; None where that is not known."""


@dataclass(slots=True, kw_only=True, eq=False)
class Import:
    """A process that was started."""

    source: Source
    """As it was when the import began."""
    run: str
    """Which of the runs of the source; "" where it holds one."""
    run_id: str
    process: subprocess.Popen[bytes]
    output: int
    """Descriptor of what it printed."""
    errors: int
    _report: ImportReport | None = field(default=None)

    def report(self) -> ImportReport:
        """How it stands now."""
        if self._report is not None:
            return self._report
        status = self.process.poll()  # first: what it wrote last is then read
        lines = _tail(self.errors).split("\n")
        if status is None:
            progress = read_progress(lines)
            stage, share = progress or ("starting", None)
            return ImportReport(is_done=False, stage=stage, share=share)
        if status:
            said = [line for line in lines if line.strip() and read_progress([line]) is None]
            problem = said[-1].removeprefix("error: ") if said else f"it ended with code {status}"
            if status < 0:
                problem = "the import was stopped. Click Import to continue where it stopped."
            self._report = ImportReport(is_done=True, problem=problem[:2_000])
        else:
            self._report = _told(_tail(self.output, most=MAX_REPORT_BYTES))
        os.close(self.output)
        os.close(self.errors)
        return self._report

    def stop(self) -> None:
        """End it; importing the source again goes on."""
        if self.process.poll() is None:
            self.process.terminate()


_imports: dict[tuple[Path, str], Import] = {}
"""The newest of each source and run."""
_lock = threading.Lock()


def import_of(source: Source, run: str = "") -> Import | None:
    """The import of a source, or of one of its runs, that this dashboard started last."""
    with _lock:
        return _imports.get((source.path, run))


def is_importing() -> bool:
    """Whether an import that was started here goes on."""
    with _lock:
        return any(one.process.poll() is None for one in _imports.values())


def forget() -> None:
    """Forget imports that have ended."""
    with _lock:
        ended = [key for key, one in _imports.items() if one.process.poll() is not None]
        for key in ended:
            _imports.pop(key).report()


def run_of(source: Source, rows: Iterable[RunRow], run: str = "") -> RunRow | None:
    """The run that was made of a source, or of one of its runs; the newest if there are several."""
    path = source.path.resolve()
    made = (row for row in rows if row.source and Path(row.source).resolve() == path)
    return next((row for row in made if run in ("", row.source_run)), None)


def new_name(source: Source, root: Path, run: str = "") -> str:
    """The folder under the root for the run of a source: named after it, and not there yet.

    >>> new_name(Source(path=Path("/data/my run.jsonl")), Path("/nowhere"))
    'my-run'
    >>> new_name(Source(path=Path("/data/chart.csv")), Path("/nowhere"), "seed 1")
    'chart-seed-1'
    """
    name = source.path.resolve().name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    name = f"{name}-{run}" if run else name
    name = _UNFIT.sub("-", name).strip("-.")[:100] or "run"
    if not (root / name).exists():
        return name
    names = (f"{name}-imported{'' if number < 2 else f'-{number}'}" for number in range(1, 10_000))
    return next(one for one in names if not (root / one).exists())


def start(source: Source, run_id: str, root: Path, run: str = "") -> Import:
    """Import a source into a run under the root, or add what is new in it.

    Args:
        run: Which of the runs of the source.

    Raises:
        ImportRefusedError: too many are going on, or the system refuses.
    """
    with _lock:
        old = _imports.get((source.path, run))
        if old is not None and old.process.poll() is None:
            return old
        if sum(one.process.poll() is None for one in _imports.values()) >= MAX_LIVE:
            raise ImportRefusedError(f"{MAX_LIVE} imports are going on; wait until one has ended")
        output, errors = _nameless(), _nameless()
        words = [sys.executable, "-P", "-m", "echoscope", "import", "--json"]
        words += [f"--run={run}"] if run else []
        words += [f"--output={(root / run_id).absolute()}", "--", str(source.path.absolute())]
        try:
            root.mkdir(parents=True, exist_ok=True)
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=_environment(),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ImportRefusedError(f"the import was not started: {error}") from error
        begun = Import(
            source=source,
            run=run,
            run_id=run_id,
            process=process,
            output=output,
            errors=errors,
        )
        _imports[source.path, run] = begun
    return begun


def _told(output: str) -> ImportReport:
    """The report that an import printed, without its last sentence: what to type next."""
    try:
        report = json.loads(output)
        num_skipped = [*report["skipped_rows"].values(), *report["left_out_metrics"].values()]
        return ImportReport(
            is_done=True,
            sentences=tuple(line[:500] for line in report["sentences"][:-1]),
            num_refused=sum(report["refused_files"].values()),
            num_skipped=sum([*num_skipped, *report["left_out"].values()]),
        )
    except (ValueError, KeyError, TypeError):  # something else was printed too, or too much
        return ImportReport(
            is_done=True, sentences=("The import ended, but its report cannot be read.",)
        )


def _environment() -> dict[str, str]:
    """What it runs need not know how to get in here."""
    kept = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}
    return kept | {PROGRESS_VARIABLE: LINES}


def _nameless() -> int:
    """A file that is gone with its last descriptor."""
    descriptor, name = tempfile.mkstemp(prefix="echoscope-import-")
    os.unlink(name)
    return descriptor


def _tail(descriptor: int, *, most: int = _TAIL_BYTES) -> str:
    size = os.fstat(descriptor).st_size
    start = max(0, size - most)
    return os.pread(descriptor, size - start, start).decode("utf-8", "replace")
