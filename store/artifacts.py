"""What a run makes besides trajectories and metrics: checkpoints and diagnostic arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

REQUESTED = "command"
"""`CheckpointRecord.reason` of a checkpoint that a person asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint was written, or removed to save space: an event, never updated."""

    step: int
    path: str
    """Relative to the run's folder, for example `checkpoints/step_000100`."""
    policy_version: int
    num_bytes: int
    wall_time: float
    """Seconds since the epoch."""
    reason: str = "schedule"
    """`"schedule"`, `"command"`, `"final"`, `"interrupt"`: who asked for it."""
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsRecord:
    """The live settings changed, or an attempt began: an event, never updated."""

    step: int
    """The first step that trains with them."""
    values: Mapping[str, Any]
    """Every live setting by dotted key."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DiagnosticRecord:
    """Arrays that a diagnostic computed at one step: a score matrix, a histogram, a gradient table.

    `arrays` may have any shape; they are stored as float64 and read back with their shape.
    """

    step: int
    kind: str
    """What was computed, for example `"cross_scores"`."""
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    trajectory_ids: tuple[str, ...] = ()
    """The trajectories that the rows stand for, where they stand for any."""
    payload: str | None = None
    """JSON text: settings and scalars that belong to the arrays."""

    def __post_init__(self) -> None:
        arrays = {}
        for name, array in self.arrays.items():
            copy = np.array(array, dtype=np.float64)
            copy.flags.writeable = False
            arrays[name] = copy
        object.__setattr__(self, "arrays", arrays)
