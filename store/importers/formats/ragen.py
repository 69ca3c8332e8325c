"""RAGEN's evaluation files: JSON lines and pickles, with the corrections that they need.

**JSON lines** (`output.format=jsonl`).

The reward shown in a user message is that of the reply *after* it: the writer adds the reward of a
history entry to the state of the same entry. That of the first reply is never written, so the
return is known only where `total_reward` is not the constant 0 that a swallowed error leaves there.
`metadata.success` is always false; the true value stands under `<tag>/success`. Format penalties
are in none of these numbers.

**Pickles** (`.pkl`) hold the batch: the messages as the policy saw them and, of an evaluation, the
history with the exact reward and the executed actions of each turn. The sum of `rm_scores` is what
the trainer used: it has penalties and normalisation in it, so it stands apart, in `info`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from echoscope.text.replies import parse_response

from .. import read
from ..dialogue import Dialogue, is_messages, read_messages
from ..draft import Draft, DraftTurn, RowError
from ..format import Format, Row, Where, has_keys, no_file_step

_LEFT = "actions_left"
_REWARD = re.compile(r" \(reward: (-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|-?inf)\)\Z")


def _matches(row: Row) -> bool:
    metadata, name = row.get("metadata"), row.get("custom_id")
    is_named = isinstance(name, str) and name.startswith("traj_")
    has_world = isinstance(metadata, Mapping) and "env_id" in metadata
    return is_named and has_world and is_messages(row.get("messages"))


def _drafts(row: Row, where: Where) -> list[Draft]:
    metadata = row["metadata"]
    messages, rewards = [], []
    waiting: float | None = None
    for message in row["messages"]:
        if message["role"] == "user":
            text = read.text(message.get("content"))
            reward_shown = _REWARD.search(text)
            waiting = read.number(reward_shown[1]) if reward_shown else 0.0
            message = {**message, "content": text[: reward_shown.start()] if reward_shown else text}
        elif message["role"] == "assistant":
            # The first reply's reward is never written.
            rewards.append(0.0 if waiting is None else waiting)
            waiting = None
        messages.append(message)
    dialogue = read_messages(messages)
    for index, turn in enumerate(dialogue.turns):
        turn.reward = rewards[index] if index else math.nan
        turn.actions = parse_response(turn.response, reasoning=False, forced_think=False).actions
    total = read.number(metadata.get("total_reward"))
    if dialogue.turns and total == total and total != 0:
        dialogue.turns[0].reward = total - sum(rewards[1:])
    fields = {"custom_id": row["custom_id"], "metadata": metadata}
    fields |= read.without(row, ("custom_id", "messages", "metadata"))
    draft = _draft(dialogue, fields, metadata, metadata.get("group_id"), dialogue.prompt)
    if any(turn.actions for turn in draft.turns):
        draft.reconstructed.add("actions")
    return [draft]


def _draft(
    dialogue: Dialogue, fields: Mapping[str, Any], metrics: Row, group: Any, prompt: str
) -> Draft:
    """An episode with its tag, its success and its own numbers, which metrics hold by tag."""
    tag, is_success = _success(metrics)
    draft = dialogue.draft(
        fields,
        prompt=prompt,
        group=read.text_or_none(read.whole(group)),
        env=tag,
        tag=tag,
        is_success=is_success,
    )
    of_tag = {
        name: value for name, value in read.numbers(metrics).items() if name.startswith(f"{tag}/")
    }
    draft.add_info({name.removeprefix(f"{tag}/"): value for name, value in of_tag.items() if tag})
    return draft


def _success(metrics: Row) -> tuple[str, bool | None]:
    """Tag and success, of the first key that ends in `/success`."""
    for key, value in metrics.items():
        if key.endswith("/success") and "/non-zero/" not in key:
            return key.removesuffix("/success"), read.truth(read.number(value))
    return "", None


def _batch_drafts(row: Row, where: Where) -> list[Draft]:
    columns, batch = row["columns"], read.numbers(row.get("batch"))
    messages, entries = columns.get("messages_list"), read.objects(columns.get("history"))
    dialogue = read_messages(messages) if is_messages(messages) else None
    replies = [entry for entry in entries if _reply(entry)]
    if not replies and dialogue is None:
        raise RowError("the row has neither messages nor a history")
    out = dialogue or Dialogue()
    prompt = out.prompt if dialogue is not None else read.text(replies[0].get("state"))
    if replies:
        turns = _history_turns(replies)
        # The messages are what the policy saw: the state and the instructions around it.
        if len(out.turns) == len(turns):
            for turn, message_turn in zip(turns, out.turns, strict=True):
                turn.observation = message_turn.observation
        out.turns = turns
    if entries and not _reply(entries[-1]):
        out.final_observation = read.text(entries[-1].get("state"))
    fields = {
        "row": row["dataproto_row"],
        **read.without(columns, ("messages_list", "history", "metrics")),
        "tensors": row.get("tensors"),
    }
    metrics = read.numbers(columns.get("metrics"))
    draft = _draft(out, fields, metrics, columns.get("group_ids"), prompt)
    if not replies:
        draft.set_episode_reward(batch.get("original_rm_scores", batch.get("rm_scores", math.nan)))
    draft.add_info(batch)
    return [draft]


def _reply(entry: Mapping[str, Any]) -> str:
    return read.text(entry.get("llm_raw_response") or entry.get("llm_response"))


def _history_turns(entries: Sequence[Mapping[str, Any]]) -> list[DraftTurn]:
    turns = []
    for entry in entries:
        info, actions = entry.get("info"), entry.get("actions")
        is_invalid = entry.get("manager_invalid_action") is True
        turns.append(
            DraftTurn(
                observation=read.text(entry.get("state")),
                response=_reply(entry),
                reward=read.number(entry.get("reward")),
                actions=tuple(map(read.text, actions)) if isinstance(actions, list) else (),
                is_valid=False if is_invalid else read.truth(read.inner(info, "action_is_valid")),
                is_effective=read.truth(read.inner(info, "action_is_effective")),
                info={**read.numbers(info), **read.numbers({_LEFT: entry.get(_LEFT)})},
            )
        )
    return turns


PICKLED = Format(
    name="RAGEN pickled batch",
    trainer="RAGEN",
    matches=has_keys("dataproto_row", columns=Mapping),
    drafts=_batch_drafts,
)
EVALUATION = Format(
    name="RAGEN evaluation JSONL",
    trainer="RAGEN",
    matches=_matches,
    drafts=_drafts,
    file_step=no_file_step,
)
