"""Which base model do adapters belong to? A file beside them tells models of one shape apart."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

BASE_FILE = "base.json"
_PIECE = 4096
_PIECES = 64


def weights_digest(folder: Path) -> str:
    """A hash that tells models apart, of 64 pieces of each file of weights, its header first.

    Reads at most a few hundred kilobytes a file, so it takes milliseconds for any size. Two models
    of one shape differ in it, unless they only differ between the pieces.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for piece in range(_PIECES):
                file.seek(max(0, size - _PIECE) * piece // (_PIECES - 1))
                digest.update(file.read(_PIECE))
    return digest.hexdigest()


def remember_base(adapters: Path, base: Path) -> None:
    """Write the base's digest beside its adapters; nothing where the base is no folder."""
    if base.is_dir():
        text = json.dumps({"weights": weights_digest(base)})
        (adapters / BASE_FILE).write_text(text + "\n", encoding="utf-8")


def is_other_base(adapters: Path, base: Path) -> bool:
    """Whether the adapters remember other weights than those of `base`.

    False where they remember none, or the base is no folder: shapes alone tell then.
    """
    try:
        expected = json.loads((adapters / BASE_FILE).read_text(encoding="utf-8"))["weights"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return base.is_dir() and weights_digest(base) != expected
