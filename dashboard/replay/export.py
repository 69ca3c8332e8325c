"""A trajectory as JSON text, for people who take it elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from echoscope.store.records import Trajectory, TrajectoryOutcome


def trajectory_json(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    """Everything that was recorded, under the names of `store.records`; NaN becomes null."""
    record = _plain(trajectory)
    record["id"] = trajectory.id
    record["episode_return"] = trajectory.episode_return
    record["outcome"] = None if outcome is None else _plain(outcome)
    return json.dumps(record, indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Trajectory | TrajectoryOutcome) or hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
