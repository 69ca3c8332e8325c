"""How fast a run goes and how long it will take, from its table `steps`. Pure."""

from __future__ import annotations

import math

import pandas as pd

from echoscope.store.status import RECENT_STEPS, RunStatus, Status, pace_of
from echoscope.text.amounts import duration


def pace(steps: pd.DataFrame) -> float:
    """Median seconds from one of the latest steps of the latest attempt to the next.

    Evaluations and checkpoints are included. NaN where there is too little to tell.
    """
    if not len(steps):
        return math.nan
    recent = steps[steps["attempt"] == steps["attempt"].max()].sort_values("step")
    between = pace_of(recent["wall_time"].tolist())
    alone = recent["step_s"].tail(RECENT_STEPS + 1).astype(float).median()
    return float(alone) if math.isnan(between) else between


def remaining_s(step_s: float, *, step: int, steps: int) -> float:
    """Seconds until step `steps` at this pace; NaN where the pace is unknown."""
    return max(0, steps - step) * step_s


def progress_words(
    stands: RunStatus, step_s: float, *, last_step: int, steps: int
) -> tuple[str, str]:
    """How far a run is and how fast: `("41 / 60", "1.1 s a step, 20 s left")`.

    Args:
        steps: How many the run will take; 0 where that is not known.
    """
    done = max(0, last_step)
    # The times in an imported run are those of the import.
    is_known = math.isfinite(step_s) and not stands.is_imported
    parts = [f"{step_s:.2g} s a step"] if is_known else []
    left = remaining_s(step_s, step=done, steps=steps)
    if stands.status is Status.LIVE and steps > 0 and math.isfinite(left):
        parts.append(f"{duration(left)} left")
    return f"{done} / {steps}" if steps > 0 else str(done), ", ".join(parts)
