"""Trajectories for tests: a test says what it is about, and the rest has plain values."""

from __future__ import annotations

from typing import Any

from echoscope.store.records import Split, StopReason, Trajectory, Turn


def make_trajectory(*turns: Turn, **fields: Any) -> Trajectory:
    """A finished training episode of step 1; `fields` replace single values.

    `env_id` follows `tag` unless it is given.
    """
    plain: dict[str, Any] = {
        "step": 1,
        "split": Split.TRAIN,
        "index": 0,
        "group_index": 0,
        "sibling_index": 0,
        "env_id": fields.get("tag", "world"),
        "tag": "world",
        "env_seed": 0,
        "noise_seed": 0,
        "prompt_key": "",
        "turns": turns,
        "stop_reason": StopReason.TERMINATED,
    }
    return Trajectory(**(plain | fields))
