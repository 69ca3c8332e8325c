"""VAGEN's evaluation: a folder an episode, with `messages.json` and `metrics.json`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from ..dialogue import is_messages, read_messages
from ..draft import Draft, number, numbers_of, truth, without
from ..format import Format, Row, Where

_FOLDER = re.compile(r"(.+)_seed_(-?\d+)")
_REWARDS = ("total_reward", "cumulative_reward", "score", "reward")
_SUCCESS = ("success", "is_success", "traj_success")


def _matches(row: Row) -> bool:
    return "vagen_metrics" in row and is_messages(row.get("messages"))


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    dialogue = read_messages(row["messages"])
    metrics = row["vagen_metrics"] if isinstance(row["vagen_metrics"], Mapping) else {}
    named = _FOLDER.fullmatch(row["vagen_folder"])
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=row["vagen_folder"] if named else None,
        env=named[1] if named else "",
        tag=next((part for part in where.path.parts if part.startswith("tag_")), ""),
        final_observation=dialogue.final_observation,
        is_success=next((truth(metrics[name]) for name in _SUCCESS if name in metrics), None),
        fields={
            "folder": row["vagen_folder"],
            "metrics": without(metrics, ()),
            **({"system": dialogue.system} if dialogue.system else {}),
        },
    )
    reward = next((number(metrics[name]) for name in _REWARDS if name in metrics), math.nan)
    draft.set_episode_reward(reward)
    if draft.turns:
        draft.turns[-1].info = numbers_of(metrics)
    yield draft


EVALUATION = Format(
    name="VAGEN evaluation folders",
    trainer="VAGEN",
    matches=_matches,
    drafts=_drafts,
    file_step=lambda where: None,
)
