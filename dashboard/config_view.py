"""A run's configuration as people read it: one line for each setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..store.reader import RunInfo


def plain_config(found: RunInfo) -> Mapping[str, Any]:
    """The configuration as a flat mapping of dotted keys."""
    out: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, entry in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), entry)
        elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
            for index, entry in enumerate(value):
                walk(f"{prefix}.{index}", entry)
        else:
            out[prefix] = value

    walk("", dict(found.config))
    return out
