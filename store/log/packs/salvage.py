"""What is left of a damaged file of a pack: the row groups that can be proven one by one.

The manifest proves the footer, which lies in the file twice, and the footer each row group. The
checksums of Parquet's pages are asked only where a pack was written before that: they say nothing
of what lies between the pages, so only a repair takes their word.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ...schema import arrow_schema
from ..durable import open_regular
from ..layout import FileEntry
from .footers import footer_without
from .pack_file import HASHES, Span, row_group_spans, value_range

_HEX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """The proven row groups of a damaged file, and what the others held."""

    tail: bytes
    """A footer that names the proven row groups alone; empty where a repair must write it."""
    data_end: int
    """Where the last proven row group ends: the tail may stand there."""
    kept: tuple[int, ...]
    """Numbers of the proven row groups, in the footer of the whole file."""
    footer: pq.FileMetaData
    """Of the whole file."""
    num_rows: int
    """Of the proven row groups."""
    lost_steps: tuple[tuple[int, int], ...]
    """First and last step of each stretch that lost rows; empty where the table has no steps."""
    lost_keys: tuple[str, str] | None
    """First and last key of the metrics among which some are lost."""

    def rows(self, path: Path) -> Iterator[pa.Table]:
        """The proven row groups, read from the file whose footer may be damaged."""
        with pq.ParquetFile(path, metadata=self.footer, page_checksum_verification=True) as file:
            for number in self.kept:
                yield file.read_row_group(number)

    def lost(self, entry: FileEntry, attempt: int | None = None) -> str:
        """What the file lost, in words."""
        if self.num_rows == entry.num_rows:
            return "nothing"
        where = entry.table
        if self.lost_steps:
            where += f" of {_steps_in_words(self.lost_steps)}"
        if attempt is not None:
            where += f", attempt {attempt}"
        if self.lost_keys:
            first, last = self.lost_keys
            where += f", {first}" if first == last else f", from {first} to {last}"
        return f"{where} ({entry.num_rows - self.num_rows:,} of {entry.num_rows:,} rows)"


def salvage(root: Path, entry: FileEntry) -> Salvage | None:
    """What the manifest proves of a damaged file; None where it proves nothing.

    Raises:
        OSError: the file cannot be read now.
    """
    if entry.footer is None:
        return None
    try:
        with open_regular(root / entry.path) as file:
            tail = _proven_footer(file, entry)
            if not tail:
                return None
            footer = pq.read_metadata(pa.BufferReader(tail))
            hashes = (footer.metadata or {}).get(HASHES.encode(), b"").decode()
            spans = list(row_group_spans(footer))
            wanted = [hashes[at : at + _HEX] for at in range(0, len(hashes), _HEX)]
            kept = [
                number
                for number, (span, digest) in enumerate(zip(spans, wanted, strict=True))
                if _digest_of(file, span) == digest
            ]
    except FileNotFoundError:
        return None
    return _salvage_of(entry.table, footer, kept, tail)


def salvage_by_pages(root: Path, entry: FileEntry) -> Salvage | None:
    """What the checksums of pages say of a damaged file of a pack that has no proofs of its parts.

    None where they find nothing wrong: then the damage lies where no checksum looks.

    Raises:
        OSError: the file cannot be read now.
    """
    path = root / entry.path
    kept = []
    try:
        footer = pq.read_metadata(path)
        is_other = footer.schema.to_arrow_schema().remove_metadata() != _schema_of(entry)
        if entry.footer is not None or footer.num_rows != entry.num_rows or is_other:
            return None
        with pq.ParquetFile(path, metadata=footer, page_checksum_verification=True) as file:
            for number in range(footer.num_row_groups):
                try:
                    rows = file.read_row_group(number)
                except (OSError, pa.ArrowException):
                    continue
                if rows.num_rows == footer.row_group(number).num_rows:
                    kept.append(number)
    except (FileNotFoundError, pa.ArrowException):
        return None
    if len(kept) == footer.num_row_groups:
        return None
    return _salvage_of(entry.table, footer, kept, b"")


def _schema_of(entry: FileEntry) -> pa.Schema:
    return arrow_schema(entry.table).remove_metadata()


def _proven_footer(file: BufferedReader, entry: FileEntry) -> bytes:
    """The footer that the manifest promises, from one of its places; empty where it is in none."""
    assert entry.footer is not None
    size, length = os.fstat(file.fileno()).st_size, entry.footer.num_bytes
    for start in (entry.num_bytes - length, entry.num_bytes - 2 * length, size - length):
        if start >= 0:
            file.seek(start)
            data = file.read(length)
            if hashlib.sha256(data).hexdigest() == entry.footer.sha256:
                return data
    return b""


def _digest_of(file: BufferedReader, span: Span) -> str:
    """The SHA-256 of a part of a file, read piece by piece."""
    start, end = span
    file.seek(start)
    digest = hashlib.sha256()
    while start < end and (data := file.read(min(end - start, 1 << 20))):
        digest.update(data)
        start += len(data)
    return digest.hexdigest()


def _salvage_of(
    table: str, footer: pq.FileMetaData, kept: Sequence[int], tail: bytes
) -> Salvage | None:
    lost = sorted(set(range(footer.num_row_groups)) - set(kept))
    if not kept:
        return None
    num_rows = sum(footer.row_group(number).num_rows for number in kept)
    spans = list(row_group_spans(footer))
    keys = [span for number in lost if (span := value_range(footer, number, "key"))]
    steps = [span for number in lost if (span := value_range(footer, number, "step"))]
    is_by_key = table == "metrics" and bool(keys)
    return Salvage(
        tail=footer_without(tail, lost, num_rows) if tail else b"",
        data_end=max(spans[number][1] for number in kept),
        kept=tuple(kept),
        footer=footer,
        num_rows=num_rows,
        lost_steps=tuple(_joined(steps)),
        lost_keys=(min(k[0] for k in keys), max(k[1] for k in keys)) if is_by_key else None,
    )


def _joined(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Stretches of steps without those that touch one another."""
    ordered = sorted(spans)
    while ordered:
        first, last = ordered.pop(0)
        while ordered and ordered[0][0] <= last + 1:
            last = max(last, ordered.pop(0)[1])
        yield first, last


def _steps_in_words(spans: Sequence[tuple[int, int]]) -> str:
    """`step 7`, or `steps 7, 9 to 11`."""
    parts = [f"{first}" if first == last else f"{first} to {last}" for first, last in spans]
    is_one = len(spans) == 1 and spans[0][0] == spans[0][1]
    return f"{'step' if is_one else 'steps'} {', '.join(parts)}"
