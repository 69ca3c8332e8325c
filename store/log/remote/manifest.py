"""What a run on object storage consists of: one object that is replaced as a whole.

`ROOT/.runs/NAME.json` is the manifest of the run whose objects lie under `ROOT/NAME/`. It names the
small files of the run, each as a list of parts that never change: what was appended to the journal
since the last manifest is one more part. The data files are named by the journal and the packs
themselves, with their hashes, as on a disk. So whoever reads a manifest sees a run as it was at one
moment, whatever is being written meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from ...errors import StoreError
from ..durable import to_checked_json_bytes, without_checksum
from .bucket import Bucket, BucketError

MANIFESTS = ".runs"
"""Folder of a root that holds one object per run: a single listing shows what is new."""
CHECKPOINTS = "checkpoints"
MAIL = "commands"
"""Folder of a run where readers leave commands, for whoever copies it to deliver."""
MAX_MAIL_BYTES = 65_536
MAIL_NAME = re.compile(r"[0-9]{20}-[0-9a-f]{6}\.json")
FORMAT = 1
_SMALL_FILE = re.compile(
    r"run\.json|journal\.ndjson|journal\.tail|journal/[0-9]{6,}\.ndjson|pack/[0-9]{6,}/pack\.json"
)
_PART = re.compile(r"parts/[0-9a-f]{32}")
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
MAX_PART_BYTES = 64_000_000
_READ_ATTEMPTS = 5
_READ_PAUSE_S = 0.05


def manifest_name(run_name: str) -> str:
    """Where in a root the manifest of a run lies."""
    return f"{MANIFESTS}/{run_name}.json"


class Part(NamedTuple):
    """Some bytes of a file, as an object of their own that is named by its content."""

    name: str
    num_bytes: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Part:
        digest = hashlib.sha256(data).hexdigest()
        return cls(f"parts/{digest[:32]}", len(data), digest)

    def check(self, data: bytes) -> bytes:
        """Raises StoreError where the bytes are not those that were written."""
        if len(data) != self.num_bytes or hashlib.sha256(data).hexdigest() != self.sha256:
            raise StoreError(f"{self.name}: not the bytes that were written")
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One state of a run."""

    run_id: str
    writer: str
    """Whoever copies: another one has to stop."""
    generation: int
    written_at: float
    is_held: bool
    """A process was writing the run."""
    files: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return to_checked_json_bytes(
            {"format": FORMAT, **{f.name: getattr(self, f.name) for f in fields(self)}}
        )

    @classmethod
    def of(cls, data: bytes, url: str) -> Manifest:
        """Read one; whoever may write to the bucket may have written anything.

        Raises:
            StoreError: it is damaged, or names what no manifest names.
        """
        try:
            value = without_checksum(_object(json.loads(data)))
            if value is None:
                raise ValueError("its content changed after it was written")
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']!r} is not {FORMAT}: update echoscope")
            files = {path: tuple(map(_part, parts)) for path, parts in value["files"].items()}
            if not all(map(_SMALL_FILE.fullmatch, files)):
                raise ValueError("it names a file that no run has")
            return cls(
                run_id=str(value["run_id"]),
                writer=str(value["writer"]),
                generation=int(value["generation"]),
                written_at=float(value["written_at"]),
                is_held=bool(value["is_held"]),
                files=files,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = " ".join(str(error).split())[:200]
            raise StoreError(f"{url}: it is not the manifest of a run ({why})") from error


def read_manifest(root: Bucket, run_name: str) -> Manifest:
    """The manifest of a run, as it is now.

    It is replaced while it is read: a client that asks for the size first and for the bytes then
    may get the beginning of a longer one. So what cannot be read is asked for again.

    Raises:
        FileNotFoundError: there is no such run.
        StoreError: as `Manifest.of`, or the storage refuses or does not answer.
    """
    name = manifest_name(run_name)
    for _ in range(_READ_ATTEMPTS):
        try:
            return Manifest.of(root.get(name), f"{root.url}/{name}")
        except BucketError:
            raise
        except StoreError as error:
            damage = error
            time.sleep(_READ_PAUSE_S)
    raise damage


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def _part(value: Any) -> Part:
    name, num_bytes, sha256 = value
    if not (_PART.fullmatch(name) and 0 <= num_bytes <= MAX_PART_BYTES):
        raise ValueError(f"{str(name)[:60]!r} is not a part")
    return Part(name, int(num_bytes), str(sha256))
