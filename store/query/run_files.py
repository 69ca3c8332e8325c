"""The only files that DuckDB can reach: the data files of runs, to be read.

DuckDB's own access to the disk is switched off. What stands in for it has no way to write, so
whatever SQL finds its way past the check of queries, there is nothing that it could write to. (Its
setting `allowed_directories` would not do: what it allows to be read may be written, too.)
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

from ..log.index import VisibleFile
from ..log.layout import is_data_path
from ..log.packs.salvage import Salvage

SCHEME = "run"


class _OpenFile:
    """A file that several threads read at once, each from where it last sought to.

    DuckDB shares one file between its threads and seeks before it reads: a position that is common
    to them would be moved by one thread while another one reads.
    """

    def __init__(self, path: Path, left: Salvage | None = None) -> None:
        self._descriptor: int | None = None
        self._positions: dict[int, int] = {}
        self._left = left
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self.tell()
        elif whence == os.SEEK_END:
            offset += self._size()
        self._positions[threading.get_ident()] = offset
        return offset

    def tell(self) -> int:
        return self._positions.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        position = self.tell()
        wanted = max(0, self._size() - position if size < 0 else size)
        data = self._pread(wanted, position)
        self._positions[threading.get_ident()] = position + len(data)
        return data

    def _size(self) -> int:
        return _size_of(os.fstat(self._opened()), self._left)

    def _pread(self, wanted: int, position: int) -> bytes:
        if self._left is None:
            return os.pread(self._opened(), wanted, position)
        inside = max(0, min(wanted, self._left.data_end - position))
        data = os.pread(self._opened(), inside, position) if inside else b""
        data = data.ljust(inside, b"\0")  # between proven row groups there may be nothing any more
        behind = max(0, position - self._left.data_end)
        return data + self._left.tail[behind : behind + wanted - inside]

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _opened(self) -> int:
        if self._descriptor is None:
            raise ValueError("the file is closed")
        return self._descriptor


def _size_of(stats: os.stat_result, left: Salvage | None) -> int:
    return stats.st_size if left is None else left.data_end + len(left.tail)


class RunFiles(AbstractFileSystem):  # type: ignore[misc]
    """Data files of several runs under names such as `run://0/seg/turns/00000001-1a2b3c4d.parquet`.

    The number is the one that `add` gave to the run's folder.
    """

    protocol = SCHEME
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self._roots: list[Path] = []
        self._cut: dict[str, tuple[str, Salvage]] = {}
        """Names of damaged files that are read in part: the name of the file, and what is left."""

    def add(self, root: Path) -> str:
        """Give access to the data files of one run; what their names begin with."""
        self._roots.append(root)
        return f"{SCHEME}://{len(self._roots) - 1}/"

    def name_of(self, prefix: str, file: VisibleFile) -> str:
        """The name under which a file is read; of a damaged one, what is left of it is a file of
        its own, so that no footer that was kept in memory is taken for its footer."""
        name = prefix + file.entry.path
        if file.left is None:
            return name
        digest = hashlib.sha256(file.left.tail).hexdigest()[:16]
        part = f"{name.removesuffix('.parquet')}.{digest}.parquet"
        self._cut[part] = name, file.left
        return part

    def open(self, path: str, mode: str = "rb", **_: Any) -> _OpenFile:
        if mode != "rb":
            raise PermissionError(f"{path}: the files of a run are only read here")
        return _OpenFile(self._path(path), self._left(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        stats = self._path(path).stat()
        size = _size_of(stats, self._left(path))
        return {"name": path, "size": size, "type": "file", "mtime": stats.st_mtime}

    def modified(self, path: str) -> Any:
        from datetime import UTC, datetime

        return datetime.fromtimestamp(self._path(path).stat().st_mtime, tz=UTC)

    def glob(self, path: str, **_: Any) -> list[str]:
        """The name itself: names are asked for one by one, and listed for nobody."""
        return [path] if self._find(path) else []

    def exists(self, path: str, **_: Any) -> bool:
        file = self._find(path)
        return file is not None and file.is_file()

    def isfile(self, path: str) -> bool:
        return self.exists(path)

    def isdir(self, path: str) -> bool:
        return False

    def _path(self, name: str) -> Path:
        file = self._find(name)
        if file is None:
            raise PermissionError(f"{name}: only data files of the run can be read")
        return file

    def _left(self, name: str) -> Salvage | None:
        return self._cut[name][1] if name in self._cut else None

    def _find(self, name: str) -> Path | None:
        name, _ = self._cut.get(name, (name, None))
        number, _, relative = name.removeprefix(f"{SCHEME}://").partition("/")
        if not (number.isdecimal() and int(number) < len(self._roots) and is_data_path(relative)):
            return None
        return self._roots[int(number)] / relative
