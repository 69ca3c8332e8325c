"""A trajectory as JSON text, for people who take it elsewhere."""

from __future__ import annotations

import json
from typing import Any

from echoscope.store.records import Trajectory, TrajectoryOutcome
from echoscope.text.strict_json import json_value


def trajectory_json(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    """Everything that was recorded, under the names of `store.records`; NaN becomes null."""
    record: dict[str, Any] = json_value(trajectory)
    record["id"] = trajectory.id
    record["episode_return"] = trajectory.episode_return
    record["outcome"] = None if outcome is None else json_value(outcome)
    return json.dumps(record, indent=1, allow_nan=False)
