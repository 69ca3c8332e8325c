"""What is counted of the episodes of a step."""

from __future__ import annotations

import pytest
from trajectories import make_trajectory

from echoscope.store.importers.steps.episodes import step_values
from echoscope.store.records import Turn


def test_groups_that_all_solved_or_all_failed_are_counted_where_success_is_known() -> None:
    """Four groups of two: solved, failed, mixed, and one of which nobody says whether it solved."""
    groups: list[list[tuple[float, bool | None]]] = [
        [(1.0, True), (1.0, True)],
        [(0.0, False), (0.0, False)],
        [(1.0, True), (0.0, False)],
        [(0.5, None), (0.5, None)],
    ]
    episodes = [
        make_trajectory(
            Turn(index=0, observation="o", response="r", reward=reward),
            index=2 * group + sibling,
            group_index=group,
            sibling_index=sibling,
            is_success=is_success,
        )
        for group, siblings in enumerate(groups)
        for sibling, (reward, is_success) in enumerate(siblings)
    ]
    values = step_values(episodes)
    assert values["reward/solved_frac"] == values["reward/hopeless_frac"] == pytest.approx(1 / 3)
    assert values["reward/zero_std_frac"] == 0.75
    unknown = step_values(episodes[-2:])
    assert "reward/solved_frac" not in unknown
