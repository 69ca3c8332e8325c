"""RAGEN's evaluation files (`output.format=jsonl`), with the corrections that they need.

The reward shown in a user message is that of the reply *after* it: the writer adds the reward of a
history entry to the state of the same entry. That of the first reply is never written, so the
return is known only where `total_reward` is not the constant 0 that a swallowed error leaves there.
`metadata.success` is always false; the true value stands under `<tag>/success`. Format penalties
are in none of these numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from echoscope.text.replies import parse_response

from ..dialogue import is_messages, read_messages
from ..draft import Draft, number, numbers_of, text_of, truth, whole, without
from ..format import Format, Row, Where

_REWARD = re.compile(r" \(reward: (-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|-?inf)\)\Z")


def _matches(row: Row) -> bool:
    metadata = row.get("metadata")
    return (
        isinstance(row.get("custom_id"), str)
        and row["custom_id"].startswith("traj_")
        and is_messages(row.get("messages"))
        and isinstance(metadata, dict)
        and "env_id" in metadata
    )


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    metadata = row["metadata"]
    messages, rewards = [], []
    waiting: float | None = None
    for message in row["messages"]:
        if message["role"] == "user":
            text = text_of(message.get("content"))
            shown = _REWARD.search(text)
            waiting = number(shown[1]) if shown else 0.0
            message = {**message, "content": text[: shown.start()] if shown else text}
        elif message["role"] == "assistant":
            # The first reply's reward is never written.
            rewards.append(0.0 if waiting is None else waiting)
            waiting = None
        messages.append(message)
    dialogue = read_messages(messages)
    for index, turn in enumerate(dialogue.turns):
        turn.reward = rewards[index] if index else float("nan")
        parsed = parse_response(turn.response, reasoning=False, forced_think=False)
        turn.actions = parsed.actions
    total = number(metadata.get("total_reward"))
    if dialogue.turns and total == total and total != 0:
        dialogue.turns[0].reward = total - sum(rewards[1:])
    success = _success(metadata)
    tag = "" if success is None else success[0]
    fields = {
        "custom_id": row["custom_id"],
        "metadata": {k: v for k, v in metadata.items() if k not in ("group_id",)},
        **without(row, ("custom_id", "messages", "metadata")),
    }
    if dialogue.turns and tag:
        dialogue.turns[-1].info = {
            name.removeprefix(f"{tag}/"): value
            for name, value in numbers_of(metadata).items()
            if name.startswith(f"{tag}/")
        }
    group = whole(metadata.get("group_id"))
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=None if group is None else str(group),
        env=tag,
        tag=tag,
        final_observation=dialogue.final_observation,
        is_success=None if success is None else success[1],
        fields=fields,
    )
    if any(turn.actions for turn in draft.turns):
        draft.reconstructed.add("actions")
    yield draft


def _success(metadata: Row) -> tuple[str, bool | None] | None:
    """Tag and success, of the first key that ends in `/success`."""
    for key, value in metadata.items():
        if key.endswith("/success") and "/non-zero/" not in key:
            rate = number(value)
            return key.removesuffix("/success"), truth(rate) if rate == rate else None
    return None


EVALUATION = Format(
    name="RAGEN evaluation JSONL",
    trainer="RAGEN",
    matches=_matches,
    drafts=_drafts,
    file_step=lambda where: None,
)
