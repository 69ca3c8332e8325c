"""A pack: what one complete piece of the journal named, in a few large files.

The folder `pack/000007` replaces the piece `journal/000007.ndjson` and its segments. It is written
under another name and renamed when it is whole, so a pack that is there counts. Its `pack.json`
names the files, with the SHA-256 of each, and says where the chain of records stands behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import StoreError
from ..schema import SCHEMA_VERSION, check_version
from .durable import read_checked_json, to_checked_json_bytes, write_new_file
from .journal import Chain
from .layout import FileGroup, Layout

PACK_JSON = "pack.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """What `pack.json` says."""

    groups: tuple[FileGroup, ...]
    """One for each attempt that the piece holds steps of."""
    first_seq: int
    """Number of the piece's first record."""
    chain: Chain
    """Where the chain of records stands behind the piece."""
    state: Mapping[str, Any]
    """The state of the run behind the piece, as the header of the next piece says it."""


def write_pack_json(folder: Path, pack: Pack) -> None:
    """Write and fsync `pack.json`, the last file of a pack."""
    value = {
        "schema": SCHEMA_VERSION,
        "run": pack.chain.mark,
        "first_seq": pack.first_seq,
        "seq": pack.chain.seq,
        "crc": pack.chain.crc,
        "groups": [group.to_json() for group in pack.groups],
        "state": dict(pack.state),
    }
    write_new_file(folder / PACK_JSON, to_checked_json_bytes(value))


def read_pack(layout: Layout, number: int, run_id: str) -> Pack:
    """The pack of a number.

    Raises:
        StoreVersionError: written by another version of the store.
        StoreError: damaged, or another run's.
    """
    path = layout.pack(number) / PACK_JSON
    value = read_checked_json(path)
    check_version(value.get("schema"), str(path))
    try:
        chain = Chain(str(value["run"]), int(value["seq"]), str(value["crc"]))
        groups = tuple(FileGroup.from_json(group) for group in value["groups"])
        first, state = int(value["first_seq"]), dict(value["state"])
        pack = Pack(groups=groups, first_seq=first, chain=chain, state=state)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: it is not the description of a pack ({error!r})") from error
    if chain.mark != Chain.of(run_id).mark:
        raise StoreError(f"{path}: it belongs to another run")
    own = f"{layout.pack(number).relative_to(layout.root)}/"
    if not all(entry.path.startswith(own) for group in groups for entry in group.files):
        raise StoreError(f"{path}: it belongs to another piece")
    return pack
