"""Files of a path as sources of rows: JSON lines, JSON documents, Parquet.

A source is read twice: once to learn which rows it has, once to convert them step by step. Between
the two only the places of rows are kept. Pickles are read without running them, no link leads out
of the folder, and what a packed file unpacks to is bounded.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from . import read
from .dialogue import is_messages
from .lines import UTF16, BadJsonError, Line, as_utf8, conversion, json_of, lines_of, wide_encoding
from .packed_file import ERRORS as PACKED_ERRORS
from .packed_file import MAX_BYTES, opened, packing_of
from .spooled.inspect_archive import is_inspect, write_logs
from .spooled.logs import is_event, is_generations, write_events, write_samples
from .spooled.trackio_traces import is_sqlite, write_traces

if TYPE_CHECKING:
    import pyarrow.parquet as pq  # not at the start: a metrics file does without

MAX_FILES = 100_000
MAX_DOCUMENT_BYTES = 32 << 20
"""A JSON document over several lines is read at once."""
_SNIFF_BYTES = 4096
_WINDOW = 1 << 20
_TAR_FLAGS = {"gzip": "xzf", "bzip2": "xjf", "xz": "xJf", "zstd": "--zstd -xf"}
"""How a packed archive is opened."""
PICKLED = frozenset({".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib"})
NO_DATA = frozenset(
    {".png", ".jpg", ".jpeg", ".gif", ".webp", ".mp4", ".safetensors", ".py", ".md", ".html"}
    | {".sh", ".toml", ".lock"}
)
"""Endings of pictures, weights, code and documents: nobody looks into these."""


class SourceError(ValueError):
    """A file that is not read, with the reason in words."""


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row and where it stands in its source; or why it cannot be read."""

    place: int
    """Byte offset of a line, or number of a row."""
    size: int
    value: Any
    problem: str = ""
    is_unclean: bool = False
    """Some bytes were not UTF-8."""
    data: bytes = b""
    """The bytes that the row was read from: what tells whether it changed."""


class RowSource(Protocol):
    """Rows of one file, in two passes."""

    def scan(self) -> Iterator[FoundRow]:
        """All rows in order."""

    def row(self, offset: int, size: int) -> Any:
        """One row again. Raises BadJsonError or OSError where the file changed meanwhile."""

    def close(self) -> None: ...


@dataclass(slots=True)
class JsonLines:
    """One JSON value a line."""

    path: Path
    is_spooled: bool = False
    """We wrote it: a text in place of a row is why that row cannot be read."""
    _file: BinaryIO | None = None

    def scan(self) -> Iterator[FoundRow]:
        with self.path.open("rb") as file:
            for line in lines_of(file):
                row = row_of_line(line)
                if self.is_spooled and isinstance(row.value, str):
                    row = FoundRow(row.place, row.size, None, row.value)
                yield row

    def row(self, offset: int, size: int) -> Any:
        if self._file is None:  # rows mostly follow each other
            self._file = self.path.open("rb", buffering=_WINDOW)
        self._file.seek(offset)
        return json_of(self._file.read(size))[0]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def row_of_line(line: Line) -> FoundRow:
    if line.data is None:
        return FoundRow(line.offset, line.size, None, "a line of more than 16 MB")
    try:
        value, is_clean = json_of(line.data)
    except BadJsonError as error:
        problem = "the last line is cut off" if line.is_last else str(error)
        return FoundRow(line.offset, line.size, None, problem)
    return FoundRow(line.offset, line.size, value, "", not is_clean, line.data)


@dataclass(slots=True)
class JsonDocument:
    """One JSON document over several lines: an object, or a list of objects."""

    path: Path
    _rows: list[Any] | None = None
    _is_clean: bool = True

    def _read(self) -> list[Any]:
        if self._rows is None:
            if self.path.stat().st_size > MAX_DOCUMENT_BYTES:
                raise SourceError("a JSON document of more than 32 MB; JSON lines have no limit")
            value, self._is_clean = json_of(self.path.read_bytes())
            if is_messages(value[:1] if isinstance(value, list) else None):
                value = {"messages": value, **_beside_messages(self.path)}
            self._rows = value if isinstance(value, list) else [value]
        return self._rows

    def scan(self) -> Iterator[FoundRow]:
        for number, value in enumerate(self._read()):
            data = json.dumps(value, sort_keys=True).encode(errors="surrogatepass")
            is_unclean = not self._is_clean and b"\\ufffd" in data
            yield FoundRow(number, 0, value, "", is_unclean, data)
        self._rows = None

    def row(self, offset: int, size: int) -> Any:
        return self._read()[offset]

    def close(self) -> None:
        self._rows = None


def _beside_messages(path: Path) -> dict[str, Any]:
    """What VAGEN writes beside the messages of an episode."""
    metrics = path.with_name("metrics.json")
    if path.name != "messages.json" or metrics.is_symlink() or not metrics.is_file():
        return {}
    with metrics.open("rb") as file:
        data = file.read(_WINDOW)
    try:
        return {"vagen_folder": path.parent.name, "metrics": json_of(data)[0]}
    except BadJsonError:
        return {}


@dataclass(slots=True)
class ParquetRows:
    """Rows of a Parquet file, one row group in memory at a time."""

    path: Path
    _group: int = -1
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _file: pq.ParquetFile | None = None
    _starts: list[int] = field(default_factory=list)

    def _open(self) -> pq.ParquetFile:
        if self._file is None:
            import pyarrow.parquet as pq

            self._file = pq.ParquetFile(self.path)
            metadata = self._file.metadata
            sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
            self._starts = [0, *accumulate(sizes)]
        return self._file

    def scan(self) -> Iterator[FoundRow]:
        import pyarrow as pa

        try:
            batches = self._open().iter_batches(batch_size=256)
            values = chain.from_iterable(batch.to_pylist() for batch in batches)
            for number, value in enumerate(values):
                data = json.dumps(value, default=str, sort_keys=True).encode(errors="replace")
                yield FoundRow(number, 0, value, data=data)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(f"the Parquet file is damaged: {error}") from None

    def row(self, offset: int, size: int) -> Any:
        file = self._open()
        group = bisect_right(self._starts, offset) - 1
        if group != self._group:
            self._rows = file.read_row_group(group).to_pylist()
            self._group = group
        return self._rows[offset - self._starts[group]]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rows, self._group = None, [], -1


def files_of(path: Path) -> Iterator[tuple[Path, str]]:
    """The files of a path in natural order, each with a reason where it is not to be read.

    Links are followed only where they stay in the folder, where the file is met by itself anyway.
    """
    if not path.is_dir():
        yield path, "" if stat.S_ISREG(path.stat().st_mode) else "not a regular file"
        return
    root = path.resolve()
    number = 0
    for folder, folders, names in os.walk(path):
        here = Path(folder)
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=read.natural)
        yield from ((here / f, _LEADS_OUT) for f in folders if _leads_out(here / f, root))
        for name in sorted(names, key=read.natural):
            file = here / name
            if name.startswith("."):
                continue
            number += 1
            if number > MAX_FILES:
                yield path, f"more than {MAX_FILES:,} files; the rest was not looked at"
                return
            if _leads_out(file, root):
                yield file, _LEADS_OUT
            elif not file.is_symlink() and stat.S_ISREG(file.stat().st_mode):
                yield file, ""


_LEADS_OUT = "a link that leads out of the folder"


def _leads_out(path: Path, root: Path) -> bool:
    return path.is_symlink() and not path.resolve().is_relative_to(root)


def source_of(path: Path, spool: Path, run: str | None = None) -> RowSource | None:
    """How the rows of a file are read; None for a file that cannot hold rollouts.

    Args:
        spool: A folder for unpacked copies.
        run: Whose traces are read of a trackio project, "" for those of the only run. None: such a
            project counts as metrics alone.

    Raises:
        SourceError: a file that is refused, with the reason.
        OSError: it cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in NO_DATA or suffix == ".wandb" or is_note_on_rollouts(path):
        return None
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe waits for whoever writes it
        raise SourceError("is a pipe or a device, and no file")
    with path.open("rb") as file:
        head = file.read(_SNIFF_BYTES)
    if not head.strip():
        return None
    if head.startswith(b"PAR1"):
        return ParquetRows(path)
    if suffix == ".parquet":
        raise SourceError("its name ends in .parquet, but it is not a Parquet file")
    if is_sqlite(head):
        return None if run is None else _spooled(spool, partial(write_traces, path, run=run))
    packing = packing_of(path)
    if head[:1] == b"\x80" or (suffix in PICKLED and packing != "zip"):
        return _of_pickle(path, spool)
    _refuse_tar(path, head)
    if packing == "zip":
        return _of_zip(path, spool)
    if packing:
        unpacked = _unpacked(path, spool)
        with unpacked.open("rb") as file:
            head = file.read(_SNIFF_BYTES)
        _refuse_tar(path, head)
        path = unpacked
    if wide := wide_encoding(head):
        raise SourceError(f"seems to be text in {wide}: {conversion(wide)}")
    if is_generations(path, head):
        return _spooled(spool, partial(write_samples, path))
    source = _of_json(as_utf8(path, spool), head)
    if b'"event_type"' in head and source is not None and _has_events(source):
        with closing(source):
            return _spooled(spool, partial(write_events, source))
    return source


_NUMBERS = re.compile(r"[0-9a-f]{6,}|[0-9]+")


def name_pattern(path: PurePath) -> PurePath:
    """A path with a mark for each number in its name: files of one pattern hold the same."""
    return path.parent / _NUMBERS.sub("#", path.name)


def is_note_on_rollouts(path: Path) -> bool:
    """Whether a file is what prime-rl, tinker-cookbook or VAGEN writes beside its rollouts, and
    neither rollouts nor metrics of steps: annotations of traces, the index of a stream, the tree of
    what was logged, the numbers of an episode.
    """
    if path.name == "metrics.json":
        return path.with_name("messages.json").is_file()
    if path.name.endswith(".index.jsonl"):
        return path.with_name(path.name.removesuffix(".index.jsonl")).is_dir()
    if path.name.endswith("_logtree.json"):
        name = path.name.removesuffix("_logtree.json")
        return path.with_name(f"{name}_rollout_summaries.jsonl").is_file()
    folder = next((p for p in path.parents[:2] if p.name == "annotations"), None)
    return folder is not None and (
        folder.with_name("stream").is_dir() or folder.with_name("traces.jsonl").is_file()
    )


def _refuse_tar(path: Path, head: bytes) -> None:
    """Raises SourceError where a file is a tar archive.

    Args:
        head: Its first bytes, unpacked.
    """
    if head[257:262] == b"ustar":
        flags = _TAR_FLAGS.get(packing_of(path), "xf")
        raise SourceError(
            f"is a tar archive; unpack it first: tar {flags} {shlex.quote(path.name)}"
        )


def _spooled(spool: Path, write: Callable[[Path], object]) -> RowSource | None:
    """The rows that something writes to a new file of the spool; None where it says False."""
    copy = _copy(spool)
    try:
        return None if write(copy) is False else JsonLines(copy, is_spooled=True)
    except BadJsonError as error:
        raise SourceError(str(error)) from None


def _copy(spool: Path) -> Path:
    """The name of a new file in the spool."""
    return spool / f"copy-{len(list(spool.iterdir()))}"


def holds_metrics_too(path: Path) -> bool:
    """Whether a file with rollouts may hold metrics of the same run: a trackio project."""
    with path.open("rb") as file:
        return is_sqlite(file.read(16))


def _has_events(source: RowSource) -> bool:
    first = next(source.scan(), None)
    return first is not None and is_event(first.value)


def _of_zip(path: Path, spool: Path) -> RowSource | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names, is_log = archive.namelist(), is_inspect(archive)
    except PACKED_ERRORS as error:
        raise SourceError(f"the zip file is damaged: {error}") from None
    if any(name.endswith("/data.pkl") for name in names):
        return _of_pickle(path, spool)
    if is_log:
        return _spooled(spool, partial(write_logs, path))
    if sum(name.endswith((".json", ".jsonl", ".parquet")) for name in names) > 1:
        raise SourceError("is a zip file of several files of rows; unpack it first")
    return _of_json(as_utf8(_unpacked(path, spool), spool), b"{")


def _of_pickle(path: Path, spool: Path) -> RowSource | None:
    """The episodes of a pickle, which is read by a process that can do nothing else."""
    from .spooled.pickled import write_rollouts

    return _spooled(spool, partial(write_rollouts, path, most_bytes=MAX_BYTES))


def _unpacked(path: Path, spool: Path) -> Path:
    """A copy of what a packed file holds, up to its damage."""
    copy, size = _copy(spool), 0
    try:
        with opened(path) as file, copy.open("wb") as out:
            while block := file.read(1 << 20):
                size += len(block)
                out.write(block)
    except PACKED_ERRORS as error:
        if size == 0:
            raise SourceError(f"it cannot be unpacked: {error}") from None
    if size >= MAX_BYTES:
        copy.unlink()
        raise SourceError(f"it unpacks to more than {MAX_BYTES >> 30} GB; unpack it first")
    return copy


def _of_json(path: Path, head: bytes) -> RowSource | None:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] not in (b"{", b"[") and not head.startswith(UTF16):
        return None
    with path.open("rb") as file:
        first = next(lines_of(file), None)
    if first is None:
        return None
    if first.data is None:
        return JsonLines(path)
    try:
        value, _ = json_of(first.data)
    except BadJsonError:
        is_begun = first.data.strip()[-1:] in (b"{", b"[", b",")
        return JsonDocument(path) if is_begun and _is_document(path) else JsonLines(path)
    if isinstance(value, list):
        return JsonDocument(path)
    return JsonLines(path)


def _is_document(path: Path) -> bool:
    """Whether a file is one JSON value over several lines; one that is too large may be one."""
    if path.stat().st_size > MAX_DOCUMENT_BYTES:
        return True
    try:
        json_of(path.read_bytes())
    except BadJsonError:
        return False
    return True
