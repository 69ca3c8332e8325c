"""The start of a run: its files are laid out beside the folder that they get when they are whole.

A folder gets its name by one rename, so a start that is killed or refused at any instant leaves no
half run, and of two starts at once one wins.
"""

from __future__ import annotations

import glob
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RunExistsError, StoreWriteError
from .durable import FileLock, is_locked, new_id, replace_file, sync_path, to_checked_json_bytes
from .journal import Chain, Journal, JournalState
from .layout import Layout


def start(layout: Layout, state: JournalState) -> tuple[FileLock, Journal]:
    """Make a new run; the lock of its writer, held, and the journal to write to.

    Raises:
        RunExistsError: the folder is not empty.
        StoreWriteError: the disk refuses; what was made is gone again.
    """
    if not is_free(layout.root):
        what = "already holds a run" if layout.is_run else "is not an empty folder"
        raise RunExistsError(f"{layout.root} {what}; choose another name, or resume it")
    prefix = f".{layout.root.name[:60]}."
    partial = Layout(layout.root.with_name(f"{prefix}{new_id()}.tmp"))
    lock, chain = FileLock(partial.writer_lock), Chain.of(state.run_id)
    is_made = False
    try:
        partial.root.mkdir(parents=True)
        for folder in (*partial.data_folders(), partial.pieces, partial.packs, partial.commands):
            folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        Journal.create(partial, state.header(time.time()), 1, chain).close()
        _write_description(partial, state)
        partial.root.rename(layout.root)
        is_made = True
        sync_path(layout.root.parent)
        _remove_killed(layout.root.parent, prefix)
        return lock, Journal(layout, 1, chain, layout.journal.stat().st_size)
    except OSError as error:
        lock.release()
        shutil.rmtree(layout.root if is_made else partial.root, ignore_errors=True)
        if not is_made and not is_free(layout.root):
            raise RunExistsError(f"{layout.root} was made meanwhile; choose another name") from None
        why = error.strerror or error
        raise StoreWriteError(f"{layout.root}: cannot start a run there ({why})") from error


def _remove_killed(folder: Path, prefix: str) -> None:
    """Remove what killed starts of the same run left."""
    for leftover in folder.glob(f"{glob.escape(prefix)}*.tmp"):
        if not is_locked(Layout(leftover).writer_lock):
            shutil.rmtree(leftover, ignore_errors=True)


def describe(layout: Layout, state: JournalState, description: Mapping[str, Any]) -> None:
    """Write what a run says of itself anew; the next piece of its journal repeats it.

    Raises:
        StoreWriteError: the disk refuses.
    """
    state.description = dict(description)
    try:
        _write_description(layout, state)
    except OSError as error:
        raise StoreWriteError(f"{layout.run_json}: cannot be written: {error.strerror}") from error


def _write_description(layout: Layout, state: JournalState) -> None:
    assert state.description is not None
    replace_file(layout.run_json, to_checked_json_bytes(state.description))


def is_free(folder: Path) -> bool:
    """Whether a run may be started in a folder: it is not there, or it is empty."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
