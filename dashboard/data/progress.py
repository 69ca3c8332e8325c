"""How fast a run goes, how long it will take, and where the time of a step goes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from echoscope.store.status import RECENT_STEPS, RunStatus, Status, pace_of
from echoscope.text.amounts import duration
from echoscope.text.strict_json import value_at

_WRITTEN_S = 0.01
"""Between two steps: less is the time of writing them, unless a step says that it took so long."""
NUM_STEPS = 20
"""The last steps, over which means are taken."""
STEP = "time/step_s"
PHASES: Mapping[str, str] = {
    "time/rollout_s": "rollouts",
    "time/annotate_s": "packing and log-probs",
    "time/diagnostics_s": "diagnostics",
    "time/update_s": "update",
}
"""Key -> words, in the order of a step."""
REST = "rest"
COLLECTION = "time/rollout_s"
WAITS: Mapping[str, str] = {
    "collection/engine_wait_s": "engine had nothing to sample",
    "collection/env_wait_s": "no environment at work",
}
MEANS = """
SELECT key, avg(value) AS seconds, count(*) AS num_steps, min(step) AS first, max(step) AS last
FROM metrics
WHERE key IN (SELECT unnest($1)) AND isfinite(value) AND step > $2 AND phase = 'train'
GROUP BY key
"""
"""Of some keys after a step: how long each took on average."""


def pace(steps: pd.DataFrame) -> float:
    """Median seconds from one of the latest steps of the latest attempt to the next.

    Evaluations and checkpoints are included. NaN where there is too little to tell, and where steps
    were written faster than any training takes and none says how long it took.
    """
    if not len(steps):
        return math.nan
    recent = steps[steps["attempt"] == steps["attempt"].max()].sort_values("step")
    between = pace_of(recent["wall_time"].tolist())
    alone = recent["step_s"].tail(RECENT_STEPS + 1).astype(float).median()
    if math.isnan(between) or (between < _WRITTEN_S and math.isnan(alone)):
        return float(alone)
    return between


def _pace_words(step_s: float) -> str:
    """
    >>> _pace_words(0.85), _pace_words(150.0), _pace_words(7.7e-05)
    ('0.85 s a step', '3 min a step', '12,987 steps a second')
    """
    if 0 < step_s < 0.01:
        return f"{1 / step_s:,.0f} steps a second"
    return f"{step_s:.2g} s a step" if step_s < 99.5 else f"{duration(step_s)} a step"


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
    parts = [_pace_words(step_s)] if is_known else []
    left = max(0, steps - done) * step_s
    if stands.status is Status.LIVE and steps > 0 and math.isfinite(left):
        parts.append(f"{duration(left)} left")
    return f"{done} / {steps}" if steps > 0 else str(done), ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Seconds of a step in parts, mean over the last steps."""

    seconds: Mapping[str, float]
    """Words -> seconds."""
    total: float
    first_step: int
    last_step: int


def shares(means: pd.DataFrame, whole: str, parts: Mapping[str, str]) -> Shares | None:
    """The parts of what took a time; what none of them has is the rest. None without that time.

    Args:
        means: The answer to `MEANS`.
        whole: STEP, of which PHASES are parts; or COLLECTION, during which WAITS overlap and leave
            no rest.
    """
    by_key = dict(zip(means["key"], means["seconds"].astype(float), strict=True))
    seconds = {part: by_key[key] for key, part in parts.items() if key in by_key}
    total = by_key.get(whole, math.nan)
    if not seconds or not total > 0:
        return None
    rest = total - sum(seconds.values())
    if whole == STEP and rest > 0:
        seconds[REST] = rest
    of_whole = means[means["key"] == whole].iloc[0]
    return Shares(
        seconds=seconds,
        total=total,
        first_step=int(of_whole["first"]),
        last_step=int(of_whole["last"]),
    )


def engines_words(config: Mapping[str, Any]) -> str:
    """How many ranks and replicas there are, where there are several; empty otherwise."""
    numbers = {
        "ranks train": value_at(config, int, "trainer", "ranks") or 0,
        "replicas sample": value_at(config, int, "engine", "replicas") or 0,
    }
    parts = [f"{number} {role}" for role, number in numbers.items() if number > 1]
    if not parts:
        return ""
    return (
        f"{' and '.join(parts)}. Times are of the slowest replica and of rank 0; the machine below "
        "is that of rank 0, with all of its GPUs."
    )
