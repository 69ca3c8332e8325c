"""What the evaluation episodes of a step say, where nobody has counted them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from echoscope.store.records import Split, Trajectory

from .rates import wilson_interval

MAX_TAGS = 100
"""With more sets of tasks, only the numbers over all of them are made."""
ALL = "all"
"""The name of all tasks together, and of tasks that the files give no name."""


def evaluation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Success with its 95 % interval, and return, for each set of tasks and over all of them.

    `eval/<tag>/success_rate` is the mean over tasks of the mean success of a task's attempts, and
    `return_mean` the mean over episodes: as runs of Echoscope count them. Tasks whose success is
    not known do not count, nor do returns that are not known; without any, the key is absent.

    Args:
        trajectories: Of one step; those of other splits are passed over.
    """
    by_tag: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.split is Split.EVAL:
            by_tag.setdefault(trajectory.tag.strip() or ALL, []).append(trajectory)
    out: dict[str, float] = {}
    if len(by_tag) <= MAX_TAGS:
        for tag, episodes in sorted(by_tag.items()):
            out |= _metrics_of(tag, episodes)
    if len(by_tag) > 1:
        everything = [episode for episodes in by_tag.values() for episode in episodes]
        # A set of tasks may itself be named "all": the numbers over all sets count then.
        out = {key: v for key, v in out.items() if not key.startswith(f"eval/{ALL}/")}
        out |= _metrics_of(ALL, everything)
    return out


def _metrics_of(tag: str, episodes: Sequence[Trajectory]) -> dict[str, float]:
    tasks: dict[int, list[bool]] = {}
    for episode in episodes:
        if episode.is_success is not None:
            tasks.setdefault(episode.group_index, []).append(episode.is_success)
    returns = [e.episode_return for e in episodes if not math.isnan(e.episode_return)]
    out = {f"eval/{tag}/return_mean": float(np.mean(returns))} if returns else {}
    if tasks:
        rate = float(np.mean([np.mean(attempts) for attempts in tasks.values()]))
        low, high = wilson_interval(rate, len(tasks))
        out |= {
            f"eval/{tag}/success_rate": rate,
            f"eval/{tag}/success_rate_low": float(low),
            f"eval/{tag}/success_rate_high": float(high),
            f"eval/{tag}/num_tasks": float(len(tasks)),
        }
    return out
