"""Reward spread and success of every group, as the heat map draws it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from . import queries

_GROUPS = """
SELECT step, group_index, stddev_samp(episode_return) AS reward_std,
       avg(episode_return) AS return_mean, avg(is_success::INT) AS success_frac
FROM trajectories WHERE split IN ('train', 'import') AND list_contains($1, step)
GROUP BY step, group_index ORDER BY step, group_index
"""


def groups_of(run_id: str, steps: Sequence[int]) -> pd.DataFrame:
    """step, group_index, reward_std, return_mean, success_frac of the groups of some steps."""
    return queries.table(run_id, _GROUPS, (tuple(steps),)) if steps else pd.DataFrame()
