"""Whether a data file is still what the journal or the manifest promises.

DuckDB does not look at the checksums in Parquet, and damaged pages can decode to other values.
Whoever reads a file therefore has it hashed once before the first use; what was found good is
remembered for as long as the file's size, time and inode stay the same.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .durable import sha256_of
from .layout import FileEntry

_SETTLED_NS = 1_000_000_000
"""A file changed more recently may change again within the resolution of its time."""
_MAX_REMEMBERED = 100_000
_NUM_THREADS = 4

Mark = tuple[str, int, int, int]


class FileChecks:
    """Which data files were found whole. May be used from several threads."""

    def __init__(self) -> None:
        self._whole: dict[Path, Mark] = {}
        self._lock = threading.Lock()

    def damage(self, root: Path, entry: FileEntry) -> str:
        """What is wrong with a data file, hashed unless it is known; an empty text for nothing.

        Raises:
            FileNotFoundError: it is gone, perhaps because it was packed.
        """
        path = root / entry.path
        stats = os.stat(path)
        mark = _mark(entry, stats)
        if self._whole.get(path) == mark:
            return ""
        if why := _content_damage(path, entry):
            return why
        if time.time_ns() - stats.st_mtime_ns > _SETTLED_NS:
            with self._lock:
                while len(self._whole) >= _MAX_REMEMBERED:
                    del self._whole[next(iter(self._whole))]
                self._whole[path] = mark
        return ""

    def damaged(self, files: Iterable[tuple[Path, FileEntry]]) -> list[tuple[Path, FileEntry, str]]:
        """Those of some files, each with its run's folder, that are not what was promised.

        Raises:
            OSError: a file is gone or cannot be read.
        """
        wanted = [
            (root, entry)
            for root, entry in files
            if self._whole.get(path := root / entry.path) != _mark(entry, os.stat(path))
        ]
        if len(wanted) < _NUM_THREADS:
            whys = [self.damage(root, entry) for root, entry in wanted]
        else:
            with ThreadPoolExecutor(_NUM_THREADS) as pool:
                whys = list(pool.map(lambda pair: self.damage(*pair), wanted))
        return [(*pair, why) for pair, why in zip(wanted, whys, strict=True) if why]


def _mark(entry: FileEntry, found: os.stat_result) -> Mark:
    return entry.sha256, found.st_size, found.st_mtime_ns, found.st_ino


CHECKS = FileChecks()
"""Shared by all readers of this process."""


def _content_damage(path: Path, entry: FileEntry) -> str:
    size = path.stat().st_size
    if size != entry.num_bytes:
        return f"it has {size} bytes, not {entry.num_bytes}"
    is_same = sha256_of(path) == entry.sha256
    return "" if is_same else "its content changed after it was written"


def damage_of(root: Path, entry: FileEntry) -> str:
    """What is wrong with a data file, read anew; an empty text where nothing is."""
    try:
        return proven_damage(root, entry)
    except OSError as error:
        return f"it cannot be read ({' '.join(str(error).split())})"


def proven_damage(root: Path, entry: FileEntry) -> str:
    """As `damage_of`, of a file that can be read.

    Raises:
        OSError: the file cannot be read now, which says nothing about its content.
    """
    path = root / entry.path
    try:
        if why := _content_damage(path, entry):
            return why
        num_rows = pq.read_metadata(path).num_rows
        if num_rows != entry.num_rows:
            return f"it has {num_rows} rows, not {entry.num_rows}"
    except FileNotFoundError:
        return "it is missing"
    except pa.ArrowException as error:
        return f"it cannot be read ({' '.join(str(error).split())})"
    return ""
