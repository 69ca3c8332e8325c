"""Data files: how one is written, and whether it is still what was promised of it.

DuckDB does not look at the checksums in Parquet, and damaged pages can decode to other values.
Whoever reads a file therefore has it hashed once before the first use; what was found whole is
remembered for as long as the file's size, time and inode stay the same.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..schema import TABLES, arrow_schema
from .durable import content_damage, sha256_of, stat_of, write_all, write_new_file
from .layout import FileEntry

_SEGMENT_LEVEL = 1
_PACK_LEVEL = 3
_NUMBER_LISTS = ("FLOAT[]", "INTEGER[]")
_NO_DICTIONARY = {
    "turns": ("observation", "response", "frame"),
    "trajectories": ("id", "final_observation", "final_frame", "extra"),
    "images": ("key", "png"),
}
"""Columns whose values hardly repeat inside one step."""
_SETTLED_NS = 1_000_000_000
"""A file changed more recently may change again within the resolution of its time."""
_MAX_REMEMBERED = 100_000
_NUM_THREADS = 4


def parquet_options(table: str, *, packed: bool) -> dict[str, Any]:
    """Arguments of a Parquet writer: measured in benchmarks/store.py."""
    columns = TABLES[table].columns
    streams = [f"{c.name}.list.element" for c in columns if c.type == "FLOAT[]"]
    plain = {*_NO_DICTIONARY.get(table, ()), *(c.name for c in columns if c.type == "DOUBLE")}
    dictionary = [
        f"{c.name}.list.element" if c.type.endswith("[]") else c.name
        for c in columns
        if c.type not in _NUMBER_LISTS and not c.type.startswith("MAP") and c.name not in plain
    ]
    return {
        "compression": "zstd",
        "compression_level": _PACK_LEVEL if packed else _SEGMENT_LEVEL,
        "use_dictionary": dictionary,
        "column_encoding": dict.fromkeys(streams, "BYTE_STREAM_SPLIT"),
        "version": "1.0",
    }


def write_segment_file(root: Path, relative: str, table: str, rows: pa.Table) -> FileEntry:
    """Write one file and fsync it. The bytes are hashed before they leave memory."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, **parquet_options(table, packed=False)) as writer:
        writer.write_table(rows)
    data = memoryview(sink.getvalue())
    write_new_file(root / relative, data)
    return FileEntry(
        table=table,
        path=relative,
        num_rows=rows.num_rows,
        num_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


class _HashingFile(io.FileIO):
    """A new file that hashes what is written to it, and is on the disk once it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x", opener=partial(os.open, mode=0o644))
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        view = memoryview(data)
        write_all(self.fileno(), view)
        self.digest.update(view)
        return view.nbytes

    def close(self) -> None:
        if not self.closed:
            try:
                os.fsync(self.fileno())
            finally:
                super().close()


def write_pack_file(
    folder: Path, relative: str, table: str, row_groups: Iterable[pa.Table]
) -> FileEntry:
    """Write some tables as the row groups of one file, make it durable and read it back.

    Args:
        folder: where the file is written.
        relative: the path that it will have in the run's folder.

    Raises:
        OSError: the disk refuses, or gives back other bytes.
    """
    path = folder / Path(relative).name
    sink = _HashingFile(path)
    num_rows = 0
    options = parquet_options(table, packed=True)
    try:
        with pq.ParquetWriter(sink, arrow_schema(table), **options) as writer:
            for rows in row_groups:
                if rows.num_rows:
                    writer.write_table(rows, row_group_size=rows.num_rows)
                    num_rows += rows.num_rows
    finally:
        sink.close()
    digest = sink.digest.hexdigest()
    if sha256_of(path) != digest:
        raise OSError(errno.EIO, "the disk gives back other bytes than were written")
    size = path.stat().st_size
    return FileEntry(table=table, path=relative, num_rows=num_rows, num_bytes=size, sha256=digest)


class FileChecks:
    """Which data files were found whole. May be used from several threads."""

    def __init__(self) -> None:
        self._whole: dict[Path, tuple[object, ...]] = {}
        self._lock = threading.Lock()

    def damage(self, root: Path, entry: FileEntry) -> str:
        """What is wrong with a data file, hashed unless it is known; an empty text for nothing."""
        path = root / entry.path
        stats = stat_of(path)
        if stats is None:
            return damage_of(root, entry)
        mark = (entry.sha256, stats.st_size, stats.st_mtime_ns, stats.st_ino)
        if self._whole.get(path) == mark:
            return ""
        why = damage_of(root, entry)
        if not why and time.time_ns() - stats.st_mtime_ns > _SETTLED_NS:
            with self._lock:
                while len(self._whole) >= _MAX_REMEMBERED:
                    del self._whole[next(iter(self._whole))]
                self._whole[path] = mark
        return why

    def damages(self, root: Path, entries: Sequence[FileEntry]) -> dict[str, str]:
        """What is wrong with each of some files, by path; an empty text for nothing."""
        num_new = sum(root / entry.path not in self._whole for entry in entries)
        if num_new < _NUM_THREADS:
            return {entry.path: self.damage(root, entry) for entry in entries}
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            whys = pool.map(lambda entry: self.damage(root, entry), entries)
            return {entry.path: why for entry, why in zip(entries, whys, strict=True)}


CHECKS = FileChecks()
"""Shared by all readers of this process."""


def damage_of(root: Path, entry: FileEntry) -> str:
    """What is wrong with a data file, read anew; an empty text where nothing is."""
    return content_damage(root / entry.path, entry.num_bytes, entry.sha256)
