"""Conversations as messages: `{"messages": [{"role", "content"}, ...]}` a line, and its cousins.

Known beside the messages: `reward` or `score`, `success` or `is_correct`, `step`, `group_id`. All
other fields are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..dialogue import is_messages, read_messages
from ..draft import Draft, number, text_of, truth, whole, without
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
