"""Evaluations of many runs as a leaderboard, and how success carries over between tasks. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

KEY = re.compile(r"eval/(?P<tag>.+)/(?P<name>[^/]+)")
PASS = re.compile(r"pass_at_(?P<k>[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One evaluation of one run on one set of tasks."""

    run_id: str
    tag: str
    tasks: str
    """Name of the set of tasks: equal only where success rates compare."""
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
            tasks=tag,
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


NOT_THE_TASK = ("tag", "groups", "group_size")
"""Keys of an evaluation's settings that do not change its tasks."""


def task_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Tag -> the settings that decide which tasks an evaluation draws and what solving one takes.

    Success rates of two runs compare only where these are equal.

    >>> task_settings({"envs": {"eval": [{"tag": "easy", "env": "lake", "params": {"size": 4}}]}})
    {'easy': '{"env": "lake", "params": {"size": 4}}'}
    """
    envs = config.get("envs")
    entries = envs.get("eval") if isinstance(envs, Mapping) else None
    out = {}
    for entry in entries if isinstance(entries, Sequence) else ():
        if isinstance(entry, Mapping):
            kept = {str(k): v for k, v in entry.items() if k not in NOT_THE_TASK and v is not None}
            out[str(entry.get("tag") or entry.get("env"))] = json.dumps(
                kept, sort_keys=True, default=str
            )
    return out


def task_set_names(settings: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """(run, tag) -> the name of its set of tasks: the tag, and what tells it from its namesakes.

    >>> task_set_names({("a", "lake"): '{"size": 4}', ("b", "lake"): '{"size": 8}'})
    {('a', 'lake'): 'lake (size 4)', ('b', 'lake'): 'lake (size 8)'}
    """
    by_tag: dict[str, set[str]] = {}
    for (_, tag), text in settings.items():
        by_tag.setdefault(tag, set()).add(text)
    names = {}
    for (run, tag), text in settings.items():
        flat = {other: _flat(other) for other in by_tag[tag]}
        keys = sorted(set().union(*flat.values()))
        differing = [k for k in keys if len({values.get(k, "-") for values in flat.values()}) > 1]
        words = ", ".join(f"{k} {flat[text].get(k, '-')}" for k in differing)
        names[run, tag] = f"{tag} ({words})" if words else tag
    return names


def _flat(text: str) -> dict[str, str]:
    """The settings of a set of tasks by their last names, as people write them."""
    values = json.loads(text) if text else {}
    params = values.pop("params", None)
    inner = params if isinstance(params, Mapping) else {}
    return {str(key): str(value) for key, value in {**values, **inner}.items()}


def on_their_tasks(
    found: Sequence[Evaluated], configs: Mapping[str, Mapping[str, Any]]
) -> list[Evaluated]:
    """The evaluations, each with the name of its set of tasks.

    Args:
        configs: run -> its configuration.
    """
    settings = {
        (run, tag): text
        for run, config in configs.items()
        for tag, text in task_settings(config).items()
    }
    named = {(e.run_id, e.tag): settings.get((e.run_id, e.tag), "{}") for e in found}
    names = task_set_names(named)
    return [replace(e, tasks=names[e.run_id, e.tag]) for e in found]


def leaderboard(found: Sequence[Evaluated], pick: str = "last") -> list[Evaluated]:
    """One evaluation for each run and set of tasks, the most successful first within a set.

    Args:
        pick: "first", "last" or "best" (by success, the earlier one of equals).
    """
    chosen: dict[tuple[str, str], Evaluated] = {}
    for one in sorted(found, key=lambda e: e.step):
        before = chosen.get((one.tasks, one.run_id))
        is_better = before is not None and one.success > before.success
        if before is None or pick == "last" or (pick == "best" and is_better):
            chosen[one.tasks, one.run_id] = one
    return sorted(chosen.values(), key=lambda e: (e.tasks, -e.success, e.run_id))


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
