"""Runs side by side: what differs in their settings, their metrics and what they solved. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..words import setting_words

MISSING = "not set"


def config_diff(configs: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Settings in which runs differ: one row for each key, one column for each run.

    Args:
        configs: run -> dotted key -> value.

    >>> config_diff({"a": {"lr": 1, "seed": 0}, "b": {"lr": 2, "seed": 0}}).to_dict("records")
    [{'setting': 'lr', 'a': '1', 'b': '2'}]
    """
    keys = sorted({key for values in configs.values() for key in values})
    rows = []
    for key in keys:
        values = [_shown(config, key) for config in configs.values()]
        if len(set(values)) > 1:
            rows.append({"setting": key, **dict(zip(configs, values, strict=True))})
    return pd.DataFrame(rows, columns=["setting", *configs])


def _shown(config: Mapping[str, Any], key: str) -> str:
    return setting_words(config[key])[:200] if key in config else MISSING


def relative_change(
    series: Mapping[str, pd.DataFrame], baseline: str, keys: Sequence[str], window: int = 5
) -> pd.DataFrame:
    """The last level of each metric in every run, and its change against the baseline's.

    Compared at the last step that all runs have reached: the median over up to `window` values
    up to there.

    Args:
        series: run -> metrics (step, key, value).

    Returns:
        key, and for each run its level and, but for the baseline, `<run> change` (a fraction).
    """
    ends = [part["step"].max() for part in series.values() if not part.empty]
    upto = min(ends) if ends else 0
    rows = []
    for key in keys:
        row: dict[str, Any] = {"key": key}
        base = _level(series[baseline], key, upto, window)
        for run, part in series.items():
            level = _level(part, key, upto, window)
            row[run] = level
            if run != baseline:
                row[f"{run} change"] = (level - base) / abs(base) if base else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


def _level(part: pd.DataFrame, key: str, upto: float, window: int) -> float:
    known = part[(part["key"] == key) & (part["step"] <= upto) & part["value"].notna()]
    values = known.sort_values("step")["value"].to_numpy(np.float64)
    return float(np.median(values[-window:])) if len(values) else float("nan")


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
    if not parts:
        return pd.DataFrame(columns=["task", "tag", "env_seed"])
    named = pd.concat(names)
    parts.insert(0, named[~named.index.duplicated()])
    joined = pd.concat(parts, axis=1)
    runs = list(tasks)
    joined = joined[joined[runs].notna().sum(axis=1) >= min(2, len(runs))]
    spread = joined[runs].max(axis=1) - joined[runs].min(axis=1)
    order = spread.sort_values(ascending=False, kind="stable").index
    return joined.loc[order].reset_index()


def overlap(solved: pd.DataFrame, runs: Sequence[str]) -> pd.DataFrame:
    """How many of the common tasks each combination of runs solved (a success of half or more)."""
    if solved.empty:
        return pd.DataFrame(columns=["solved by", "tasks"])
    flags = solved[list(runs)] >= 0.5
    words = [
        ", ".join(run for run, is_in in zip(runs, row, strict=True) if is_in) or "none"
        for row in flags.to_numpy()
    ]
    counts = pd.Series(words).value_counts()
    return pd.DataFrame({"solved by": counts.index, "tasks": counts.to_numpy()})
