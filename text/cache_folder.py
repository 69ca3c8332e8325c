"""Where this user keeps what can be fetched or made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$ECHOSCOPE_CACHE`, else `echoscope` in the user's cache folder; it need not exist."""
    own = os.environ.get("ECHOSCOPE_CACHE")
    if own:
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "echoscope"
