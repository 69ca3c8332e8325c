"""The start of a run: a free folder is claimed, and its files are laid out.

A start may be killed or refused at any instant. A folder counts as a run from `run.json` on, which
is written last; what lies there before is taken away by the next start.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import RunBusyError, RunExistsError, StoreWriteError
from .durable import FileLock, replace_file, sync_folder, to_checked_json_bytes
from .journal import Journal, read_chunk
from .layout import Layout
from .state import RunState


def claim(layout: Layout) -> FileLock:
    """The lock of the writer, held, in a folder where a run may be started.

    Raises:
        RunExistsError: the folder is not empty, or somebody starts a run there now.
        StoreWriteError: the disk refuses; a folder that was made for it is gone again.
    """
    _require_free(layout)
    lock = FileLock(layout.writer_lock)
    is_own_folder = False
    try:
        layout.root.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            layout.root.mkdir()
            is_own_folder = True
        lock.acquire()
    except RunBusyError as error:
        raise RunExistsError(f"{error}, or choose another name") from None
    except OSError as error:
        if is_own_folder:
            with suppress(OSError):
                layout.root.rmdir()
        raise _cannot_start(layout, error) from error
    return lock


def lay_out(layout: Layout, state: RunState, lock: FileLock) -> Journal:
    """Make the files of a new run under `lock`, `run.json` last; the journal to write to.

    Raises:
        RunExistsError: a run was started there since the first look; the lock is released.
        StoreWriteError: the disk refuses; what was made is gone again, and the lock is released.
    """
    try:
        _require_free(layout)
        for path in (layout.journal, layout.tail, *layout.left_by_writer()):
            path.unlink(missing_ok=True)
        for folder in (*layout.data_folders(), layout.pieces, layout.commands):
            folder.mkdir(parents=True, exist_ok=True)
        journal = Journal.create(layout, state.header(time.time()), piece=1)
        assert state.description is not None
        replace_file(layout.run_json, to_checked_json_bytes(state.description))
        sync_folder(layout.root.parent)
    except RunExistsError:
        lock.release()
        raise
    except OSError as error:
        layout.run_json.unlink(missing_ok=True)
        _remove_unborn(layout)
        lock.release()
        raise _cannot_start(layout, error) from error
    return journal


def describe(layout: Layout, state: RunState, description: Mapping[str, Any]) -> None:
    """Write what a run says of itself anew; the next piece of its journal repeats it.

    Raises:
        StoreWriteError: the disk refuses.
    """
    state.description = {key: value for key, value in description.items() if key != "format"}
    try:
        replace_file(layout.run_json, to_checked_json_bytes(state.description))
    except OSError as error:
        raise StoreWriteError(f"{layout.run_json}: cannot be written: {error.strerror}") from error


def _require_free(layout: Layout) -> None:
    """Raises RunExistsError unless a run may be started in the folder.

    It is not there, or empty, or holds no more than a start that was killed leaves.
    """
    if not is_free(layout):
        what = "already holds a run" if layout.run_json.exists() else "is not an empty folder"
        raise RunExistsError(f"{layout.root} {what}; choose another name, or resume it")


def is_free(layout: Layout) -> bool:
    """Whether a run may be started in the folder: it is not there, or `claim` would clear it."""
    return not layout.root.exists() or (layout.root.is_dir() and _is_unborn(layout))


def _is_unborn(layout: Layout) -> bool:
    """Whether a folder is empty but for what a start makes before `run.json`."""
    files = {path for path in layout.root.rglob("*") if not path.is_dir() or path.is_symlink()}
    files -= {layout.writer_lock, layout.journal, layout.tail, *layout.left_by_writer()}
    folders = {path for path in layout.root.rglob("*") if path.is_dir() and not path.is_symlink()}
    if files or not folders <= _own_folders(layout):
        return False
    return not layout.journal.exists() or len(read_chunk(layout.journal).records) <= 1


def _own_folders(layout: Layout) -> set[Path]:
    data = layout.data_folders()
    return {*data, *(folder.parent for folder in data), layout.pieces, layout.commands}


def _remove_unborn(layout: Layout) -> None:
    """Remove what a failed start made, and nothing else: the next one finds the place free."""
    with suppress(OSError):
        for path in (layout.journal, layout.tail, *layout.left_by_writer(), layout.writer_lock):
            path.unlink(missing_ok=True)
        for folder in sorted(_own_folders(layout), key=lambda path: -len(path.parts)):
            if folder.is_dir():
                folder.rmdir()
        layout.root.rmdir()


def _cannot_start(layout: Layout, error: OSError) -> StoreWriteError:
    return StoreWriteError(f"{layout.root}: cannot start a run there ({error.strerror or error})")
