"""MANIFEST.json: which packs count, and up to which piece they replace the journal.

The manifest carries its own checksum and is written twice: `MANIFEST.copy.json` follows it, before
anything that it replaced is deleted, so either file alone shows the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import StoreError, StoreVersionError
from ...schema import SCHEMA_VERSION, check_version
from ..durable import read_checked_json, replace_file, to_checked_json_bytes
from ..layout import Layout, Pack, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A file that a pack replaced: readers may still have it open."""

    path: str
    since: float
    """Seconds since the epoch."""
    packs: tuple[str, ...] = ()
    """Ids of the packs that hold its content now: it is deleted once they are proven whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceProof:
    """What a complete piece of the journal was when it was packed."""

    piece: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    run_id: str = ""
    piece: int = 0
    """The last piece of the journal whose content is in packs."""
    packs: tuple[Pack, ...] = ()
    loose: tuple[Segment, ...] = ()
    """Segments of packed pieces that could not be packed: damaged, and kept as they are."""
    dropped: tuple[Dropped, ...] = ()
    pieces: tuple[PieceProof, ...] = ()
    """Length and hash of each piece that was packed."""
    kept: tuple[int, ...] = ()
    """Pieces up to `piece` that are damaged: they stay, and readers read what is left of them."""
    state: Mapping[str, Any] | None = None
    """What the next piece's header says: the state after the packed pieces."""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "run_id": self.run_id,
            "piece": self.piece,
            "packs": [pack.to_json() for pack in self.packs],
            "loose": [segment.to_json() for segment in self.loose],
            "dropped": [
                {"path": d.path, "since": d.since, "packs": list(d.packs)} for d in self.dropped
            ],
            "pieces": [
                {"piece": p.piece, "bytes": p.num_bytes, "sha256": p.sha256} for p in self.pieces
            ],
            "kept": list(self.kept),
            "state": None if self.state is None else dict(self.state),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        return cls(
            run_id=str(value.get("run_id", "")),
            piece=int(value["piece"]),
            packs=tuple(Pack.from_json(entry) for entry in value["packs"]),
            loose=tuple(Segment.from_json(entry) for entry in value["loose"]),
            dropped=tuple(
                Dropped(
                    path=str(d["path"]), since=float(d["since"]), packs=tuple(d.get("packs", ()))
                )
                for d in value["dropped"]
            ),
            pieces=tuple(
                PieceProof(piece=int(p["piece"]), num_bytes=int(p["bytes"]), sha256=p["sha256"])
                for p in value.get("pieces", ())
            ),
            kept=tuple(int(number) for number in value.get("kept", ())),
            state=value.get("state"),
        )


def read_manifest(layout: Layout) -> Manifest:
    """The manifest, or an empty one where nothing was packed yet.

    Raises:
        StoreError: the manifest and its copy are unreadable.
    """
    manifest, problem = load_manifest(layout)
    if manifest is None:
        raise StoreError(f"{problem}; `echoscope runs repair {layout.root}` writes a whole copy")
    return manifest


def load_manifest(layout: Layout, run_id: str = "") -> tuple[Manifest | None, str]:
    """The manifest or its copy, and what is wrong with the first of them in one line.

    Args:
        run_id: the run that it must belong to; empty for any.

    Raises:
        StoreVersionError: written by a newer major version.
    """
    problem = ""
    for path in (layout.manifest, layout.manifest_copy):
        try:
            value = read_checked_json(path)
            check_version(value.get("schema"), str(path))
            manifest = Manifest.from_json(value)
            if run_id and manifest.run_id not in ("", run_id):
                raise StoreError(f"{path}: it belongs to run {manifest.run_id!r}")
        except StoreVersionError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = problem or f"{path}: not a manifest ({error!r})"
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                problem = problem or f"{path}: it is missing"
            else:
                problem = problem or str(error)
        else:
            return manifest, problem
    if not layout.manifest.exists() and not layout.manifest_copy.exists():
        return Manifest(), ""
    return None, problem


def write_manifest(layout: Layout, manifest: Manifest) -> None:
    data = to_checked_json_bytes(manifest.to_json())
    replace_file(layout.manifest, data)
    replace_file(layout.manifest_copy, data)
