"""What prime-rl writes of a trace after its episode: which update used it, and its credit.

Episodes stand in `traces/stream/00000.jsonl.zst` and so on (before: `traces.jsonl`), each written
once, as it ended. What is learned later is an update that names the trace, in
`traces/annotations/PRODUCER/00000.jsonl.zst` (before: `annotations/PRODUCER.jsonl` beside
`traces.jsonl`). Here the updates of an episode are found; `formats/verifiers.py` applies them.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..lines import BadJsonError, json_of, lines_of
from ..packed_file import ERRORS as PACKED_ERRORS
from ..packed_file import opened

_FOLDER = "annotations"
_STREAM = "stream"
_INDEX = ".index.jsonl"
_MAX_FILES = 10_000
_MAX_UPDATES = 64
"""Of a trace: the last ones count."""
_TRACE = re.compile(rb'"trace_id"\s*:\s*"([^"\\]{1,200})"')
_HEAD = 4096

Unpack = Callable[[Path], Path]
"""Gives the file itself, or an unpacked copy. Raises ValueError where it cannot be unpacked."""


def annotations_beside(path: Path) -> Path | None:
    """The folder with the updates of a file of episodes; None where there is none."""
    home = path.parent.parent if path.parent.name == _STREAM else path.parent
    folder = home / _FOLDER
    return folder if folder.is_dir() and not folder.is_symlink() else None


def is_annotation(path: Path) -> bool:
    """Whether a file holds such updates, or is the index of a stream of episodes or updates."""
    if path.name.endswith(_INDEX):
        return path.with_name(path.name.removesuffix(_INDEX)).is_dir()
    if _FOLDER not in (path.parent.name, path.parent.parent.name) or not _is_stream_file(path):
        return False
    try:
        with opened(path) as file:
            return _TRACE.search(file.read(_HEAD)) is not None
    except PACKED_ERRORS:
        return False


def _is_stream_file(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.zst")) and not path.name.endswith(_INDEX)


def _files(folder: Path) -> Iterator[Path]:
    """The files with updates, those of a producer in the order in which they were written."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            continue
        for file in sorted(entry.iterdir()) if entry.is_dir() else [entry]:
            if _is_stream_file(file) and file.is_file() and not file.is_symlink():
                yield file


@dataclass(slots=True)
class Annotations:
    """The updates of a run, by the trace that they name. Only their places are kept, in a file."""

    files: Sequence[Path]
    places: Path
    _database: sqlite3.Connection | None = None

    def of(self, episode: Mapping[str, Any]) -> list[bytes]:
        """The updates of an episode's traces, each trace's in the order in which they were written.

        Raises:
            OSError: a file with updates cannot be read.
        """
        traces = episode.get("traces")
        out: list[bytes] = []
        for trace in traces if isinstance(traces, list) else ():
            identity = trace.get("id") if isinstance(trace, Mapping) else None
            if isinstance(identity, str):
                out += self._of_trace(identity.encode(errors="replace"))
        return out

    def _of_trace(self, identity: bytes) -> list[bytes]:
        if self._database is None:
            self._database = sqlite3.connect(self.places)
        found = self._database.execute(
            "SELECT file, place, size FROM updates WHERE trace = ? ORDER BY rowid DESC LIMIT ?",
            (identity, _MAX_UPDATES),
        ).fetchall()
        out: list[bytes] = []
        for number, place, size in reversed(found):
            with self.files[number].open("rb") as file:
                file.seek(place)
                out.append(file.read(size))
        return out

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def annotations_of(folder: Path, spool: Path, unpack: Unpack) -> Annotations | None:
    """The updates in a folder; None where it holds none.

    Args:
        spool: A folder for their places, which are found once.

    Raises:
        OSError: a file cannot be read, or the spool's disk refuses.
    """
    files: list[Path] = []
    state = hashlib.blake2b(digest_size=16)
    for path in islice(_files(folder), _MAX_FILES):
        found = path.stat()
        state.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode(errors="replace"))
        try:
            files.append(unpack(path))
        except ValueError:
            continue  # the import refuses that file by itself
    places = spool / f"annotations-{state.hexdigest()}.sqlite"
    if not places.exists():
        try:
            _note(files, places)
        except sqlite3.Error as error:
            raise OSError(f"where the annotations stand cannot be noted: {error}") from None
    with closing(sqlite3.connect(places)) as database:
        has_any = database.execute("SELECT 1 FROM updates LIMIT 1").fetchone() is not None
    return Annotations(files=files, places=places) if has_any else None


def _note(files: Sequence[Path], target: Path) -> None:
    """Write where the updates stand."""
    partial = target.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as database, database:
        # Nothing is lost with the file: it is made again.
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE updates (trace BLOB, file INT, place INT, size INT)")
        database.executemany("INSERT INTO updates VALUES (?, ?, ?, ?)", _places(files))
        database.execute("CREATE INDEX by_trace ON updates (trace)")
    partial.replace(target)


def _places(files: Sequence[Path]) -> Iterator[tuple[bytes, int, int, int]]:
    for number, path in enumerate(files):
        with path.open("rb") as file:
            for line in lines_of(file):
                found = _TRACE.search(line.data[:_HEAD]) if line.data else None
                if found:
                    yield found[1], number, line.offset, line.size


def with_updates(episode: Mapping[str, Any], updates: Sequence[bytes]) -> dict[str, Any]:
    """The episode with its updates under `_annotations`; a torn update is left out."""
    values: list[Any] = []
    for update in updates:
        try:
            values.append(json_of(update)[0])
        except BadJsonError:
            continue
    return {**episode, "_annotations": values}
