"""What a path holds: a run of ours, or files of another trainer, which become a run here."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from echoscope.diagnostics.read.rollouts import notes_of
from echoscope.diagnostics.read.wandb_address import is_address
from echoscope.diagnostics.tools.importing import JointReport, SeveralRunsError, import_path
from echoscope.store.errors import NotARunError
from echoscope.store.importers.importing import ImportingError
from echoscope.store.log.layout import Layout, run_meant, shown_path
from echoscope.store.reader import RunReader, open_run
from echoscope.text.amounts import counted

_QUIET_S = 2.0
"""An import that takes longer says how far it is."""


@dataclass(slots=True)
class Source:
    """An open run, and where it came from."""

    reader: RunReader
    path: Path
    """What the caller named."""
    notes: Sequence[str] = ()
    """What is to be known of an import."""
    run: str = ""
    """Which run's metrics, where the files hold those of several."""
    folder: tempfile.TemporaryDirectory[str] | None = None
    """Of an import that is not kept: it goes when nothing refers to it any more."""

    @property
    def is_foreign(self) -> bool:
        """The caller named files of another trainer."""
        return self.reader.path != self.path.resolve()

    @property
    def is_kept(self) -> bool:
        return self.folder is None

    @property
    def typed(self) -> str:
        """How a command names it."""
        return shlex.quote(shown_path(self.reader.path if self.is_kept else self.path))

    def refresh(self) -> None:
        """Catch up with the files: those of a trainer that still writes are imported on."""
        if self.is_foreign:
            self.notes = _imported(self.path, self.reader.path, self.run)
        self.reader.refresh()


def open_source(path: str | Path, keep: str | Path | None = None, run: str = "") -> Source:
    """Open a run, or import the files of another trainer into one.

    Args:
        path: A run, a file or folder of another trainer, or `wandb:ENTITY/PROJECT/RUN`.
        keep: Folder of the run that an import makes; None for one that goes when it is not used
            any more.
        run: Which run's metrics to take, where the files hold those of several.

    Raises:
        NotARunError: nothing there, or a folder of several runs.
        ImportingError: files that no importer reads; one line.
        StoreError: the run cannot be read.
    """
    if not isinstance(path, str | Path):
        raise TypeError(f"a run is named by its path, not by {type(path).__name__}")
    place = Path(path)
    if not is_address(place):
        _must_be_there(place)
    if Layout(place).run_json.is_file():
        if keep is not None or run:
            raise ValueError(
                f"{path}: is a run already; keep= and run= are for files of another trainer"
            )
        return Source(reader=open_run(place), path=place)
    folder = None
    if keep is None:
        folder = tempfile.TemporaryDirectory(prefix="echoscope-notebook-")
    target = Path(folder.name) / "run" if folder is not None else Path(keep or "")
    notes = _imported(place, target, run)
    return Source(reader=open_run(target), path=place, notes=notes, run=run, folder=folder)


def _must_be_there(place: Path) -> None:
    """Raises NotARunError where nothing is, and for a folder of runs."""
    if not place.exists():
        if run_meant(place):
            Layout(place).require_run()
        raise NotARunError(f"{place}: no such file or folder")
    if not place.is_dir() or Layout(place).run_json.is_file():
        return
    runs = sorted(inner.name for inner in place.iterdir() if Layout(inner).run_json.is_file())
    if runs:
        more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
        raise NotARunError(
            f"{place}: holds runs ({', '.join(runs[:3])}{more}). Name one of them, or list them "
            f"with Runs({str(place)!r})"
        )


def _imported(path: Path, target: Path, run: str) -> Sequence[str]:
    """Import what is new; what a reader must know of it."""
    progress = _Progress(path.name)
    try:
        report = import_path(path, target, run=run, writing=progress, is_packing=False)
    except SeveralRunsError as error:
        listed = ", ".join(map(repr, error.runs[:8]))
        raise ImportingError(
            f"{path}: holds metrics of {len(error.runs)} runs ({listed}); name one of them: "
            f"Run({str(path)!r}, run={error.runs[0]!r})"
        ) from error
    finally:
        progress.end()
    return _notes(report, shlex.quote(str(path)))


def _notes(report: JointReport, path: str) -> Sequence[str]:
    written, metrics = report.written, report.metrics
    episodes = written.num_kept + written.num_there
    parts = [f"{counted(episodes, 'episode')} of {written.format}"] if episodes else []
    if metrics is not None:
        parts.append(f"metrics of {counted(metrics.table.num_rows, 'row')}")
    return (
        f"read from {' and '.join(parts)}",
        *notes_of(report, path)[1:],
    )


class _Progress:
    """One line on stderr that counts up, once an import takes a while."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next = time.monotonic() + _QUIET_S
        self._is_shown = False

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next, self._is_shown = now + 1.0, True
            sys.stderr.write(f"\rimporting {self._name!a}: {done:,} of {of:,} rows")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_shown:
            sys.stderr.write("\n")
