"""The files of a checkpoint folder, and the proof that they are what was written.

A checkpoint holds `MANIFEST.json`: size and SHA-256 of each of its files. The manifest is written
last, before the folder gets its name. Checkpoints of format 1 have no manifest: they can be read,
and nothing proves their content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import StoreError
from .log.durable import (
    read_checked_json,
    read_json_object,
    sha256_of,
    to_checked_json_bytes,
    write_new_file,
)
from .log.layout import Layout

MANIFEST_NAME = "MANIFEST.json"
STATE_NAME = "state.json"
MODEL_NAME = "model"
"""The folder of the weights and the tokenizer."""
_NAME = re.compile(r"step_([0-9]{6,})")


def checkpoint_path(run_path: Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return Layout(run_path).checkpoints / f"step_{step:06d}"


def checkpoint_folders(folder: Path) -> list[Path]:
    """Folders with the name of a checkpoint that hold a state, by step."""
    if not folder.is_dir():
        return []
    named = [(int(match[1]), path) for path in folder.iterdir() if (match := _matched(path))]
    return [path for _, path in sorted(named) if (path / STATE_NAME).is_file()]


def _matched(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST_NAME:
            yield path.relative_to(folder).as_posix(), path


def write_checkpoint_manifest(folder: Path, *, step: int, run_id: str | None) -> None:
    """Write the manifest of all files in a checkpoint folder, and make it durable.

    Args:
        run_id: the run that the checkpoint belongs to; None where nobody has named the run.

    Raises:
        OSError: the disk refuses.
    """
    files = {
        name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for name, path in _files(folder)
    }
    value = {"step": step, "run_id": run_id, "files": files}
    write_new_file(folder / MANIFEST_NAME, to_checked_json_bytes(value))


def has_checksums(folder: Path) -> bool:
    """Whether the checkpoint carries the checksums of its files."""
    return (folder / MANIFEST_NAME).is_file()


def checkpoint_damage(folder: Path, *, run_id: str | None = None, only: str | None = None) -> str:
    """What is wrong with a checkpoint, in one line; an empty text where nothing is.

    Args:
        run_id: the run that it must belong to; None for any.
        only: check this file of it alone, for example `"state.json"`.
    """
    if not has_checksums(folder):
        return f"{MANIFEST_NAME} is missing" if _must_have_checksums(folder) else ""
    try:
        manifest = read_checked_json(folder / MANIFEST_NAME)
        files: dict[str, dict[str, Any]] = dict(manifest["files"])
        owner, step = manifest["run_id"], manifest["step"]
    except (StoreError, KeyError, TypeError, ValueError) as error:
        return f"{MANIFEST_NAME} is damaged ({error})"
    match = _matched(folder)
    if match is not None and int(match[1]) != step:
        return f"it is the checkpoint of step {step}"
    if run_id is not None and owner is not None and owner != run_id:
        return f"it belongs to run {owner!r}"
    for name, entry in files.items():
        if only in (None, name) and (why := _file_damage(folder / name, entry)):
            return f"{name} {why}"
    if only is None:
        for name, _ in _files(folder):
            # What lies elsewhere is a note of somebody's; a file in `model/` may be loaded.
            if name.startswith(f"{MODEL_NAME}/") and name not in files:
                return f"{name} was not there when the checkpoint was written"
    return ""


def _must_have_checksums(folder: Path) -> bool:
    try:
        return read_json_object(folder / STATE_NAME).get("format_version") != 1
    except StoreError:
        return False  # whoever reads the state says what is wrong with it


def _file_damage(path: Path, entry: dict[str, Any]) -> str:
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"has {size} bytes, not {entry['bytes']}"
        if sha256_of(path) != entry["sha256"]:
            return "changed after it was written"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def older_whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of the same run that is older than `folder` and not damaged."""
    beside = checkpoint_folders(folder.parent)
    older = [path for path in beside if _step(path) < _step(folder)]
    return next((path for path in reversed(older) if not checkpoint_damage(path)), None)


def _step(folder: Path) -> int:
    match = _matched(folder)
    return -1 if match is None else int(match[1])
