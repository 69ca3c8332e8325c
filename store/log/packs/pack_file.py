"""One file of a pack: row groups, and a footer that is written twice.

The footer holds the SHA-256 of each row group, and the manifest the footer's own. So where one part
of the file is damaged, every other part can still be proven (`salvage.py`). Bytes between the last
row group and the footer belong to nobody in the format: the first copy of the footer lies there.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import StoreError
from ...schema import SCHEMA_VERSION, arrow_schema
from ..durable import parquet_options, sha256_of, sync_folder, write_all
from ..layout import FileEntry, FooterProof, Layout
from .footers import MAGIC

HASHES = "echoscope.row_groups"
"""Key of the footer: the SHA-256 of each row group in hex, one behind the other."""
Span = tuple[int, int]


class _HashingFile:
    """A file to write to that hashes what passes."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.sha256()
        self._part = hashlib.sha256()
        self._footer: list[bytes] | None = None
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        write_all(self._descriptor, view)
        self._hash.update(view)
        self._part.update(view)
        self.size += view.nbytes
        if self._footer is not None:
            self._footer.append(bytes(view))
        return view.nbytes

    def cut(self) -> str:
        """The SHA-256 of what was written since the last cut."""
        part, self._part = self._part, hashlib.sha256()
        return part.hexdigest()

    def begin_footer(self) -> None:
        """Keep what is written from here on, for `repeat_footer`."""
        self.cut()
        self._footer = []

    def repeat_footer(self) -> FooterProof:
        """Write what came since `begin_footer` once more."""
        assert self._footer is not None
        footer, self._footer = b"".join(self._footer), None
        proof = FooterProof(num_bytes=len(footer), sha256=self.cut())
        self.write(footer)
        return proof

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)

    def finish(self) -> str:
        """Make the file durable; its SHA-256."""
        os.fsync(self._descriptor)
        self.close()
        return self._hash.hexdigest()


def write_pack_file(
    layout: Layout, relative: str, table: str, row_groups: Iterable[pa.Table]
) -> FileEntry:
    """Write some tables as the row groups of one file, make it durable and read it back.

    Raises:
        StoreError: the disk refuses, or gives back other bytes.
    """
    path = layout.root / relative
    path.parent.mkdir(exist_ok=True)  # a table that came after the run began
    num_rows, hashes = 0, []
    sink = _HashingFile(path)
    try:
        writer = pq.ParquetWriter(sink, arrow_schema(table), **parquet_options(table, packed=True))
        sink.cut()  # the magic bytes in front
        for rows in row_groups:
            if rows.num_rows:
                writer.write_table(rows, row_group_size=rows.num_rows)
                hashes.append(sink.cut())
                num_rows += rows.num_rows
        writer.add_key_value_metadata({HASHES: "".join(hashes)})
        sink.begin_footer()
        writer.close()
        proof = sink.repeat_footer()
        digest = sink.finish()
        sync_folder(path.parent)
        if sha256_of(path) != digest:
            raise OSError(errno.EIO, "the disk gives back other bytes than were written")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StoreError(f"{path}: {error.strerror or error}") from error
    finally:
        sink.close()
    return FileEntry(
        table=table,
        path=relative,
        num_rows=num_rows,
        num_bytes=sink.size,
        sha256=digest,
        schema_version=SCHEMA_VERSION,
        footer=proof,
    )


def row_group_spans(footer: pq.FileMetaData) -> Iterator[Span]:
    """Where each row group begins and ends in the file."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = [group.column(column) for column in range(group.num_columns)]
        start = min(c.dictionary_page_offset or c.data_page_offset for c in columns)
        yield start, start + sum(c.total_compressed_size for c in columns)


def value_range(footer: pq.FileMetaData, number: int, column: str) -> tuple[Any, Any] | None:
    """The smallest and the largest value of a column in a row group, where the footer says them."""
    names = footer.schema.names
    if column not in names:
        return None
    statistics = footer.row_group(number).column(names.index(column)).statistics
    if statistics is None or not statistics.has_min_max:
        return None
    return statistics.min, statistics.max


def footer_proof(path: Path) -> FooterProof | None:
    """The proof of the footer of a file that is whole; None where the footer is not there twice."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little") + 8
        if file.read(4) != MAGIC or 2 * length > size:
            return None
        file.seek(size - 2 * length)
        first, second = file.read(length), file.read(length)
    if first != second:
        return None
    return FooterProof(num_bytes=length, sha256=hashlib.sha256(first).hexdigest())
