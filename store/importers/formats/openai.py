"""Conversations as messages: `{"messages": [{"role", "content"}, ...]}` a line, and its cousins.

Known beside the messages: `reward` or `score`, `success` or `is_correct`, `step`, `group_id`. All
other fields are kept.

The traces of a trackio project (`spooled/trackio_traces.py`) are such messages with any metadata.
Rewards, success and groups are read from the metadata under the same names; our export `trackio`
writes such names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...records import Split, StopReason
from ..dialogue import is_messages, read_messages
from ..draft import Draft, RowError, number, text_of, truth, whole, without
from ..format import Format, Row, Where

_KEYS = ("messages", "conversation", "conversations")
_REWARDS = ("reward", "score", "total_reward", "episode_reward")
_SUCCESS = ("success", "is_success", "is_correct", "correct", "solved")
_GROUPS = ("group_id", "group", "prompt_id", "task_id", "example_id", "uid")
_STEPS = ("step", "global_step", "training_step", "iteration")


def _messages(row: Row) -> object:
    return next((row[key] for key in _KEYS if is_messages(row.get(key))), None)


def _matches(row: Row) -> bool:
    return _messages(row) is not None


def _value(row: Row, names: tuple[str, ...]) -> tuple[str, object]:
    for name in names:
        if row.get(name) is not None:
            return name, row[name]
    return "", None


def _step(row: Row) -> int | None:
    return whole(_value(row, _STEPS)[1])


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    messages = _messages(row)
    assert isinstance(messages, list)
    dialogue = read_messages(messages)
    reward_key, reward = _value(row, _REWARDS)
    success_key, success = _value(row, _SUCCESS)
    _, group = _value(row, _GROUPS)
    fields = without(row, (*_KEYS, *_STEPS))
    if truth(success) is not None:
        fields.pop(success_key, None)
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=None if group is None else text_of(group),
        env=text_of(row.get("env") or row.get("env_id") or row.get("data_source"))[:200],
        final_observation=dialogue.final_observation,
        is_success=truth(success),
        fields=fields,
    )
    if dialogue.system:
        fields["system"] = dialogue.system
    value = number(reward)
    if value == value:
        draft.set_episode_reward(value)
        fields.pop(reward_key, None)
    yield draft


MESSAGES = Format(
    name="messages JSONL", trainer="messages", matches=_matches, drafts=_drafts, step=_step
)


_KNOWN_STOPS = {reason.value: reason for reason in StopReason}


def _is_trace(row: Row) -> bool:
    return isinstance(row.get("trackio_trace"), Mapping) and "messages" in row


def _trace_drafts(row: Row, where: Where) -> Iterator[Draft]:
    if not is_messages(row["messages"]):
        raise RowError("the trace has no messages")
    found = row.get("metadata")
    metadata = dict(found) if isinstance(found, Mapping) else {}
    flat = {**metadata, "messages": row["messages"]}
    if "reward" not in flat and not math.isnan(number(flat.get("return"))):
        flat["reward"] = flat["return"]
    duration = number(metadata.get("duration_ms"))
    for draft in _drafts(flat, where):
        system = {k: v for k, v in draft.fields.items() if k == "system"}
        yield replace(
            draft,
            split=Split.EVAL if metadata.get("split") == "eval" else Split.IMPORT,
            stop_reason=_KNOWN_STOPS.get(text_of(metadata.get("stop_reason")), StopReason.UNKNOWN),
            duration_s=None if math.isnan(duration) else duration / 1000,
            fields={"trace": dict(row["trackio_trace"]), "metadata": metadata, **system},
        )


TRACES = Format(
    name="trackio traces",
    trainer="trackio",
    matches=_is_trace,
    drafts=_trace_drafts,
    step=lambda row: whole(row["trackio_trace"].get("step")),
    file_step=lambda where: None,
)
