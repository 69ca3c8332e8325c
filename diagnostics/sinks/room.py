"""Whether the disk has room: wandb and tensorboardX write in the background and tell nobody."""

from __future__ import annotations

import shutil
from pathlib import Path

MIN_FREE_BYTES = 2_000_000


def require_room(folder: Path) -> None:
    """Raises OSError where the disk of a folder is full."""
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        raise OSError(f"the disk of {folder} is full ({free:,} bytes free)")
