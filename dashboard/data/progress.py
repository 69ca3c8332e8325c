"""How fast a run goes and how long it will take, from its table `steps`. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from echoscope.store.status import RECENT_STEPS, RunStatus, Status
from echoscope.text.amounts import duration


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
    recent = recent.tail(RECENT_STEPS + 1)
    wall = recent["wall_time"].to_numpy(np.float64)
    between = np.diff(wall)
    between = between[between > 0]  # steps of one time were read from a file together
    alone = recent["step_s"].to_numpy(np.float64, na_value=np.nan)
    speed = recent["tokens_per_s"].to_numpy(np.float64, na_value=np.nan)
    return Pace(
        step_s=_median(between) if len(between) else _median(alone),
        tokens_per_s=_median(speed),
    )


def remaining_s(pace: Pace, *, step: int, steps: int) -> float:
    """Seconds until step `steps` at this pace; NaN where the pace is unknown."""
    return max(0, steps - step) * pace.step_s


def progress_words(
    stands: RunStatus, speed: Pace, *, last_step: int, steps: int
) -> tuple[str, str]:
    """How far a run is and how fast: `("41 / 60", "1.1 s a step, 20 s left")`.

    Args:
        steps: How many the run will take; 0 where that is not known.
    """
    done = max(0, last_step)
    # The times in an imported run are those of the import.
    is_known = math.isfinite(speed.step_s) and not stands.is_imported
    words = [f"{speed.step_s:.2g} s a step"] if is_known else []
    left = remaining_s(speed, step=done, steps=steps)
    if stands.status is Status.LIVE and steps > 0 and math.isfinite(left):
        words.append(f"{duration(left)} left")
    return f"{done} / {steps}" if steps > 0 else str(done), ", ".join(words)


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


def training_episodes(steps: pd.DataFrame) -> list[int]:
    """Training episodes of each step, imported ones too; without steps that have none."""
    latest = steps.sort_values("attempt").drop_duplicates("step", keep="last")
    counts = latest["num_trajectories"].dropna()
    return [int(count) for count in counts if count > 0]
