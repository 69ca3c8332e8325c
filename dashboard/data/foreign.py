"""What other trainers wrote below the root: rollouts and metrics that no run was made of yet.

A look is light and happens beside the pages: a bounded number of files is counted, and the first
rows of a few are read. A page shows what the last look saw and never waits for one.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path, PurePath

from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.names import is_ours
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.store.importers.sources import NO_DATA, files_of, name_pattern
from echoscope.store.importers.survey import look
from echoscope.store.log.layout import Layout

MAX_SOURCES = 100
"""Folders and files of a root that are looked at."""
MAX_FILES = 2_000
"""Files of a folder that are counted."""
MAX_READ = 6
"""Files of a folder whose first rows are read, one of each pattern of names."""
MAX_READ_BYTES = 8 << 20
"""A larger file is not read in a look."""
LOOK_EVERY_S = 10.0
REST = 50.0
"""A look is not repeated before so many times what it took."""
_DOCUMENTS = frozenset(
    {".md", ".rst", ".html", ".css", ".js", ".py", ".tex", ".pdf", ".ipynb", ".svg"}
)
_NO_DATA = (NO_DATA - _DOCUMENTS) | {
    *(".duckdb", ".pth", ".ckpt", ".joblib", ".bin", ".npz", ".npy", ".yaml", ".yml")
}
_DOCUMENTS_PER_DATA = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSource:
    """A folder or file of another trainer. Names come from the disk: hostile."""

    path: Path
    has_rollouts: bool = False
    has_metrics: bool = False
    num_files: int = 0
    num_bytes: int = 0
    newest: float = 0.0
    """When a file was written last, in seconds since the epoch."""
    problem: str = ""
    """Why it is not opened, in a sentence."""

    @property
    def is_known(self) -> bool:
        """It holds something that can be imported."""
        return (self.has_rollouts or self.has_metrics) and not self.problem


@dataclass(slots=True)
class ForeignSources:
    """The sources of one root. May be used from several threads; `known` never waits for a look."""

    root: Path
    given: tuple[Path, ...] = ()
    """Sources that the command line named, wherever they are."""
    _seen: tuple[ForeignSource, ...] = ()
    _read: dict[ForeignSource, ForeignSource] = field(default_factory=dict)
    """What was counted of a source -> what was read of it then."""
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def known(self, names: Sequence[str]) -> tuple[ForeignSource, ...]:
        """What the last look saw; starts another one where it is time.

        Args:
            names: Folders and files directly under the root that are no runs.
        """
        last_look = self._seen  # before the next one, which may be quick
        if time.monotonic() >= self._next and self._lock.acquire(blocking=False):
            threading.Thread(target=self._look, args=(tuple(names),), daemon=True).start()
        return last_look

    def _look(self, names: tuple[str, ...]) -> None:
        """Look, and release the lock."""
        began = time.monotonic()
        try:
            below = [self.root / name for name in names[:MAX_SOURCES]]
            paths = [*self.given, *(path for path in below if path.resolve() not in self.given)]
            self._seen = tuple(self._source(path) for path in paths)
        finally:
            ended = time.monotonic()
            self._next = ended + max(LOOK_EVERY_S, REST * (ended - began))
            self._lock.release()

    def _source(self, path: Path) -> ForeignSource:
        is_given = path in self.given
        try:
            is_inside = not path.is_symlink() or path.resolve().is_relative_to(self.root.resolve())
            if not (is_given or is_inside):
                return ForeignSource(
                    path=path, problem="a link that leads out of the root is not opened"
                )
            counted = _counted(path)
            if counted.problem:
                return counted
            if counted not in self._read:
                self._read[counted] = _read(counted, is_given=is_given)
            return self._read[counted]
        except OSError as error:
            return ForeignSource(path=path, problem=f"cannot be read: {error.strerror or error}")


def is_source(path: Path) -> bool:
    """Whether a path that somebody typed holds rollouts or metrics of another trainer.

    Raises:
        OSError: it cannot be read.
    """
    return _read(_counted(path), is_given=False).is_known


def is_of_documents(path: Path) -> bool:
    """Whether a folder holds texts and code, and hardly any file that may be data.

    A log or a table among many texts is an example, which somebody must ask for by its name.

    Raises:
        OSError: it cannot be read.
    """
    suffixes = [file.suffix.lower() for file in _files(path)] if path.is_dir() else []
    num_documents = sum(suffix in _DOCUMENTS for suffix in suffixes)
    num_data = sum(suffix not in _NO_DATA | _DOCUMENTS for suffix in suffixes)
    return num_documents > _DOCUMENTS_PER_DATA * num_data


_PARTS = re.compile(
    r"rollout|val|eval|train|test|episode|completion|step|iter|traj|log|metric|sample|output"
    r"|result|wandb|tensorboard|tb$|[0-9]+$"
)
"""In the name of a folder: a part of what one training wrote, and no training of its own."""


def is_root(path: Path) -> bool:
    """Whether a folder holds runs, or folders of trainings and no data of its own.

    Raises:
        OSError: it cannot be read.
    """
    children = sorted(islice(path.iterdir(), MAX_FILES))
    if any(Layout(child).is_run for child in children):
        return True
    if any(child.is_file() and is_source(child) for child in children[:MAX_SOURCES]):
        return False
    folders = [child for child in children if child.is_dir() and not child.name.startswith(".")]
    sources = [folder for folder in folders[:MAX_SOURCES] if is_source(folder)]
    return bool(sources) and not any(_PARTS.search(folder.name.lower()) for folder in sources)


def _files(path: Path) -> list[Path]:
    """Regular files, natural order within a folder, no links; at most `MAX_FILES`."""
    return [file for file, problem in islice(files_of(path), MAX_FILES) if not problem]


def _counted(path: Path) -> ForeignSource:
    """A source with the number, size and time of its files."""
    if path.is_dir() and any(Layout(c).is_run for c in islice(path.iterdir(), 100)):
        return ForeignSource(
            path=path, problem=f"holds runs; open it with: echoscope dashboard {path}"
        )
    statuses = [file.stat() for file in _files(path)]
    return ForeignSource(
        path=path,
        num_files=len(statuses),
        num_bytes=sum(status.st_size for status in statuses),
        newest=max((status.st_mtime for status in statuses), default=0.0),
    )


def _read(source: ForeignSource, *, is_given: bool) -> ForeignSource:
    """The same with what first rows say; metrics of texts and code count where it `is_given`."""
    may_be_metrics = is_given or not is_of_documents(source.path)
    by_pattern: dict[PurePath, Path] = {}
    for file in _files(source.path):
        if file.suffix.lower() not in _NO_DATA and file.stat().st_size <= MAX_READ_BYTES:
            by_pattern.setdefault(name_pattern(file), file)
    has_rollouts = has_metrics = False
    for file in islice(by_pattern.values(), MAX_READ):
        if look(file).is_rollouts:
            has_rollouts = True
        elif may_be_metrics and not has_metrics:
            has_metrics = _is_metrics(file)
    return replace(source, has_rollouts=has_rollouts, has_metrics=has_metrics)


def _is_metrics(file: Path) -> bool:
    """Whether a file holds metrics that a rule can read."""
    try:
        return any(map(is_ours, read_metrics(file).keys()))
    except (MetricsFileError, OSError, ValueError):
        return False
