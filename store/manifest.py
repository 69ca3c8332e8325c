"""MANIFEST.json: which packs count, and up to which piece they replace the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .durable import read_json_object, replace_file, to_json_bytes
from .errors import StoreError
from .layout import Layout, Pack, Segment
from .schema import SCHEMA_VERSION, check_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A file that a pack replaced: readers may still have it open."""

    path: str
    since: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    piece: int = 0
    """The last piece of the journal whose content is in packs."""
    packs: tuple[Pack, ...] = ()
    loose: tuple[Segment, ...] = ()
    """Segments of packed pieces that could not be packed: damaged, and kept as they are."""
    dropped: tuple[Dropped, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "piece": self.piece,
            "packs": [pack.to_json() for pack in self.packs],
            "loose": [segment.to_json() for segment in self.loose],
            "dropped": [{"path": d.path, "since": d.since} for d in self.dropped],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        return cls(
            piece=int(value["piece"]),
            packs=tuple(Pack.from_json(entry) for entry in value["packs"]),
            loose=tuple(Segment.from_json(entry) for entry in value["loose"]),
            dropped=tuple(
                Dropped(path=str(d["path"]), since=float(d["since"])) for d in value["dropped"]
            ),
        )


def read_manifest(layout: Layout) -> Manifest:
    """The manifest, or an empty one where nothing was packed yet.

    Raises:
        StoreError: unreadable or not a manifest.
    """
    if not layout.manifest.exists():
        return Manifest()
    value = read_json_object(layout.manifest)
    check_version(value.get("schema"), str(layout.manifest))
    try:
        return Manifest.from_json(value)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{layout.manifest}: not a manifest ({error!r})") from error


def write_manifest(layout: Layout, manifest: Manifest) -> None:
    replace_file(layout.manifest, to_json_bytes(manifest.to_json()))
