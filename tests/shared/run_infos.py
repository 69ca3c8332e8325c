"""What a reader says of a run, without a run on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from echoscope.store.reader import RunInfo


def run_info(**changes: Any) -> RunInfo:
    """A run `r` that is running, with these fields."""
    fields: dict[str, Any] = {
        "run_id": "r",
        "path": Path("r"),
        "name": "",
        "status": "running",
        "created_at": 0.0,
        "ended_at": None,
        "attempt": 1,
        "last_step": 5,
        "base_model": "",
        "parent_run_id": None,
        "tags": (),
        "config": {},
        "live_knobs": {},
    }
    return RunInfo(**(fields | changes))
