"""Rows of a data file that a world draws its tasks from: JSON lines, a JSON list, or Parquet.

JSON lines may be packed by gzip.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ..base import EnvUnavailableError, shorten

MAX_FILE_BYTES = 1 << 30
Row = Mapping[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


def shipped(name: str) -> str:
    """The path of a file that comes with the worlds."""
    return str(Path(__file__).parents[1] / "data" / name)


def cached_by_files(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep what a reader of files returned, for as long as the files stay as they are.

    Every sibling reads the same file. Texts among the arguments are paths; time and size tell
    whether a file has changed.
    """

    def decorated(reader: Callable[P, T]) -> Callable[P, T]:
        @lru_cache(maxsize=most)
        def kept(stamps: tuple[Any, ...], *args: Any, **named: Any) -> T:
            return reader(*args, **named)

        @wraps(reader)
        def read(*args: P.args, **named: P.kwargs) -> T:
            values = (*args, *named.values())
            stamps = tuple(_stamp(value) for value in values if isinstance(value, str))
            return kept(stamps, *args, **named)  # type: ignore[arg-type] # hashable, all of them

        return read

    return decorated


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None  # said in words where the file is read
    return status.st_mtime_ns, status.st_size


def read_rows(
    path: str, fields: Iterable[str], *, most: int | None = None, keep: bool = True
) -> tuple[Row, ...]:
    """The rows of a file, in its order.

    Args:
        path: of a `.jsonl`, `.jsonl.gz`, `.json` (a list of objects) or `.parquet` file.
        fields: what every row must have.
        most: rows that are read; None for all.
        keep: hold the rows in memory, for the next environment that reads this file.

    Raises:
        EnvUnavailableError: the file cannot be read, holds no rows, or a row lacks a field. The
            sentence names the file and the row.
    """
    _check_file(path)
    rows = (_kept if keep else _read)(path, most)
    if not rows:
        raise EnvUnavailableError(f"{path} holds no rows")
    required = tuple(fields)
    for number, row in enumerate(rows, start=1):
        missing = [name for name in required if name not in row]
        if missing:
            its_fields = ", ".join(shorten(str(name), 20) for name in list(row)[:8])
            raise EnvUnavailableError(
                f"{path}, row {number} has no {missing[0]!r}: it has {its_fields or 'nothing'}"
            )
    return rows


def read_items(
    path: str, fields: Iterable[str], make: Callable[[Row], T | None], what: str
) -> tuple[T, ...]:
    """What `make` makes of the rows of a file; rows of which it makes None are left out.

    Raises:
        EnvUnavailableError: the file cannot be read, or `PATH holds no WHAT`.
    """
    items = tuple(item for row in read_rows(path, fields) if (item := make(row)) is not None)
    if not items:
        raise EnvUnavailableError(f"{path} holds no {what}")
    return items


def read_mapping(path: str) -> Mapping[str, Any]:
    """The content of a `.json` file that holds one object.

    Raises:
        EnvUnavailableError: the file cannot be read, or is not an object.
    """
    _check_file(path)
    try:
        content = _parsed(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise EnvUnavailableError(f"cannot read {path}: {shorten(str(error), 200)}") from None
    if not isinstance(content, dict):
        raise EnvUnavailableError(f"{path} must hold one object")
    return content


def _check_file(path: str) -> None:
    """Raise unless this is a regular file that is not too large."""
    file = Path(path)
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EnvUnavailableError(f"cannot read {shorten(path, 200)}: {reason}") from None
    if not file.is_file():
        raise EnvUnavailableError(f"{path} is not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise EnvUnavailableError(
            f"{path} has {status.st_size} bytes, but at most {MAX_FILE_BYTES} are read: split it"
        )


def _read(path: str, most: int | None) -> tuple[Row, ...]:
    readers = {
        ".jsonl": _json_lines,
        ".json": _json_list,
        ".parquet": _parquet,
        ".jsonl.gz": _packed_lines,
    }
    ending = "".join(Path(path).suffixes[-2:]) if path.endswith(".gz") else Path(path).suffix
    reader = readers.get(ending)
    if reader is None:
        raise EnvUnavailableError(
            f"{path} is none of {', '.join(readers)}: convert it, or name it by what it is"
        )
    try:
        return tuple(reader(path, most))
    except (OSError, UnicodeDecodeError) as error:
        raise EnvUnavailableError(f"cannot read {path}: {shorten(str(error), 200)}") from None


_kept = cached_by_files(8)(_read)


def _json_lines(path: str, most: int | None) -> list[Row]:
    with Path(path).open(encoding="utf-8") as lines:
        return _objects(lines, path, most)


def _packed_lines(path: str, most: int | None) -> list[Row]:
    """A few bytes may unpack to any number of them, so they are counted."""
    try:
        with gzip.open(path) as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise EnvUnavailableError(f"cannot unpack {path}: {shorten(str(error), 200)}") from None
    if len(content) > MAX_FILE_BYTES:
        raise EnvUnavailableError(
            f"{path} unpacks to more than {MAX_FILE_BYTES} bytes, which is the most that is read: "
            "split it"
        )
    return _objects(io.StringIO(content.decode("utf-8")), path, most)


def _objects(lines: Iterable[str], path: str, most: int | None) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        if most is not None and len(rows) >= most:
            break
        if line.strip():
            rows.append(_object(_parsed(line, f"{path}, line {number}"), path, number))
    return rows


def _json_list(path: str, most: int | None) -> list[Row]:
    content = _parsed(Path(path).read_text(encoding="utf-8"), path)
    if not isinstance(content, list):
        raise EnvUnavailableError(f"{path} must hold a list of objects, or be a .jsonl file")
    return [_object(value, path, number) for number, value in enumerate(content[:most], start=1)]


def _parquet(path: str, most: int | None) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise EnvUnavailableError(f"cannot read {path}: {shorten(str(error), 200)}") from None
    rows: list[Row] = table.slice(0, most).to_pylist()
    return rows


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EnvUnavailableError(f"{where} is not JSON: {shorten(str(error), 100)}") from None


def _object(value: Any, path: str, number: int) -> Row:
    if not isinstance(value, dict):
        raise EnvUnavailableError(f"{path}, row {number} is not an object")
    return value
