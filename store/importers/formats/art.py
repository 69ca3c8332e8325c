"""ART: one group a line, `{"trajectories": [{"messages_and_choices": [...], "reward", ...}]}`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from ...records import FinishReason, Split
from ..dialogue import read_messages
from ..draft import Draft, number, numbers_of, text_of, without
from ..format import Format, Row, Where

_FINISH = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}


def _matches(row: Row) -> bool:
    found = row.get("trajectories")
    return (
        isinstance(found, list)
        and bool(found)
        and isinstance(found[0], Mapping)
        and "messages_and_choices" in found[0]
    )


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    text = f"{where.path} {text_of(row['trajectories'])}"
    group = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
    for trajectory in row["trajectories"]:
        items = trajectory["messages_and_choices"]
        choices = [item for item in items if isinstance(item.get("message"), Mapping)]
        dialogue = read_messages([_message(item) for item in items])
        draft = Draft(
            turns=dialogue.turns,
            prompt=dialogue.prompt,
            group=group,
            split=Split.EVAL if "val" in where.path.parts else Split.IMPORT,
            final_observation=dialogue.final_observation,
            fields={
                **without(trajectory, ("messages_and_choices", "reward", "metrics")),
                **({"system": dialogue.system} if dialogue.system else {}),
            },
        )
        if len(choices) == len(draft.turns):
            for turn, choice in zip(draft.turns, choices, strict=True):
                reason = text_of(choice.get("finish_reason"))
                turn.finish_reason = _FINISH.get(reason, FinishReason.UNKNOWN)
        draft.set_episode_reward(number(trajectory.get("reward")))
        if draft.turns:
            draft.turns[-1].info = numbers_of(trajectory.get("metrics"))
        yield draft


def _message(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as it is, or the message of a choice of the OpenAI interface."""
    found = item.get("message")
    return {"role": "assistant", **found} if isinstance(found, Mapping) else item


GROUPS = Format(name="ART trajectory groups", trainer="ART", matches=_matches, drafts=_drafts)
