"""Copies a run to object storage while it is written, or afterwards.

It reads the run's files as any reader does and takes no lock of it. Data files go first, then the
parts of the small ones, then the manifest: whatever is cut off in between, the manifest names only
what is there. A run never waits for its copy.
"""

from __future__ import annotations

import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ...checkpoints import MANIFEST_NAME, checkpoint_folders
from ...errors import NotARunError, StoreError
from ..durable import is_locked, replace_file
from ..index import RunIndex
from ..layout import Layout
from ..packs import PACK_JSON
from .bucket import Bucket
from .manifest import (
    CHECKPOINTS,
    MAIL,
    MAIL_NAME,
    MANIFESTS,
    MAX_MAIL_BYTES,
    MAX_PART_BYTES,
    RUN_NAME,
    Manifest,
    Part,
    manifest_name,
    read_manifest,
)

EVERY_S = 5.0
"""Between two looks at a run."""
_HEARTBEAT_S = 30.0
"""A manifest is written again after so long, so that readers know a process is there."""
_LAST_S = 120.0
"""For the last copy of a run that ends."""
_GRACE_S = 120.0
"""Objects that no manifest names any more stay so long: somebody may be reading them."""
_SAY_AGAIN_S = 600.0
_NUM_THREADS = 8
_ATTEMPTS = 20


class _MovedError(Exception):
    """Files moved between two looks: look again."""


@dataclass(slots=True)
class _Sent:
    """A small file as far as it was copied."""

    inode: int
    parts: tuple[Part, ...]
    num_bytes: int


def check_root(url: str, run_name: str) -> None:
    """Refuse, before a run begins, a root that cannot take its copy.

    Raises:
        StoreError: it cannot be written, or no object can have the name of the run.
    """
    _check_name(run_name)
    Bucket(url).put(f"{MANIFESTS}/.writable", b"")


def _check_name(run_name: str) -> None:
    if not RUN_NAME.fullmatch(run_name):
        raise NotARunError(
            f"{run_name!r}: a run on object storage is named by letters, digits, dots, dashes "
            "and underscores; give its folder such a name"
        )


class Pushing:
    """The copy of one run. Methods may be called from one thread at a time.

    Args:
        run_path: the run's folder; its name is the name of the copy.
        url: the root on object storage that takes the copies of many runs.
        takes_checkpoints: copy the checkpoints, too. Those that the run removes stay there.

    Raises:
        NotARunError: no run there, or its folder has a name that objects cannot have.
    """

    def __init__(self, run_path: Path, url: str, *, takes_checkpoints: bool = False) -> None:
        layout = Layout(run_path.resolve())
        _check_name(layout.root.name)
        self._index = RunIndex(layout.root)
        self._layout = layout
        self._takes_checkpoints = takes_checkpoints
        self._root = Bucket(url)
        self._own = self._root.within(layout.root.name)
        self._writer = uuid.uuid4().hex
        self._sent: dict[str, _Sent] = {}
        self._there: set[str] | None = None
        """Objects of the run that are known to be whole."""
        self._checkpoints_there: set[str] | None = None
        self._manifest: Manifest | None = None
        self._obsolete: dict[str, float] = {}
        """Objects that the manifest names no more, and since when."""

    def push(self) -> int:
        """Copy what is new; the number of objects that were written.

        Raises:
            StoreError: the storage refuses or does not answer, another process copies the run, or
                its files keep changing.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._push_once()
            except (_MovedError, FileNotFoundError):
                time.sleep(0.05)
        raise StoreError(f"{self._layout.root}: the files of the run keep changing, try again")

    def take_mail(self) -> None:
        """Put commands that readers have left at the copy into the run's mailbox."""
        for name in sorted(self._own.names(MAIL)):
            path = f"{MAIL}/{name}"
            if MAIL_NAME.fullmatch(name):
                try:
                    data = self._own.get(path)
                except FileNotFoundError:
                    continue
                target = self._layout.commands / name
                if len(data) <= MAX_MAIL_BYTES and not target.exists():
                    target.parent.mkdir(exist_ok=True)
                    replace_file(target, data)
            self._own.delete(path)

    def _push_once(self) -> int:
        there = self._known_objects()
        is_held = is_locked(self._layout.writer_lock)
        small = {"journal.tail": self._small("journal.tail")}
        self._index.refresh()
        entries = {entry.path for group in self._index.groups for entry in group.files}
        small |= {path: self._small(path) for path in self._small_files()}
        files = {path: sent.parts for path, (sent, _) in small.items() if sent.parts}
        if self._layout.pack_numbers() != sorted(self._index.packs):
            raise _MovedError
        new_parts = {part.name: data for _, new in small.values() for part, data in new}
        num_before = len(there)
        self._upload({path: self._layout.root / path for path in entries - there}, there)
        self._upload({n: d for n, d in new_parts.items() if n not in there}, there)
        num_written = len(there) - num_before
        self._sent |= {path: sent for path, (sent, _) in small.items()}
        before = self._manifest
        is_same = before is not None and (before.files, before.is_held) == (files, is_held)
        age_s = math.inf if before is None else time.time() - before.written_at
        if not is_same or (is_held and age_s > _HEARTBEAT_S):
            self._write_manifest(files, is_held)
        named = {*entries, *(part.name for parts in files.values() for part in parts)}
        self._forget_obsolete(there - named)
        return num_written + self._push_checkpoints()

    def _push_checkpoints(self) -> int:
        """Copy those that are whole, each with its manifest last; the number of objects written."""
        if not self._takes_checkpoints:
            return 0
        if self._checkpoints_there is None:
            self._checkpoints_there = set(self._own.names(CHECKPOINTS, is_deep=True))
        there, num_before = self._checkpoints_there, len(self._checkpoints_there)
        for folder in checkpoint_folders(self._layout.checkpoints):
            if f"{folder.name}/{MANIFEST_NAME}" in there:
                continue
            paths = sorted(folder.rglob("*"), key=lambda path: path.name == MANIFEST_NAME)
            for path in filter(Path.is_file, paths):
                name = f"{folder.name}/{path.relative_to(folder).as_posix()}"
                self._own.put(f"{CHECKPOINTS}/{name}", path)
                there.add(name)
        return len(there) - num_before

    def _known_objects(self) -> set[str]:
        """Objects of the run; listed once, and checked against whoever copied it before."""
        if self._there is None:
            self._manifest = self._read_manifest()
            self._there = {
                name
                for name in self._own.names("", is_deep=True)
                if not name.startswith((f"{MAIL}/", f"{CHECKPOINTS}/"))
            }
        return self._there

    def _small_files(self) -> list[str]:
        """Relative paths of the small files, the live piece of the journal last."""
        index = self._index
        packs = [f"pack/{number:06d}/{PACK_JSON}" for number in index.packs]
        pieces = [n for n in range(1, index.live.number) if n not in index.packs]
        return [
            "run.json",
            *packs,
            *(f"journal/{number:06d}.ndjson" for number in pieces),
            "journal.ndjson",
        ]

    def _small(self, path: str) -> tuple[_Sent, list[tuple[Part, bytes]]]:
        """A small file as parts, and those of them that are new with their bytes.

        The journal only grows, and keeps its inode when a piece of it is complete.
        """
        file, live = self._layout.root / path, self._index.live
        stats = os.stat(file)
        is_live = path == "journal.ndjson"
        size = live.end if is_live else stats.st_size
        if is_live and stats.st_ino != live.inode:
            raise _MovedError
        before = _Sent(stats.st_ino, (), 0)
        if is_live or path.startswith("journal/"):
            sent = self._sent.get(path) or self._sent.get("journal.ndjson")
            if sent is not None and sent.inode == stats.st_ino and size >= sent.num_bytes:
                before = sent
        data = _bytes_of(file, before.num_bytes, size)
        new = [(Part.of(block), block) for block in _blocks(data)]
        parts = (*before.parts, *(part for part, _ in new))
        return _Sent(stats.st_ino, parts, size), new

    def _upload(self, objects: dict[str, Path] | dict[str, bytes], there: set[str]) -> None:
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            puts = {name: pool.submit(self._own.put, name, c) for name, c in objects.items()}
            for name, put in puts.items():
                put.result()
                there.add(name)

    def _read_manifest(self) -> Manifest | None:
        """The manifest there; StoreError where it is another run's, or another process writes."""
        try:
            manifest = read_manifest(self._root, self._layout.root.name)
        except FileNotFoundError:
            return None
        if manifest.run_id != self._index.run_id:
            raise StoreError(
                f"{self._own.url} holds another run ({manifest.run_id!r}): rename the folder of "
                "this one, or copy it to another root"
            )
        own = self._manifest
        if own is not None and manifest.writer not in (self._writer, own.writer):
            raise StoreError(
                f"{self._own.url}: another process has begun to copy this run; this one stops"
            )
        return manifest

    def _write_manifest(self, files: dict[str, tuple[Part, ...]], is_held: bool) -> None:
        before = self._read_manifest()
        manifest = Manifest(
            run_id=self._index.run_id,
            writer=self._writer,
            generation=1 if before is None else before.generation + 1,
            written_at=time.time(),
            is_held=is_held,
            files=files,
        )
        self._root.put(manifest_name(self._layout.root.name), manifest.to_bytes())
        self._manifest = manifest

    def _forget_obsolete(self, unnamed: Iterable[str]) -> None:
        now = time.monotonic()
        self._obsolete = {name: self._obsolete.get(name, now) for name in unnamed}
        there = self._known_objects()
        for name, since in self._obsolete.items():
            if now - since > _GRACE_S:
                self._own.delete(name)
                there.discard(name)


class Copier:
    """Copies a run from a thread of its own until it is closed.

    Args:
        on_message: told, in a sentence, when the copy fails and when it works again.
        takes_checkpoints: see `Pushing`.
    """

    def __init__(
        self,
        run_path: Path,
        url: str,
        on_message: Callable[[str], None],
        *,
        takes_checkpoints: bool = False,
    ) -> None:
        self._pushing = Pushing(run_path, url, takes_checkpoints=takes_checkpoints)
        self._path, self._url, self._tell = run_path.resolve(), url, on_message
        self._option = " --checkpoints" if takes_checkpoints else ""
        self._is_closing = threading.Event()
        self._failed_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="echoscope-copy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy the rest. Says so where it could not be done in time."""
        self._is_closing.set()
        self._thread.join()
        deadline = time.monotonic() + _LAST_S
        while self._path.exists() and not self._once():  # a run that could not start is removed
            if time.monotonic() > deadline:
                again = f"`echoscope runs copy {self._path} {self._url}{self._option}`"
                self._tell(f"the copy is not whole: {again} ends it")
                return
            time.sleep(1.0)

    def _run(self) -> None:
        while not self._is_closing.wait(EVERY_S):
            self._once()

    def _once(self) -> bool:
        try:
            self._pushing.push()
            self._pushing.take_mail()
        except (StoreError, OSError) as error:
            now = time.monotonic()
            if self._failed_at is None or now - self._failed_at > _SAY_AGAIN_S:
                self._failed_at = now
                self._tell(f"cannot copy the run now, and tries again: {error}")
            return False
        if self._failed_at is not None:
            self._failed_at = None
            self._tell("the copy of the run is complete again")
        return True


def _bytes_of(file: Path, start: int, end: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(start)
        data = stream.read(end - start)
    if len(data) < end - start:
        raise _MovedError
    return data


def _blocks(data: bytes) -> list[bytes]:
    return [data[start : start + MAX_PART_BYTES] for start in range(0, len(data), MAX_PART_BYTES)]
