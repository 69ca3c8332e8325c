"""A step as a strip of its groups: how each episode looks, and what is said of it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from echoscope.dashboard.replay.strip import MAX_EPISODES, groups, legend_html, outcome_of
from echoscope.store.steer.episode_notes import EpisodeNote, EpisodeNotes

NOTHING = EpisodeNotes()


def rows(*episodes: dict[str, Any]) -> pd.DataFrame:
    plain = {
        "attempt": 1, "group_index": 0, "sibling_index": 0, "is_success": None,
        "stop_reason": "terminated", "episode_return": float("nan"), "kept": None,
    }  # fmt: skip
    table = [{"id": f"t{n}"} | plain | episode for n, episode in enumerate(episodes)]
    frame = pd.DataFrame(table)
    return frame.astype({"is_success": "boolean", "kept": "boolean"})


@pytest.mark.parametrize(
    ("is_success", "stop_reason", "outcome"),
    [
        (True, "terminated", "solved"),
        (True, "max_turns", "solved"),
        (False, "terminated", "failed"),
        (False, "max_turns", "cut off"),
        (None, "timeout", "cut off"),
        (None, "terminated", "unknown"),
        (None, "unknown", "unknown"),
    ],
)
def test_how_an_episode_ended(is_success: bool | None, stop_reason: str, outcome: str) -> None:
    assert outcome_of(is_success, stop_reason) == outcome


def test_groups_and_siblings_stand_in_order_each_with_shape_and_words() -> None:
    table = rows(
        {"group_index": 1, "is_success": True, "episode_return": 1.0, "kept": True},
        {"sibling_index": 1, "is_success": False, "stop_reason": "max_turns", "kept": False},
        {"sibling_index": 0, "is_success": False, "episode_return": -0.25, "kept": False},
    )
    first, second = groups(table, NOTHING)
    assert (first["name"], first["about"]) == ("0", "Group 0: 0 of 2 solved")
    assert first["cells"] == [
        ("t2", "es-failed es-hollow", "Group 0, sibling 0: failed, return -0.25, not trained on"),
        ("t1", "es-cut-off es-hollow", "Group 0, sibling 1: cut off, not trained on"),
    ]
    assert second["cells"] == [("t0", "es-solved", "Group 1, sibling 0: solved, return 1")]


def test_labels_are_said_and_hostile_ones_are_made_visible() -> None:
    notes = EpisodeNotes(by_episode={(1, "t0"): EpisodeNote(labels=("good", "\u202e<b>"))})
    (group,) = groups(rows({}, {"sibling_index": 1}), notes)
    label = group["cells"][0][2]
    assert label == "Group 0, sibling 0: unknown, label good, label [RIGHT-TO-LEFT OVERRIDE]<b>"
    assert "label" not in group["cells"][1][2]


def test_a_step_without_siblings_is_one_row_of_cells() -> None:
    table = rows(*({"group_index": n} for n in range(3)))
    (group,) = groups(table, NOTHING)
    assert (group["name"], len(group["cells"])) == ("", 3)


def test_a_step_that_is_too_large_is_cut_and_says_so() -> None:
    table = rows(*({"group_index": n // 2} for n in range(MAX_EPISODES + 2)))
    assert sum(len(group["cells"]) for group in groups(table, NOTHING)) == MAX_EPISODES
    assert "the first 4096 episodes are shown" in legend_html(table)


def test_the_legend_counts_what_occurs() -> None:
    table = rows({"is_success": True, "kept": False}, {"is_success": False}, {"is_success": False})
    html = legend_html(table)
    assert " 1 solved" in html
    assert " 2 failed" in html
    assert "cut off" not in html
    assert "hollow: 1 not trained on" in html
    assert "mean return 0.5" in legend_html(rows({"episode_return": 0.5}))
