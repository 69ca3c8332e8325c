"""Evaluations of many runs as a leaderboard, and how success carries over between tasks. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

KEY = re.compile(r"eval/(?P<tag>.+)/(?P<name>[^/]+)")
PASS = re.compile(r"pass_at_(?P<k>[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One evaluation of one run on one set of tasks."""

    run_id: str
    tag: str
    step: int
    success: float
    low: float
    high: float
    """95 % Wilson interval as the run stored it."""
    num_tasks: float
    passes: Mapping[int, float]
    """k -> pass@k."""


def evaluations_of(run_id: str, metrics: pd.DataFrame) -> list[Evaluated]:
    """Every evaluation in a run's metrics (step, key, value), by tag, then step.

    `eval/<tag>/success_rate` makes one; a step at which it was not measured has none.
    """
    values: dict[tuple[str, int], dict[str, float]] = {}
    for step, key, value in zip(metrics["step"], metrics["key"], metrics["value"], strict=True):
        found = KEY.fullmatch(str(key))
        if found is not None:
            values.setdefault((found["tag"], int(step)), {})[found["name"]] = float(value)
    nan = float("nan")
    return [
        Evaluated(
            run_id=run_id,
            tag=tag,
            step=step,
            success=known["success_rate"],
            low=known.get("success_rate_low", nan),
            high=known.get("success_rate_high", nan),
            num_tasks=known.get("num_tasks", nan),
            passes={
                int(match["k"]): value
                for name, value in known.items()
                if (match := PASS.fullmatch(name)) is not None
            },
        )
        for (tag, step), known in sorted(values.items())
        if known.get("success_rate", nan) == known.get("success_rate", nan)
        and "success_rate" in known
    ]


def leaderboard(found: Sequence[Evaluated], pick: str = "last") -> list[Evaluated]:
    """One evaluation for each run and tag, the most successful first within a tag.

    Args:
        pick: "first", "last" or "best" (by success, the earlier one of equals).
    """
    chosen: dict[tuple[str, str], Evaluated] = {}
    for one in sorted(found, key=lambda e: e.step):
        before = chosen.get((one.tag, one.run_id))
        is_better = before is not None and one.success > before.success
        if before is None or pick == "last" or (pick == "best" and is_better):
            chosen[one.tag, one.run_id] = one
    return sorted(chosen.values(), key=lambda e: (e.tag, -e.success, e.run_id))


def carries_over(found: Sequence[Evaluated], trained: Sequence[str]) -> pd.DataFrame:
    """Success on the tasks that a run trains on beside every other set, at its last evaluation.

    Args:
        found: Evaluations of one run.
        trained: Tags of the run's training environments.

    Returns:
        trained, other, step, success_trained, success_other, gap.
    """
    last = {one.tag: one for one in sorted(found, key=lambda e: e.step)}
    rows = [
        {
            "trained": known,
            "other": tag,
            "step": one.step,
            "success_trained": last[known].success,
            "success_other": one.success,
            "gap": one.success - last[known].success,
        }
        for known in trained
        if known in last
        for tag, one in last.items()
        if tag not in trained
    ]
    columns = ["trained", "other", "step", "success_trained", "success_other", "gap"]
    return pd.DataFrame(rows, columns=columns)
