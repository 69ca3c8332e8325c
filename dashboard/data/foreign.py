"""What other trainers wrote below the root: rollouts and metrics that no run was made of yet.

A look is light and happens beside the pages: a bounded number of files is counted, and the first
rows of a few are read. A page shows what the last look saw and never waits for one.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.names import is_ours
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.tools.importing import runs_of
from echoscope.store.importers.importing import ImportingError
from echoscope.store.importers.lines import BadJsonError
from echoscope.store.importers.sources import SourceError, natural, source_of
from echoscope.store.importers.survey import format_of
from echoscope.store.log.layout import Layout

MAX_SOURCES = 100
"""Folders and files of a root that are looked at."""
MAX_FILES = 2_000
"""Files of a folder that are counted."""
MAX_READ = 6
"""Files of a folder whose first rows are read, one of each pattern of names."""
MAX_READ_BYTES = 8 << 20
"""A packed file or a file of metrics is read as a whole, so only up to this size."""
ROWS_READ = 5
LOOK_EVERY_S = 10.0
REST = 50.0
"""A look is not repeated before so many times what it took."""
_DIGITS = re.compile(r"[0-9a-f]{6,}|[0-9]+")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".eval", ".pkl", ".pickle", ".pt")
_NO_DATA = frozenset(
    {".png", ".jpg", ".jpeg", ".gif", ".webp", ".mp4", ".safetensors", ".py", ".md", ".html"}
    | {".sh", ".toml", ".lock", ".duckdb", ".pth", ".ckpt", ".joblib"}
    | {".bin", ".npz", ".npy", ".yaml", ".yml", ".pdf"}
)


_DOCUMENTS = frozenset(
    {".md", ".rst", ".html", ".css", ".js", ".py", ".tex", ".pdf", ".ipynb", ".svg"}
)
_DOCUMENTS_PER_DATA = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A folder or file of another trainer. Names come from the disk: hostile."""

    path: Path
    format: str = ""
    """Of its rollouts, `verl JSONL`; empty where it has none that are known."""
    has_metrics: bool = False
    runs: tuple[str, ...] = ()
    """Names of the runs whose metrics it holds, where they are several."""
    num_files: int = 0
    num_bytes: int = 0
    newest: float = 0.0
    """When a file was written last, in seconds since the epoch."""
    is_cut: bool = False
    """It has more files than were counted."""
    problem: str = ""
    """Why it is not opened, in a sentence."""

    @property
    def is_known(self) -> bool:
        """It holds something that can be imported."""
        return bool(self.format or self.has_metrics) and not self.problem

    @property
    def extent(self) -> tuple[int, int, float]:
        """Changes when files grow or are added."""
        return self.num_files, self.num_bytes, self.newest


@dataclass(slots=True)
class Sources:
    """The sources of one root. May be used from several threads; `known` never waits for a look."""

    root: Path
    given: tuple[Path, ...] = ()
    """Sources that the command line named, wherever they are."""
    _known: tuple[Source, ...] = ()
    _formats: dict[Path, tuple[tuple[int, int, float], Source]] = field(default_factory=dict)
    _next: float = 0.0
    _is_looking: bool = False
    _has_looked: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def known(self, names: Sequence[str]) -> tuple[Source, ...]:
        """What the last look saw; starts another one where it is time.

        Args:
            names: Folders and files directly under the root that are no runs.
        """
        with self._lock:
            is_due = not self._is_looking and time.monotonic() >= self._next
            self._is_looking |= is_due
        if is_due:
            work = threading.Thread(target=self._look, args=(tuple(names),), daemon=True)
            work.start()
        return self._known

    @property
    def has_looked(self) -> bool:
        return self._has_looked

    def look_again(self) -> None:
        """The next call looks anew: something was imported."""
        with self._lock:
            self._next = 0.0

    def look(self, names: Sequence[str]) -> tuple[Source, ...]:
        """Look now, and wait for it."""
        self._look(tuple(names))
        return self._known

    def _look(self, names: tuple[str, ...]) -> None:
        began = time.monotonic()
        try:
            below = [self.root / name for name in names[:MAX_SOURCES]]
            paths = [*self.given, *(path for path in below if path.resolve() not in self.given)]
            self._known = tuple(self._source(path) for path in paths)
        finally:
            ended = time.monotonic()
            with self._lock:
                self._next = ended + max(LOOK_EVERY_S, REST * (ended - began))
                self._is_looking, self._has_looked = False, True

    def _source(self, path: Path) -> Source:
        try:
            if path not in self.given and not _lies_in(path, self.root):
                return Source(path=path, problem="a link that leads out of the root is not opened")
            counted = _counted(path)
            remembered = self._formats.get(path)
            if remembered is not None and remembered[0] == counted.extent:
                return remembered[1]
            seen = counted if counted.problem else _read(counted, is_given=path in self.given)
        except OSError as error:
            return Source(path=path, problem=f"cannot be read: {error.strerror or error}")
        self._formats[path] = (counted.extent, seen)
        return seen


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
    children = _children(path)
    if any(Layout(child).run_json.is_file() for child in children):
        return True
    if any(child.is_file() and is_source(child) for child in children[:MAX_SOURCES]):
        return False
    folders = [child for child in children if child.is_dir() and not child.name.startswith(".")]
    sources = [folder for folder in folders[:MAX_SOURCES] if is_source(folder)]
    return bool(sources) and not any(_PARTS.search(folder.name.lower()) for folder in sources)


def _lies_in(path: Path, root: Path) -> bool:
    return not path.is_symlink() or path.resolve().is_relative_to(root.resolve())


def _files(path: Path) -> list[Path]:
    """Regular files, natural order within a folder, no links; at most `MAX_FILES` and one."""
    if not path.is_dir():
        return [path] if stat.S_ISREG(path.stat().st_mode) else []
    out: list[Path] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural)
        for name in sorted(names, key=natural):
            if not name.startswith("."):
                out.append(Path(folder) / name)
            if len(out) > MAX_FILES:
                return out
    return out


def _counted(path: Path) -> Source:
    if path.is_dir() and any(Layout(child).run_json.is_file() for child in _children(path)):
        return Source(path=path, problem=f"holds runs; open it with: echoscope dashboard {path}")
    files = _files(path)
    num_bytes, newest, number = 0, 0.0, 0
    for file in files[:MAX_FILES]:
        status = file.lstat()
        if stat.S_ISREG(status.st_mode):
            number += 1
            num_bytes += status.st_size
            newest = max(newest, status.st_mtime)
    return Source(
        path=path,
        num_files=number,
        num_bytes=num_bytes,
        newest=newest,
        is_cut=len(files) > MAX_FILES,
    )


def _children(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return [Path(entry.path) for _, entry in zip(range(MAX_FILES), entries, strict=False)]


def _read(source: Source, *, is_given: bool) -> Source:
    """The same with what the first rows of its first files say.

    Args:
        is_given: Somebody named the path. Of other folders of texts and code, metrics do not count.
    """
    may_be_metrics = is_given or not is_of_documents(source.path)
    patterns: set[tuple[str, str]] = set()
    name, has_metrics = "", False
    with tempfile.TemporaryDirectory(prefix="echoscope-look-") as spool:
        for file in _files(source.path):
            pattern = (str(file.parent), _DIGITS.sub("#", file.name))
            is_other = file.suffix.lower() in _NO_DATA or file.is_symlink()
            if is_other or pattern in patterns:
                continue
            patterns.add(pattern)
            if len(patterns) > MAX_READ:
                break
            own = _format(file, Path(spool))
            name = name or own
            has_metrics = has_metrics or (may_be_metrics and not own and _is_metrics(file))
            if name and has_metrics:
                break
    return Source(
        path=source.path,
        format=name,
        has_metrics=has_metrics,
        runs=_runs(source) if has_metrics else (),
        num_files=source.num_files,
        num_bytes=source.num_bytes,
        newest=source.newest,
        is_cut=source.is_cut,
    )


def _runs(source: Source) -> tuple[str, ...]:
    """The runs of which one must be chosen; none of one run, or of more than a look reads."""
    if source.is_cut or source.num_bytes > MAX_READ_BYTES:
        return ()
    try:
        names = runs_of(source.path)
    except (ImportingError, OSError, ValueError):
        return ()
    return names if len(names) > 1 else ()


def _format(file: Path, spool: Path) -> str:
    """The format of the rollouts in a file; empty where there are none."""
    if file.suffix.lower() in _PACKED and file.stat().st_size > MAX_READ_BYTES:
        return ""
    try:
        source = source_of(file, spool)
        if source is None:
            return ""
        with closing(source):
            for number, row in enumerate(source.scan()):
                known = format_of(row.value) if isinstance(row.value, dict) else None
                if known is not None:
                    return known.name
                if number >= ROWS_READ:
                    break
    except (SourceError, BadJsonError, OSError):
        return ""
    return ""


def _is_metrics(file: Path) -> bool:
    """Whether a file holds metrics that a rule can read."""
    if file.stat().st_size > MAX_READ_BYTES:
        return False
    try:
        return any(map(is_ours, read_metrics(file).keys()))
    except (MetricsFileError, OSError, ValueError):
        return False
