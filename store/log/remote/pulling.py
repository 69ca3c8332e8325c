"""Reads runs from object storage, through a copy on this disk that follows them.

A root such as `s3://team/runs` becomes a folder of runs in this user's cache. The small files of a
run follow its manifest; a data file is fetched before it is first read, and checked as any other.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import NotARunError, StoreError
from ...models import cache_folder
from ..durable import is_locked, new_id, read_checked_json, take_lock, to_checked_json_bytes
from ..layout import COPY_JSON, FileEntry, Layout, is_data_path
from .bucket import Bucket, BucketError, remote_address
from .manifest import MAIL, MANIFESTS, RUN_NAME, Manifest, Part, read_manifest

_CHECKPOINT_FILE = re.compile(r"checkpoints/step_[0-9]{6,}(?:/[A-Za-z0-9][A-Za-z0-9._-]*){1,3}")
ROOT_JSON = ".root.json"
LOCK = ".copy.lock"
EVERY_S = 5.0
"""A copy is at most so old while somebody reads it."""
_HELD_S = 120.0
"""A run whose manifest has not changed for so long is held by nobody."""
_NUM_THREADS = 16
_LOCK_S = 60.0

_looked: dict[Path, float] = {}
"""When this process looked for news of a copy last."""
_answered: dict[Path, float] = {}
"""When it got an answer last."""
_listed: dict[Path, float] = {}
"""When the manifest of a copy was written, by the clock of the storage."""
_lock = threading.Lock()


def local_folder(path: str | Path) -> Path:
    """The folder on this disk for a path: itself, or the copy of a run or root far away.

    Raises:
        NotARunError: nothing is at that address.
        StoreError: the storage refuses or does not answer, and nothing was read from it before.
    """
    url = remote_address(path)
    if url is None:
        return Path(path)
    root = RemoteRoot(Bucket(url))
    above, name = root.bucket.parent()
    if above.url.partition("?")[0].endswith(":/") or not RUN_NAME.fullmatch(name) or root.is_known:
        return root.opened()
    return RemoteRoot(above).opened_run(name) or root.opened()


@dataclass(frozen=True)
class RemoteRoot:
    """Many runs under one address."""

    bucket: Bucket

    @property
    def folder(self) -> Path:
        """Where their copies lie."""
        digest = hashlib.sha256(self.bucket.url.encode()).hexdigest()[:16]
        return cache_folder() / "roots" / digest

    @classmethod
    def of(cls, folder: Path) -> RemoteRoot | None:
        """The root whose copy a folder is; None for any other folder."""
        try:
            value = json.loads((folder / ROOT_JSON).read_text())
            return cls(Bucket(str(value["url"])))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def is_known(self) -> bool:
        """Whether it was opened as a root before."""
        return (self.folder / ROOT_JSON).exists()

    def opened(self) -> Path:
        """The folder, with every run that is there now."""
        is_first = not self.is_known
        try:
            names = self.pull()
        except BucketError:
            if is_first:
                raise
            return self.folder
        if not names and is_first:
            raise NotARunError(
                f"{self.bucket.url}: no run was copied there; `echoscope runs copy RUN "
                f"{self.bucket.url}` copies one"
            )
        self._make_folder()
        return self.folder

    def opened_run(self, name: str) -> Path | None:
        """The folder of one run; None where there is none of that name."""
        path = self.folder / name
        run = RemoteRun(path, self.bucket)
        try:
            is_there = run.pull()
        except BucketError:
            if not Layout(path).is_run:
                raise
            return path
        return path if is_there else None

    def pull(self) -> list[str]:
        """Follow every run that has changed; the names of all."""
        listed = self.bucket.names(MANIFESTS)
        names = [name.removesuffix(".json") for name in listed if name.endswith(".json")]
        names = [name for name in names if RUN_NAME.fullmatch(name)]
        if names:
            self._make_folder()
        changed = []
        for name in names:
            path, written_at = self.folder / name, listed[f"{name}.json"][1]
            _looked[path] = _answered[path] = time.monotonic()
            if _listed.get(path) != written_at or not (path / COPY_JSON).exists():
                changed.append(path)
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            futures = {p: pool.submit(RemoteRun(p, self.bucket).pull) for p in changed}
            for path, future in futures.items():
                future.result()
                _listed[path] = listed[f"{path.name}.json"][1]
        for path in self.folder.glob(f"*/{COPY_JSON}"):
            if path.parent.name not in names:
                shutil.rmtree(path.parent, ignore_errors=True)
        return names

    def follow(self) -> None:
        """As `RemoteRun.follow`, of all runs."""
        _pull_if_due(self.folder, self.pull)

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.is_known:
            _replace(self.folder / ROOT_JSON, json.dumps({"url": self.bucket.url}).encode())


@dataclass(frozen=True)
class RemoteRun:
    """A run far away, and its copy on this disk."""

    path: Path
    root: Bucket
    """The root that holds it."""

    @cached_property
    def _own(self) -> Bucket:
        return self.root.within(self.path.name)

    @classmethod
    def of(cls, path: Path) -> RemoteRun | None:
        """The run whose copy a folder is; None for a run of this disk."""
        state = _state(path)
        return cls(path, Bucket(str(state["root"]))) if state else None

    @property
    def url(self) -> str:
        return self._own.url

    def follow(self) -> None:
        """`pull`, where the last one is some seconds ago. A storage that is silent is no error."""
        _pull_if_due(self.path, self.pull)

    def pull(self) -> bool:
        """Bring the small files to the state of the manifest; whether there is such a run.

        Raises:
            StoreError: the storage refuses or does not answer, or what it holds is damaged.
        """
        for _ in range(5):
            try:
                manifest = read_manifest(self.root, self.path.name)
            except FileNotFoundError:
                return False
            _looked[self.path] = _answered[self.path] = time.monotonic()
            self.path.mkdir(parents=True, exist_ok=True)
            with self._locked():
                try:
                    self._apply(manifest)
                except FileNotFoundError:
                    continue  # parts that only an older manifest names are removed after a while
                return True
        raise StoreError(f"{self.url}: its manifest names objects that are not there")

    def fetch(self, entries: Iterable[FileEntry]) -> None:
        """Bring data files here that are not. One that is damaged or gone is left to the reader."""
        missing = [entry for entry in entries if not (self.path / entry.path).exists()]
        if not missing:
            return
        with self._locked(), ThreadPoolExecutor(_NUM_THREADS) as pool:
            list(pool.map(self._fetch, [entry.path for entry in missing]))

    def fetch_all(self, on_progress: Callable[[int, int], None]) -> None:
        """Bring everything here, and make a run of this disk of the copy."""
        objects = [
            path
            for path in self._own.names("", is_deep=True)
            if is_data_path(path) or _CHECKPOINT_FILE.fullmatch(path)
        ]
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            for done, _ in enumerate(pool.map(self._fetch, objects), 1):
                on_progress(done, len(objects))
        for name in (COPY_JSON, LOCK):
            (self.path / name).unlink()

    def post(self, name: str, data: bytes) -> None:
        """Leave a command for whoever copies the run. Raises BucketError."""
        self._own.put(f"{MAIL}/{name}", data)

    def _fetch(self, path: str) -> None:
        """Bring one object here under its own path, if it is there and not yet here."""
        target = self.path / path
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.{new_id()}.tmp")
        try:
            self._own.download(path, temporary)
            os.replace(temporary, target)
        except FileNotFoundError:
            return
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time changes the copy."""
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not take_lock(descriptor, _LOCK_S):
                raise StoreError(f"{self.path}: another process is fetching this run for a minute")
            yield
        finally:
            os.close(descriptor)

    def _apply(self, manifest: Manifest) -> None:
        state = _state(self.path)
        if state and state["run_id"] != manifest.run_id:  # another run under the same name
            for entry in self.path.iterdir():
                if entry.name != LOCK:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            state = None
        stored = (state or {}).get("files", {})
        had = {path: tuple(map(tuple, parts)) for path, parts in stored.items()}
        # Packs and complete pieces before the live one: a reader looks for them by its number.
        for path in sorted(
            manifest.files, key=lambda p: (p == "journal.tail", p == "journal.ndjson", p)
        ):
            parts = manifest.files[path]
            target = self.path / path
            before = had.get(path, ()) if target.exists() else ()
            if before == parts:
                continue
            if before and parts[: len(before)] == before and path == "journal.ndjson":
                with target.open("ab") as file:
                    file.write(self._content(parts[len(before) :]))
            else:
                self._write(target, parts)
        for path in had.keys() - manifest.files.keys():
            stale = self.path / path
            shutil.rmtree(stale.parent) if path.startswith("pack/") else stale.unlink(
                missing_ok=True
            )
        if any(path.startswith("pack/") for path in manifest.files.keys() - had.keys()):
            shutil.rmtree(self.path / "seg", ignore_errors=True)  # what is still named comes again
        is_same = state is not None and state["generation"] == manifest.generation
        value = {
            "run_id": manifest.run_id,
            "root": self.root.url,
            "generation": manifest.generation,
            "written_at": manifest.written_at,
            "is_held": manifest.is_held,
            "seen_at": state["seen_at"] if is_same and state else time.time(),
            "files": manifest.files,
        }
        _replace(self.path / COPY_JSON, to_checked_json_bytes(value))

    def _content(self, parts: Iterable[Part]) -> bytes:
        return b"".join(part.check(self._own.get(part.name)) for part in parts)

    def _write(self, target: Path, parts: Iterable[Part]) -> None:
        data = self._content(parts)
        if target.parent.parent.name == "pack" and not target.parent.exists():
            partial = target.parent.with_name(f"{target.parent.name}.{new_id()}.tmp")
            partial.mkdir(parents=True)
            (partial / target.name).write_bytes(data)
            os.replace(partial, target.parent)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, data)


def bring_home(url: str, target: Path, on_progress: Callable[[int, int], None]) -> Path:
    """Copy a whole run from object storage, checkpoints included, as a run of this disk.

    Args:
        target: the folder it gets, which must not exist yet.
        on_progress: told how many of how many objects are here.

    Raises:
        NotARunError: there is none.
        StoreError: the folder exists, the storage does not answer, or the copy is not whole.
    """
    above, name = Bucket(url).parent()
    if target.exists():
        raise StoreError(f"{target} exists: name a folder that does not, or remove it")
    partial = target.with_name(f".{target.name}.{new_id()}.tmp") / name
    run = RemoteRun(partial, above)
    try:
        if not run.pull():
            raise NotARunError(f"{url}: no run was copied there")
        run.fetch_all(on_progress)
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial.parent, ignore_errors=True)
    return target


def is_held(layout: Layout) -> bool:
    """Whether a process writes a run: it holds the lock, or said so at the copy lately."""
    if is_locked(layout.writer_lock):
        return True
    state = _state(layout.root)
    if not state or not state["is_held"]:
        return False
    heard = _answered.get(layout.root)
    is_silent = heard is None or time.monotonic() - heard > _HELD_S  # then nobody knows
    return is_silent or time.time() - float(state["seen_at"]) < _HELD_S


def refuse_copy(layout: Layout) -> None:
    """Raises StoreError for the copy of a run far away, which nobody writes to."""
    run = RemoteRun.of(layout.root)
    if run is not None:
        raise StoreError(
            f"{layout.root} is a copy of {run.url}, which is only read: `echoscope runs copy "
            f"{run.url} runs/{layout.root.name}` brings the run home"
        )


def refuse_copy_of_root(root: Path) -> None:
    """Raises StoreError for the copy of a root far away, whose files nobody changes."""
    remote = RemoteRoot.of(root)
    if remote is not None:
        raise StoreError(f"{root} is a copy of {remote.bucket.url}, which is only read")


def _state(path: Path) -> Mapping[str, Any] | None:
    if not (path / COPY_JSON).exists():
        return None
    try:
        return read_checked_json(path / COPY_JSON)
    except StoreError:
        return None  # cut off: the next pull writes it anew


def _pull_if_due(path: Path, pull: Callable[[], object]) -> None:
    now = time.monotonic()
    with _lock:
        if now - _looked.get(path, -EVERY_S) < EVERY_S:
            return
        _looked[path] = now
    with suppress(StoreError):  # what is here is shown; it says itself how old it is
        pull()


def _replace(target: Path, data: bytes) -> None:
    """Let readers see the file as it was or as it is; not synced: it can be fetched again."""
    temporary = target.with_name(f"{target.name}.{new_id()}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, target)
