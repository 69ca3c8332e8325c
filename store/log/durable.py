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
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from echoscope.text.strict_json import each_key_once

from ..errors import RunBusyError, StoreError


def new_id() -> str:
    """Eight hex characters: names of data files never repeat."""
    return uuid.uuid4().hex[:8]


def sync_path(path: Path) -> None:
    """Make durable what was written to a file, or the names created or removed in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stat_of(path: str | Path) -> os.stat_result | None:
    """What the disk says of a file or folder; None where there is none."""
    try:
        return os.stat(path)
    except OSError:
        return None


def open_regular(path: Path, *, follows_links: bool = True) -> BufferedReader:
    """Open a file for reading, and never wait for a pipe or read a device that does not end.

    Raises:
        OSError: not there, or no regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags if follows_links else flags | os.O_NOFOLLOW)
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
    sync_path(path.parent)


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        StoreError: unreadable, or not a JSON object.
    """
    try:
        value = json.loads(read_regular(path), object_pairs_hook=each_key_once)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path}: holds no JSON object")
    return value


def _digest_of(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_checksum(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object that carries the SHA-256 of its own content."""
    return {**value, "checksum": _digest_of(value)}


def without_checksum(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """The object that `with_checksum` was given; None where its content has changed since."""
    content = {name: entry for name, entry in value.items() if name != "checksum"}
    return content if value.get("checksum") == _digest_of(content) else None


def to_checked_json_bytes(value: Mapping[str, Any]) -> bytes:
    """`with_checksum` as the content of a file: `read_checked_json` reads it."""
    return (json.dumps(with_checksum(value), indent=1, allow_nan=False) + "\n").encode()


def read_checked_json(path: Path) -> dict[str, Any]:
    """What `to_checked_json_bytes` wrote, without its checksum.

    Raises:
        StoreError: unreadable, not a JSON object, or changed after it was written.
    """
    value = without_checksum(read_json_object(path))
    if value is None:
        raise StoreError(f"{path}: its content changed after it was written")
    return value


def sha256_of(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_damage(path: Path, num_bytes: int, sha256: str) -> str:
    """What is wrong with a file that was so when it was written; an empty text for nothing."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != num_bytes:
                return f"it has {size} bytes, not {num_bytes}"
            is_same = hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    return "" if is_same else "its content changed after it was written"


def take_lock(descriptor: int, wait_s: float) -> bool:
    """Lock an open file for this process alone; False where another one holds it for so long."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        else:
            return True


@contextlib.contextmanager
def changing(path: Path, wait_s: float = 5.0) -> Iterator[None]:
    """Nobody else changes a small file meanwhile, which is read, changed and replaced as a whole.

    The folder itself is locked, which leaves no file.

    Raises:
        StoreError: another process holds the lock for so long, or the disk refuses.
    """
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not take_lock(descriptor, wait_s):
                raise StoreError(f"somebody else is changing {path}; try again")
            yield
        finally:
            os.close(descriptor)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; nothing was changed") from error


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
        if not take_lock(descriptor, wait_s):
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise RunBusyError(
                f"{self._path.parent}: another process is writing this run"
                f"{f' ({holder})' if holder else ''}; stop it first"
            )
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
            self._forget()


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
