"""Files of a folder: what they hold, and damage to one."""

from __future__ import annotations

import hashlib
from pathlib import Path


def contents(folder: Path) -> dict[str, str]:
    """Path within the folder to the hash of the file, of every file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip_a_bit(path: Path, offset: int = -2) -> None:
    """Change one bit of the byte at an offset."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
