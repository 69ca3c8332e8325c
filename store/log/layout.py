"""Where a run keeps what: paths, and the entries by which journal and manifest name data files.

A file that neither names does not exist for a reader, whatever lies in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import NotARunError, StoreError
from ..schema import DATA_TABLES, TABLES

MODEL_NAME = "model"
"""Folder of the weights and the tokenizer in the folder of a checkpoint."""
_DATA_PATH = re.compile(r"(?:seg|pack)/([a-z_]+)/[0-9A-Za-z_.-]+\.parquet")
_OWN_NAME = re.compile(
    r"(?:seg/[a-z_]+/[0-9]{8,}|pack/[a-z_]+/-?[0-9]{7,}--?[0-9]{7,})-[0-9a-f]{8}\.parquet"
)
_LEFT_BY_WRITER = re.compile(r"(?:run\.json|journal)\.[0-9a-f]{8}\.tmp")
_LEFT_BY_PACKING = re.compile(
    r"MANIFEST(?:\.copy)?\.json\.[0-9a-f]{8}\.tmp|run\.[0-9a-f]{8}\.duckdb\.tmp(?:\.wal)?"
)
"""Files that are written under these names and then renamed; a kill leaves them behind."""
_PIECE = re.compile(r"([0-9]{6})\.ndjson")


def is_own_name(relative: str) -> bool:
    """Whether the store gives such names itself: files with others are not its to delete."""
    return _OWN_NAME.fullmatch(relative) is not None


def is_data_path(relative: str) -> bool:
    """Whether a path, relative to a run's folder, can be that of a data file."""
    return _DATA_PATH.fullmatch(relative) is not None


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one run."""

    root: Path

    @property
    def run_json(self) -> Path:
        return self.root / "run.json"

    @property
    def journal(self) -> Path:
        """The piece of the journal that is being written."""
        return self.root / "journal.ndjson"

    @property
    def tail(self) -> Path:
        """Up to where the live piece of the journal was acknowledged."""
        return self.root / "journal.tail"

    @property
    def pieces(self) -> Path:
        """Folder of the pieces that are complete and wait to be packed."""
        return self.root / "journal"

    def piece(self, number: int) -> Path:
        return self.pieces / f"{number:06d}.ndjson"

    @property
    def manifest(self) -> Path:
        return self.root / "MANIFEST.json"

    @property
    def manifest_copy(self) -> Path:
        """The manifest once more, written right after it."""
        return self.root / "MANIFEST.copy.json"

    @property
    def commands(self) -> Path:
        return self.root / "commands"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def annotations(self) -> Path:
        """What people note about the run; the trainer never reads it."""
        return self.root / "annotations.ndjson"

    @property
    def sealed(self) -> Path:
        return self.root / "run.duckdb"

    def left_by_writer(self) -> list[Path]:
        """Files that a killed start or writer left; to whoever holds `writer_lock`."""
        return self._named(_LEFT_BY_WRITER)

    def left_by_packing(self) -> list[Path]:
        """Files that a killed pack or seal left; to whoever holds `pack_lock`."""
        return self._named(_LEFT_BY_PACKING)

    def _named(self, names: re.Pattern[str]) -> list[Path]:
        return sorted(path for path in self.root.glob("*.tmp*") if names.fullmatch(path.name))

    @property
    def writer_lock(self) -> Path:
        return self.root / "writer.lock"

    @property
    def pack_lock(self) -> Path:
        return self.root / "pack.lock"

    def data_folders(self) -> list[Path]:
        segments = [self.root / "seg" / table for table in DATA_TABLES]
        return segments + [self.root / "pack" / table for table in TABLES if table != "runs"]

    def piece_numbers(self) -> list[int]:
        """Numbers of the complete pieces, in order."""
        if not self.pieces.is_dir():
            return []
        matches = [_PIECE.fullmatch(entry.name) for entry in self.pieces.iterdir()]
        return sorted(int(match[1]) for match in matches if match)

    def require_text(self) -> None:
        """Raises NotARunError where the path is not valid UTF-8: journal and views hold text."""
        try:
            str(self.root).encode()
        except UnicodeEncodeError:
            raise NotARunError(f"{self.root}: the path is not valid UTF-8; rename it") from None

    def require_run(self) -> None:
        """Raises NotARunError where the folder holds no run."""
        self.require_text()
        if not self.run_json.is_file() and (meant := run_meant(self.root)):
            raise NotARunError(
                f"there is no run `{shown_path(self.root)}` here; did you mean "
                f"`{shown_path(meant)}`?"
            )
        if not self.root.exists():
            raise NotARunError(f"{self.root}: no such folder; `echoscope runs list` shows the runs")
        if not self.run_json.is_file():
            raise NotARunError(
                f"{self.root}: not a run (no run.json); `echoscope runs list` shows what there is"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterProof:
    """What the footer of a packed file is, which holds the hashes of the file's row groups."""

    num_bytes: int
    """The length and the magic bytes behind it included."""
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One data file, as the journal or the manifest names it."""

    table: str
    path: str
    """Relative to the run's folder."""
    num_rows: int
    num_bytes: int
    sha256: str
    schema_version: str
    footer: FooterProof | None = None
    """None of a segment, and of a pack that was written before footers were proven."""
    lost_steps: tuple[tuple[int, int], ...] = ()
    """In a repaired run: first and last step of each stretch of which rows could not be saved."""

    def has_lost(self, step: int) -> bool:
        return any(first <= step <= last for first, last in self.lost_steps)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "path": self.path,
            "rows": self.num_rows,
            "bytes": self.num_bytes,
            "sha256": self.sha256,
            "schema": self.schema_version,
        }
        if self.footer is not None:
            value["footer"] = {"bytes": self.footer.num_bytes, "sha256": self.footer.sha256}
        if self.lost_steps:
            value["lost_steps"] = [list(span) for span in self.lost_steps]
        return value

    @classmethod
    def from_json(cls, table: str, value: Mapping[str, Any]) -> FileEntry:
        match = _DATA_PATH.fullmatch(value["path"])
        if match is None or match[1] != table:
            raise StoreError(f"data file {value['path']!r} does not lie in seg/ or pack/{table}")
        footer = value.get("footer")
        return cls(
            table=table,
            path=value["path"],
            num_rows=int(value["rows"]),
            num_bytes=int(value["bytes"]),
            sha256=str(value["sha256"]),
            schema_version=str(value["schema"]),
            footer=None
            if footer is None
            else FooterProof(num_bytes=int(footer["bytes"]), sha256=str(footer["sha256"])),
            lost_steps=tuple((int(a), int(b)) for a, b in value.get("lost_steps", ())),
        )


def _files_to_json(files: tuple[FileEntry, ...]) -> dict[str, Any]:
    return {entry.table: entry.to_json() for entry in files}


def _files_from_json(value: Mapping[str, Any]) -> tuple[FileEntry, ...]:
    # Tables that a newer minor version brought are none of this reader's business.
    return tuple(FileEntry.from_json(t, entry) for t, entry in value.items() if t in TABLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The files of one step, or of some finished trajectories of a step that is not."""

    id: str
    step: int
    attempt: int
    files: tuple[FileEntry, ...]

    @property
    def first_step(self) -> int:
        """As a pack has it."""
        return self.step

    @property
    def last_step(self) -> int:
        return self.step

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "step": self.step,
            "attempt": self.attempt,
            "files": _files_to_json(self.files),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Segment:
        return cls(
            id=str(value["id"]),
            step=int(value["step"]),
            attempt=int(value["attempt"]),
            files=_files_from_json(value["files"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """The files of steps `first_step` to `last_step` of one attempt, one row group per step."""

    id: str
    attempt: int
    first_step: int
    last_step: int
    files: tuple[FileEntry, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "attempt": self.attempt,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "files": _files_to_json(self.files),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pack:
        return cls(
            id=str(value["id"]),
            attempt=int(value["attempt"]),
            first_step=int(value["first_step"]),
            last_step=int(value["last_step"]),
            files=_files_from_json(value["files"]),
        )


def run_meant(path: Path) -> Path | None:
    """The run that somebody meant who typed the path of no run; None where there is none.

    A run is often typed by its name alone, as `runs list` prints it, without the folder `runs`.
    """
    root = path.absolute()
    name, folder, above = root.name, root.parent, root.parent.parent
    places = (folder / "runs" / name, above / "runs" / name, above / name)
    return next((place for place in places if Layout(place).run_json.is_file()), None)


def shown_path(path: Path) -> str:
    """A path as a person in this folder would type it: relative where it lies below.

    >>> shown_path(Path.cwd() / "runs" / "demo")
    'runs/demo'
    """
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)
