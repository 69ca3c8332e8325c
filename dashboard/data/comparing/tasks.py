"""The evaluations of runs side by side, and who solved which task. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.text.strict_json import value_at

from ...words import interval_words, value_words

_EVALUATED = re.compile(r"eval/(?P<tag>.+)/(?P<name>[^/]+)")
_NOT_THE_TASK = ("tag", "groups", "group_size")
"""Keys of an evaluation's settings that do not change its tasks."""


def last_evaluations(metrics: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The last evaluation of each tag in every run: one row a tag and run, the best run first.

    Args:
        metrics: run -> its metrics under `eval/` (step, key, value), by step.
    """
    rows: list[dict[str, Any]] = []
    for run, table in metrics.items():
        last: dict[str, dict[str, float]] = {}
        for step, key, value in zip(table["step"], table["key"], table["value"], strict=True):
            match = _EVALUATED.fullmatch(str(key))
            if match is not None and value == value:
                last.setdefault(match["tag"], {})[match["name"]] = value
                last[match["tag"]]["step"] = step
        for tag, values in last.items():
            if "success_rate" in values:
                rows.append({"tag": tag, "run": run, **values})
    ranked = sorted(rows, key=lambda row: (row["tag"], -row["success_rate"]))
    return pd.DataFrame([_evaluated(row) for row in ranked])


def _evaluated(row: Mapping[str, Any]) -> dict[str, Any]:
    key = "eval/all/success_rate"
    low, high = row.get("success_rate_low"), row.get("success_rate_high")
    if (low is None or high is None) and row.get("num_tasks"):
        low, high = map(float, wilson_interval(row["success_rate"], row["num_tasks"]))
    return {
        "tasks": row["tag"],
        "run": row["run"],
        "step": int(row["step"]),
        "success": value_words(key, row["success_rate"]),
        "95 % interval": interval_words(key, None if low is None or high is None else (low, high)),
        "number of tasks": row.get("num_tasks"),
    }


def task_settings(config: Mapping[str, Any], split: str = "eval") -> dict[str, str]:
    """Tag -> the settings that decide which tasks an evaluation draws and what solving one takes.

    With the split `train` it is the same of training.

    Success rates of two runs compare only where these are equal.

    >>> task_settings({"envs": {"eval": [{"tag": "easy", "env": "lake", "params": {"size": 4}}]}})
    {'easy': '{"env": "lake", "params": {"size": 4}}'}
    """
    out = {}
    for entry in value_at(config, list, "envs", split) or ():
        if isinstance(entry, Mapping):
            kept = {str(k): v for k, v in entry.items() if k not in _NOT_THE_TASK and v is not None}
            name = str(entry.get("tag") or entry.get("env"))
            out[name] = json.dumps(kept, sort_keys=True, default=str)
    return out


def played_tasks(config: Mapping[str, Any], key: str) -> str | None:
    """What decides which tasks a run of some seed met when a metric was measured; None: not known.

    >>> lake, boxes = ({"envs": {"train": [{"env": env}]}} for env in ("lake", "boxes"))
    >>> played_tasks(lake, "eval/all/num_tasks") == played_tasks(boxes, "eval/all/num_tasks")
    False
    """
    match = _EVALUATED.fullmatch(key)
    evaluated = task_settings(config) if match else {}
    if match and match["tag"] in evaluated:
        return evaluated[match["tag"]]
    settings = evaluated or task_settings(config, "train")
    return json.dumps(settings, sort_keys=True) if settings else None


def other_tasks(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tags under which some runs draw other tasks than the others do."""
    settings = [task_settings(config) for config in configs]
    tags = sorted(set().union(*settings))
    return [
        tag
        for tag in tags
        if len({tags_of_run[tag] for tags_of_run in settings if tag in tags_of_run}) > 1
    ]


def with_task(
    rows: pd.DataFrame, settings: Mapping[str, str], *, has_keys: bool = True
) -> pd.DataFrame:
    """The rows with a column `task`: equal for two runs only if both were given the same task.

    The seed alone does not say that: with other parameters it draws another board. A task is its
    evaluation's settings with its key, or, where a run stored no keys, with the first observation.

    Args:
        rows: tag, task_key, first_observation (a hash), and whatever else.
        settings: tag -> what the run's configuration says of that evaluation (`task_settings`).
        has_keys: Every run that is compared stored task keys.
    """
    identity = rows["task_key"] if has_keys else rows["first_observation"]
    names = [
        f"{settings.get(str(tag), '')} {key}"
        for tag, key in zip(rows["tag"], identity, strict=True)
    ]
    return rows.assign(task=names)


def solved_by(tasks: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The same tasks in every run: who solved what.

    Args:
        tasks: run -> trajectories (task, tag, env_seed, is_success, id) of one evaluation; several
            of a task are averaged. `with_task` makes the column `task`.

    Returns:
        task, tag, env_seed, then for each run its success (0 to 1, NaN where it was not tried) and
        `<run> id`: one trajectory. Tasks that at least two runs tried; those in which the runs
        differ most come first.
    """
    parts = []
    names = []
    for run, table in tasks.items():
        rows = table.dropna(subset=["is_success"])
        grouped = rows.assign(is_success=rows["is_success"].astype(float)).groupby("task")
        part = grouped.agg(success=("is_success", "mean"), id=("id", "first"))
        parts.append(part.rename(columns={"success": run, "id": f"{run} id"}))
        names.append(grouped[["tag", "env_seed"]].first())
    named = pd.concat(names)
    parts.insert(0, named[~named.index.duplicated()])
    joined = pd.concat(parts, axis=1)
    runs = list(tasks)
    joined = joined[joined[runs].notna().sum(axis=1) >= min(2, len(runs))]
    spread = joined[runs].max(axis=1) - joined[runs].min(axis=1)
    order = spread.sort_values(ascending=False, kind="stable").index
    return joined.loc[order].reset_index()
