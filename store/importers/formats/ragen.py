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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from echoscope.text.replies import parse_response

from ..dialogue import is_messages, read_messages
from ..draft import Draft, DraftTurn, RowError, number, numbers_of, text_of, truth, whole, without
from ..format import Format, Row, Where

_LEFT = "actions_left"
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
        "metadata": metadata,
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


def _is_batch_row(row: Row) -> bool:
    return "dataproto_row" in row and isinstance(row.get("columns"), Mapping)


def _batch_drafts(row: Row, where: Where) -> Iterator[Draft]:
    columns, batch = row["columns"], numbers_of(row.get("batch"))
    messages, history = columns.get("messages_list"), columns.get("history")
    dialogue = read_messages(messages) if is_messages(messages) else None
    entries = [e for e in history if isinstance(e, Mapping)] if isinstance(history, list) else []
    replies = [e for e in entries if _reply(e)]
    if not replies and dialogue is None:
        raise RowError("the row has neither messages nor a history")
    if not replies:
        assert dialogue is not None
        turns: Sequence[DraftTurn] = dialogue.turns
    else:
        turns = _history_turns(replies)
        # The messages are what the policy saw: the state and the instructions around it.
        if dialogue is not None and len(dialogue.turns) == len(turns):
            for turn, shown in zip(turns, dialogue.turns, strict=True):
                turn.observation = shown.observation
    metrics = numbers_of(columns.get("metrics"))
    success = _success(metrics)
    tag = "" if success is None else success[0]
    group = whole(columns.get("group_ids"))
    fields = {
        "row": row["dataproto_row"],
        **without(columns, ("messages_list", "history", "metrics")),
        "tensors": row.get("tensors"),
    }
    if dialogue is not None and dialogue.system:
        fields["system"] = dialogue.system
    draft = Draft(
        turns=turns,
        prompt=dialogue.prompt if dialogue is not None else turns[0].observation,
        group=None if group is None else str(group),
        env=tag,
        tag=tag,
        final_observation=_final(entries, dialogue.final_observation if dialogue else ""),
        is_success=None if success is None else success[1],
        fields=fields,
    )
    if not replies:
        scores = batch.get("original_rm_scores", batch.get("rm_scores", math.nan))
        draft.set_episode_reward(scores)
    if turns:
        own = {n.removeprefix(f"{tag}/"): v for n, v in metrics.items() if n.startswith(f"{tag}/")}
        turns[-1].info = {**turns[-1].info, **own, **batch}
    yield draft


def _reply(entry: Mapping[str, Any]) -> str:
    return text_of(entry.get("llm_raw_response") or entry.get("llm_response"))


def _history_turns(entries: Sequence[Mapping[str, Any]]) -> list[DraftTurn]:
    turns = []
    for entry in entries:
        info = entry.get("info")
        actions = entry.get("actions")
        turn = DraftTurn(
            observation=text_of(entry.get("state")),
            response=_reply(entry),
            reward=number(entry.get("reward")),
            actions=tuple(map(text_of, actions)) if isinstance(actions, list) else (),
            info={**numbers_of(info), **numbers_of({_LEFT: entry.get(_LEFT)})},
        )
        if isinstance(info, Mapping):
            turn.is_valid = truth(info.get("action_is_valid"))
            turn.is_effective = truth(info.get("action_is_effective"))
        if entry.get("manager_invalid_action") is True:
            turn.is_valid = False
        turns.append(turn)
    return turns


def _final(entries: Sequence[Mapping[str, Any]], shown: str) -> str:
    """The state after the last reply: the last entry of the history, which has no reply."""
    if entries and not _reply(entries[-1]):
        return text_of(entries[-1].get("state"))
    return shown


PICKLED = Format(
    name="RAGEN pickled batch",
    trainer="RAGEN",
    matches=_is_batch_row,
    drafts=_batch_drafts,
)
EVALUATION = Format(
    name="RAGEN evaluation JSONL",
    trainer="RAGEN",
    matches=_matches,
    drafts=_drafts,
    file_step=lambda where: None,
)
