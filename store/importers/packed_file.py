"""Opens a file that is packed: gzip, bzip2, xz, Zstandard, or a zip with one file."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

MAX_BYTES = 2 << 30
"""A packed file is read up to here: a few kilobytes may unpack to terabytes."""
ERRORS: tuple[type[Exception], ...] = (
    OSError,
    EOFError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
)
"""What a damaged or encrypted packed file raises while it is read."""
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


_PIECE = 4096
"""Unpacked at once: what was unpacked in a piece that cannot be read to its end is lost."""


class _Bounded(io.RawIOBase):
    """At most `MAX_BYTES` of a stream, up to its damage: the error comes after all that is good."""

    def __init__(self, source: io.BufferedIOBase) -> None:
        self._source, self._left = source, MAX_BYTES
        self._error: Exception | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes, fewer only at the end; all of them where the size is negative.

        Raises:
            One of `ERRORS`: there is nothing more before the damage.
        """
        size = self._left if size < 0 else min(size, self._left)
        pieces: list[bytes] = []
        while size and self._error is None:
            try:
                # It gives what it has, where less than was asked for is at hand.
                piece = bytes(self._source.read1(min(size, _PIECE)))
            except ERRORS as error:
                self._error = error
                break
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
            self._left -= len(piece)
        if self._error is not None and not pieces:
            raise self._error
        return b"".join(pieces)


def packing_of(path: Path) -> str:
    """How a file is packed, by its first bytes; empty where it is not."""
    with path.open("rb") as file:
        head = file.read(8)
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked where it is packed.

    Raises:
        One of `ERRORS`, here or while it is read: the file is damaged or encrypted.
    """
    packing = packing_of(path)
    if not packing:
        with path.open("rb") as file:
            yield file
    elif packing == "zip":
        with zipfile.ZipFile(path) as archive:
            # The largest file: others are notes on it.
            member = max(archive.infolist(), key=lambda info: info.file_size)
            with archive.open(member) as file:
                yield cast(BinaryIO, _Bounded(cast(io.BufferedIOBase, file)))
    elif packing == "zstd":
        import pyarrow as pa  # takes longer to import than most files to read

        with pa.input_stream(str(path), compression="zstd") as file:
            yield cast(BinaryIO, _Bounded(file))
    else:
        opener = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}[packing]
        with opener(path, "rb") as file:  # type: ignore[operator]
            yield cast(BinaryIO, _Bounded(file))
