"""Files that are on the disk when a call returns, and the lock that keeps a second writer out."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import time
import uuid
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import RunBusyError, StoreError
from ..schema import SCHEMA_VERSION, TABLES
from .layout import FileEntry

CHECKED_FORMAT = 2
"""Format of journals, manifests and descriptions that carry checksums; format 1 has none."""

_SEGMENT_LEVEL = 1
_PACK_LEVEL = 3
_NUMBER_LISTS = ("FLOAT[]", "INTEGER[]")
_NO_DICTIONARY = {
    "turns": ("observation", "response", "frame"),
    "trajectories": ("id", "final_observation", "final_frame", "extra"),
    "images": ("key", "png"),
}
"""Columns whose values hardly repeat inside one step."""


def new_id() -> str:
    """Eight hex characters: names of data files never repeat."""
    return uuid.uuid4().hex[:8]


def sync_folder(path: Path) -> None:
    """Make names created, renamed or removed in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading, and never wait for a pipe or read a device that does not end.

    Raises:
        OSError: not there, or no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "is a pipe or a device, and no file", str(path))


def read_regular(path: Path) -> bytes:
    """The content of a file; raises as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write everything; a short write is continued, a full disk raises."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_new_file(path: Path, data: bytes | memoryview) -> None:
    """Create, write and fsync a file whose name is not known to anyone yet.

    The folder is not synced: the caller does that once for all its files. A file that could not
    be written whole is removed, so that a full disk does not stay fuller than it must.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old one or the new one, and nothing between."""
    temporary = path.with_name(f"{path.name}.{new_id()}.tmp")
    write_new_file(temporary, data)
    os.replace(temporary, path)
    sync_folder(path.parent)


def to_json_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        StoreError: unreadable, or not a JSON object.
    """
    try:
        value = json.loads(read_regular(path), object_pairs_hook=_each_key_once)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path}: holds no JSON object")
    return value


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Our files name no key twice; a file that does was changed."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("it names a key twice")
    return value


def _digest_of(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_checksum(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object that carries the SHA-256 of its own content."""
    checked = {**value, "format": CHECKED_FORMAT}
    return checked | {"checksum": _digest_of(checked)}


def is_unchanged(value: Mapping[str, Any]) -> bool:
    """Whether an object is what `with_checksum` gave, or carries no checksum (format 1)."""
    content = {name: entry for name, entry in value.items() if name != "checksum"}
    has_checksum = "checksum" in value or value.get("format") is not None
    return not has_checksum or value.get("checksum") == _digest_of(content)


def to_checked_json_bytes(value: Mapping[str, Any]) -> bytes:
    """`with_checksum` as the content of a file: `read_checked_json` reads it."""
    return to_json_bytes(with_checksum(value))


def read_checked_json(path: Path) -> dict[str, Any]:
    """What `to_checked_json_bytes` wrote, without its checksum.

    Files of format 1 have neither `format` nor `checksum`, and are returned as they are.

    Raises:
        StoreError: unreadable, not a JSON object, or changed after it was written.
    """
    value = read_json_object(path)
    if not is_unchanged(value):
        raise StoreError(f"{path}: its content changed after it was written")
    value.pop("checksum", None)
    return value


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
        "write_page_checksum": True,
    }


def write_parquet(root: Path, relative: str, table: str, rows: pa.Table) -> FileEntry:
    """Write one segment file and fsync it. The bytes are hashed before they leave memory."""
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
        schema_version=SCHEMA_VERSION,
    )


def sha256_of(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one with that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class FileLock:
    """An exclusive `flock`: held until `release`, or until the process is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, *, wait_s: float = 0.0) -> None:
        """Take the lock.

        Somebody who asks `is_locked` holds it for microseconds, hence the patience of a writer.

        Raises:
            RunBusyError: another process holds it.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                    os.close(descriptor)
                    raise RunBusyError(
                        f"{self._path.parent}: another process is writing this run"
                        f"{f' ({holder})' if holder else ''}; stop it first"
                    ) from None
                time.sleep(0.02)
        if not _is_at(self._path, descriptor):
            # Who held it removed it, with a start that failed: this lock keeps nobody out.
            os.close(descriptor)
            self.acquire(wait_s=max(0.0, deadline - time.monotonic()))
            return
        self._descriptor = descriptor
        # A forked worker would otherwise keep the lock after the trainer died.
        os.register_at_fork(after_in_child=self._forget)
        # Who holds it is a courtesy to whoever is refused: a full disk may leave it out.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _forget(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def release(self) -> None:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
