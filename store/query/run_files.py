"""The only files that DuckDB can reach: the data files of runs, to be read.

DuckDB's own access to the disk is switched off. What stands in for it has no way to write, so
whatever SQL finds its way past the check of queries, there is nothing that it could write to. (Its
setting `allowed_directories` would not do: what it allows to be read may be written, too.)
"""

from __future__ import annotations

import io
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

from ..log.layout import is_data_path

SCHEME = "run"


class _OpenFile(io.FileIO):
    """A file that several threads read at once, each from where it last sought to.

    DuckDB shares one file between its threads and seeks before it reads: a position that is common
    to them would be moved by one thread while another one reads.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._positions: dict[int, int] = {}

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_CUR:
            offset += self.tell()
        elif whence == os.SEEK_END:
            offset += self._size()
        self._positions[threading.get_ident()] = offset
        return offset

    def tell(self) -> int:
        return self._positions.get(threading.get_ident(), 0)

    def read(self, size: int | None = -1, /) -> bytes:
        position = self.tell()
        if size is None or size < 0:
            size = max(0, self._size() - position)
        data = os.pread(self.fileno(), size, position)
        self._positions[threading.get_ident()] = position + len(data)
        return data

    def _size(self) -> int:
        return os.fstat(self.fileno()).st_size


class RunFiles(AbstractFileSystem):  # type: ignore[misc]
    """Data files of several runs under names such as `run://0/seg/turns/00000001-1a2b3c4d.parquet`.

    The number is the one that `add` gave to the run's folder.
    """

    protocol = SCHEME
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self._roots: list[Path] = []

    def add(self, root: Path) -> str:
        """Give access to the data files of one run; what their names begin with."""
        self._roots.append(root)
        return f"{SCHEME}://{len(self._roots) - 1}/"

    def open(self, path: str, mode: str = "rb", **_: Any) -> _OpenFile:
        if mode != "rb":
            raise PermissionError(f"{path}: the files of a run are only read here")
        return _OpenFile(self._path(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        stats = self._path(path).stat()
        return {"name": path, "size": stats.st_size, "type": "file", "mtime": stats.st_mtime}

    def modified(self, path: str) -> Any:
        return datetime.fromtimestamp(self._path(path).stat().st_mtime, tz=UTC)

    def glob(self, path: str, **_: Any) -> list[str]:
        """The name itself: names are asked for one by one, and listed for nobody."""
        return [path] if self._find(path) else []

    def _path(self, name: str) -> Path:
        file = self._find(name)
        if file is None:
            raise PermissionError(f"{name}: only data files of the run can be read")
        return file

    def _find(self, name: str) -> Path | None:
        number, _, relative = name.removeprefix(f"{SCHEME}://").partition("/")
        if not (number.isdecimal() and int(number) < len(self._roots) and is_data_path(relative)):
            return None
        return self._roots[int(number)] / relative
