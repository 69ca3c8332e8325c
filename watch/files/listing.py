"""Which files stand below a path? Folders are listed again only where one of them has changed."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from echoscope.store.importers.sources import files_of
from echoscope.store.log.layout import Layout

_LATE_NS = 2_000_000_000
"""A folder that changed so lately may change again without another time of change."""
SHARE = 0.1
"""Of a core that listing may take where a folder of very many files gets new ones ..."""
MAX_WAIT_S = 0.5
"""... but a new file is listed so soon."""
_CHEAP_S = 0.01
_ROTATED = re.compile(r"(?P<log>.+)\.(?P<age>[1-9]\d{0,2})")


class Listing:
    """The files below a path, without those of our own runs.

    Args:
        path: A file or a folder, which may come later.
        own: A run's folder, which may stand below; it is passed over.
        say: Told of what is refused.
    """

    def __init__(self, path: Path, *, own: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self.is_there = False
        self._own, self._say = own.resolve(), say
        self._known: set[Path] = set()
        self._folders: dict[str, int] = {}
        """Folders that were listed, with their times of change."""
        self._list_at = 0.0
        """Nothing is listed again sooner."""

    def changed(self) -> list[Path] | None:
        """The files, where a folder has changed since the last call; None where none has."""
        now, started = time.monotonic(), time.thread_time()
        if now < self._list_at or not self._has_changed():
            return None
        listed = self._list()
        took = time.thread_time() - started
        self._list_at = now + (min(MAX_WAIT_S, took / SHARE) if took > _CHEAP_S else 0.0)
        return listed

    def _list(self) -> list[Path]:
        listed: list[Path] = []
        try:
            is_folder = self.path.is_dir()
            self.is_there = is_folder or self.path.exists()
            for path, problem in files_of(self.path) if self.is_there else ():
                if problem:
                    self._say(f"{shown(path, self.path)}: {problem}")
                elif not is_folder or self._is_looked_at(path):
                    listed.append(path)
            folders = {path.parent for path in listed} if is_folder else set()
            # The times are those from before the listing: what came during it is listed next time.
            before = self._folders
            self._folders = {str(f): before.get(str(f), -1) for f in self._with_parents(folders)}
        except OSError as error:  # a folder vanished while it was listed
            self._say(f"{self.path}: {error.strerror or error}")
            self._folders = {}
        self._known = set(listed)
        return listed

    def _has_changed(self) -> bool:
        """Whether a folder was changed since it was listed, or so lately that it may be again."""
        if not self._folders:
            return True
        is_other, now_ns = False, time.time_ns()
        for folder, seen in self._folders.items():
            try:
                changed_ns = os.stat(folder).st_mtime_ns
            except OSError:
                return True
            is_other |= changed_ns != seen or now_ns - changed_ns < _LATE_NS
            self._folders[folder] = changed_ns
        return is_other

    def _with_parents(self, folders: set[Path]) -> set[Path]:
        """The folders up to what is watched, and those that have no file yet."""
        all_folders = {self.path} if self.path.is_dir() else set()
        for folder in folders:
            while folder != self.path and folder not in all_folders:
                all_folders.add(folder)
                folder = folder.parent
        return all_folders | {Path(f) for f, _, _ in os.walk(self.path)} if all_folders else set()

    def _is_looked_at(self, path: Path) -> bool:
        if path in self._known:
            return True
        if path.resolve().is_relative_to(self._own):
            return False
        below = itertools.takewhile(lambda folder: folder != self.path, path.parents)
        return not any(Layout(folder).run_json.is_file() for folder in below)


def rotated(paths: Iterable[Path]) -> list[Path]:
    """Logs that were rotated away, `train.log.1` beside a `train.log`, the oldest first.

    >>> [str(p) for p in rotated(map(Path, ["a.log", "a.log.1", "a.log.2", "b.log.1"]))]
    ['a.log.2', 'a.log.1']
    """
    listed = list(paths)
    names = set(listed)
    aged = [
        (-int(match["age"]), path)
        for path in listed
        if (match := _ROTATED.fullmatch(path.name)) and path.with_name(match["log"]) in names
    ]
    return [path for _, path in sorted(aged)]


def shown(path: Path, root: Path) -> str:
    """A file's name, relative to what is watched.

    >>> shown(Path("outputs/logs/train.log"), Path("outputs"))
    'logs/train.log'
    """
    if path == root:
        return path.name
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
