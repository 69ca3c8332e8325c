"""A run's configuration as people read it: one line for each setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from echoscope.store.reader import RunInfo

from ..words import NONE


def plain_config(found: RunInfo) -> Mapping[str, Any]:
    """The configuration of a run as a flat mapping of dotted keys."""
    return flat(found.config)


def flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A nested configuration as a flat mapping of dotted keys: `envs.train.0.env`."""
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

    walk("", dict(config))
    return out


def value_words(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {value_words(entry)}" for name, entry in value.items()) or NONE
    return json.dumps(value)
