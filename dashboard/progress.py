"""How fast a run goes and how long it will take, from its table `steps`. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

_RECENT = 20
"""Steps whose median stands for the pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """NaN where there is too little to tell."""

    step_s: float
    """Median seconds from one step to the next, evaluations and checkpoints included."""
    tokens_per_s: float


def pace(steps: pd.DataFrame) -> Pace:
    """The pace of the latest steps of the latest attempt."""
    if not len(steps):
        return Pace(step_s=math.nan, tokens_per_s=math.nan)
    recent = steps[steps["attempt"] == steps["attempt"].max()].sort_values("step")
    recent = recent.tail(_RECENT + 1)
    wall = recent["wall_time"].to_numpy(np.float64)
    between = np.diff(wall)
    alone = recent["step_s"].to_numpy(np.float64, na_value=np.nan)
    speed = recent["tokens_per_s"].to_numpy(np.float64, na_value=np.nan)
    return Pace(
        step_s=_median(between) if len(between) else _median(alone),
        tokens_per_s=_median(speed),
    )


def remaining_s(pace: Pace, *, step: int, steps: int) -> float:
    """Seconds until step `steps` at this pace; NaN where the pace is unknown."""
    return max(0, steps - step) * pace.step_s


def silence(pace: Pace, *, now: float, heard_at: float) -> float | None:
    """Seconds without a word where that is unusual: ten steps, and at least half a minute.

    Args:
        heard_at: when the run last acknowledged something, a step or a command.
    """
    since = now - heard_at
    limit = max(30.0, 10 * pace.step_s) if math.isfinite(pace.step_s) else 300.0
    return since if since > limit else None


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan
