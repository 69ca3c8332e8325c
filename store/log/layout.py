"""Where a run keeps what: paths, and the entries by which the journal and packs name data files.

A file that neither names does not exist for a reader, whatever lies in the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import NotARunError, StoreError
from ..schema import DATA_TABLES, TABLES

COPY_JSON = "copy.json"
"""Where the copy of a run on object storage says whose copy it is."""
MODEL_NAME = "model"
"""Folder of the weights and the tokenizer in the folder of a checkpoint."""
_DATA_PATH = re.compile(
    r"seg/(?P<segment>[a-z_]+)/[0-9]{8}-[0-9a-f]{8}\.parquet"
    r"|pack/[0-9]{6,}/(?P<pack>[a-z_]+)-[0-9]+-[0-9a-f]{8}\.parquet"
)
_TEMPORARY = re.compile(r"(?:run\.json|journal)\.[0-9a-f]{8}\.tmp")
"""Files that are written under these names and then renamed; a kill leaves them behind."""
_NUMBERED = re.compile(r"([0-9]{6,})(?:\.ndjson)?")


def is_data_path(relative: str) -> bool:
    """Whether a path, relative to a run's folder, is one that the store gives to a data file."""
    return _DATA_PATH.fullmatch(relative) is not None


class _Inside:
    """A path in the folder of a run, as an attribute of its layout."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layout: Layout, _: type[Layout]) -> Path:
        return layout.root / self._name


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one run."""

    root: Path

    run_json = _Inside("run.json")
    journal = _Inside("journal.ndjson")
    """The piece of the journal that is being written."""
    tail = _Inside("journal.tail")
    """Up to where the live piece of the journal was acknowledged."""
    pieces = _Inside("journal")
    """Folder of the pieces that are complete and wait to be packed."""
    packs = _Inside("pack")
    """Folder of the packs: each replaces the piece of its number."""
    commands = _Inside("commands")
    checkpoints = _Inside("checkpoints")
    annotations = _Inside("annotations.ndjson")
    """What people note about the run; the trainer never reads it."""
    episode_notes = _Inside("episode_notes.ndjson")
    """What people note about its episodes; the trainer never reads it."""
    writer_lock = _Inside("writer.lock")
    pack_lock = _Inside("pack.lock")

    def piece(self, number: int) -> Path:
        return self.pieces / f"{number:06d}.ndjson"

    def pack(self, number: int) -> Path:
        return self.packs / f"{number:06d}"

    @property
    def is_run(self) -> bool:
        """Whether a run is stored here."""
        return self.run_json.is_file()

    @property
    def is_copy(self) -> bool:
        """Whether this is the copy of a run on object storage, which is only read."""
        return (self.root / COPY_JSON).is_file()

    def data_folders(self) -> list[Path]:
        return [self.root / "seg" / table for table in DATA_TABLES]

    def piece_numbers(self) -> list[int]:
        """Numbers of the complete pieces that are not packed, or not removed yet, in order."""
        return _numbers(self.pieces)

    def pack_numbers(self) -> list[int]:
        """Numbers of the packs, in order."""
        return _numbers(self.packs)

    def leftovers(self) -> list[Path]:
        """Files that a killed writer left; for whoever holds `writer_lock`."""
        return [path for path in self.root.glob("*.tmp") if _TEMPORARY.fullmatch(path.name)]

    def require_text(self) -> None:
        """Raises NotARunError where the path is not valid UTF-8: journal and views hold text."""
        try:
            str(self.root).encode()
        except UnicodeEncodeError:
            raise NotARunError(f"{self.root}: the path is not valid UTF-8; rename it") from None

    def require_run(self) -> None:
        """Raises NotARunError where the folder holds no run."""
        self.require_text()
        if not self.is_run and (meant := run_meant(self.root)):
            raise NotARunError(
                f"there is no run `{shown_path(self.root)}` here; did you mean "
                f"`{shown_path(meant)}`?"
            )
        if not self.root.exists():
            raise NotARunError(f"{self.root}: no such folder; `echoscope runs list` shows the runs")
        if not self.is_run:
            raise NotARunError(
                f"{self.root}: not a run (no run.json); `echoscope runs list` shows what there is"
            )


def _numbers(folder: Path) -> list[int]:
    """The numbers by which the entries of a folder are named."""
    try:
        matches = [_NUMBERED.fullmatch(name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in matches if match)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One data file, as the journal or a pack names it."""

    table: str
    path: str
    """Relative to the run's folder."""
    num_rows: int
    num_bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "rows": self.num_rows,
            "bytes": self.num_bytes,
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, table: str, value: Mapping[str, Any]) -> FileEntry:
        match = _DATA_PATH.fullmatch(value["path"])
        if table not in TABLES or match is None or table not in (match["segment"], match["pack"]):
            raise StoreError(f"{value['path']!r} is not the path of a data file of {table!r}")
        return cls(
            table=table,
            path=value["path"],
            num_rows=int(value["rows"]),
            num_bytes=int(value["bytes"]),
            sha256=str(value["sha256"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Data files that count together.

    A segment has the files of one step, or of some finished trajectories of a step that is not
    over. A pack has those of the steps of one attempt, one row group per step.
    """

    id: str
    attempt: int
    first_step: int
    last_step: int
    files: tuple[FileEntry, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "attempt": self.attempt,
            "steps": [self.first_step, self.last_step],
            "files": {entry.table: entry.to_json() for entry in self.files},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FileGroup:
        first, last = value["steps"]
        return cls(
            id=str(value["id"]),
            attempt=int(value["attempt"]),
            first_step=int(first),
            last_step=int(last),
            files=tuple(FileEntry.from_json(*item) for item in value["files"].items()),
        )


def run_meant(path: Path) -> Path | None:
    """The run that somebody meant who typed the path of no run; None where there is none.

    A run is often typed by its name alone, as `runs list` prints it, without the folder `runs`.
    """
    root = path.absolute()
    name, folder, above = root.name, root.parent, root.parent.parent
    candidates = (folder / "runs" / name, above / "runs" / name, above / name)
    return next((meant for meant in candidates if Layout(meant).is_run), None)


_ENDS_OF_PACKED = (".zst", ".gz", ".bz2", ".xz", ".zip")
_ENDS_OF_FILES = (".jsonl", ".json", ".parquet", ".eval", ".csv", ".tsv", ".log", ".db", ".wandb")


def run_name(path: Path) -> str:
    """The name of the run that is made of another trainer's file or folder."""
    name = path.resolve().name
    for suffix in (*_ENDS_OF_PACKED, *_ENDS_OF_FILES):
        name = name.removesuffix(suffix)
    return name or "imported"


def shown_path(path: Path) -> str:
    """A path as a person in this folder would type it: relative where it lies below.

    The copy of a run on object storage goes by the address of the run.

    >>> shown_path(Path.cwd() / "runs" / "demo")
    'runs/demo'
    """
    if Layout(path).is_copy:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            root = json.loads((path / COPY_JSON).read_bytes())["root"]
            address, question, query = root.partition("?")
            return f"{address}/{path.name}{question}{query}"
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)
