"""Rows of no trainer's own: conversations as messages, `{"messages": [{"role", "content"}, ...]}`;
prompt and reply under two keys; the results of tau-bench.

Known beside them: `reward` or `score`, `success` or `is_correct`, `step`, `group_id` and their
cousins. All other fields are kept. With `--map` a user says which key holds what (`Roles`): such a
row is read whatever its keys are called.

A row of prompt and reply with neither a reward nor a success is none: data of fine-tuning looks so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..dialogue import Dialogue, is_messages, read_flat, read_messages
from ..draft import (
    Draft,
    RowError,
    name_of,
    number,
    number_or_none,
    optional_text,
    text_of,
    whole,
    without,
)
from ..format import MAPPED, Format, Row, Where, has_keys, success_of

_KEYS = ("messages", "conversation", "conversations")
_PROMPTS = (
    *("prompt", "question", "problem", "query", "instruction", "input", "prompt_text"),
    *("input_prompt", *_KEYS),
)
_REPLIES = (
    *("response", "reply", "completion", "output", "generation", "raw_generation", "raw_output"),
    *("generated_text", "model_output", "output_text", "raw_response", "model_response"),
)
_REWARDS = ("reward", "score", "total_reward", "episode_reward")
_SUCCESS = ("success", "is_success", "is_correct", "correct", "solved", "passed", "acc")
_GROUPS = (
    *("group_id", "group", "prompt_id", "task_id", "example_id", "uid"),
    *("problem_id", "question_id"),
)
_STEPS = ("step", "global_step", "global_steps", "training_step", "train_step", "iteration")


def _messages(row: Row) -> list[Mapping[str, Any]] | None:
    return next((row[key] for key in _KEYS if is_messages(row.get(key))), None)


def _value(row: Row, names: tuple[str, ...]) -> tuple[str, object]:
    return next(((n, row[n]) for n in names if row.get(n) is not None), ("", None))


def _step(row: Row) -> int | None:
    return whole(_value(row, _STEPS)[1])


def _drafts(row: Row, where: Where) -> list[Draft]:
    return [_draft(row, read_messages(_messages(row) or ()), _KEYS)]


def _draft(row: Row, dialogue: Dialogue, used: tuple[str, ...], **values: Any) -> Draft:
    """The episode of a dialogue, with what other keys of its row say of it.

    Args:
        used: The keys that hold the text.
        values: As of `Dialogue.draft`.
    """
    reward_key, reward = _value(row, _REWARDS)
    success_key, success = _value(row, _SUCCESS)
    is_success = success_of(success)
    used = (*used, *_STEPS, *((success_key,) if is_success is not None else ()))
    used = (*used, *((reward_key,) if number_or_none(reward) is not None else ()))
    return dialogue.draft(
        without(row, used),
        reward=number(reward),
        group=optional_text(_value(row, _GROUPS)[1]),
        env=name_of(row.get("env") or row.get("env_id") or row.get("data_source")),
        is_success=is_success,
        **values,
    )


def _prompt_and_reply(row: Row) -> tuple[Any, Any, tuple[str, ...]] | None:
    """Prompt, reply and their keys, by what a user says or by the names of keys; None without a
    reply. A prompt is a text, or messages without a reply among them."""
    mapped = row.get(MAPPED) or {}
    reply_key, reply = ("", mapped["reply"]) if "reply" in mapped else _value(row, _REPLIES)
    prompt_key, prompt = ("", mapped["prompt"]) if "prompt" in mapped else _value(row, _PROMPTS)
    if isinstance(reply, str) or is_messages(reply):
        return prompt, reply, (prompt_key, reply_key)
    return None


def _is_pair(row: Row) -> bool:
    pair = _prompt_and_reply(row)
    if pair is None:
        return False
    if "reply" in (row.get(MAPPED) or {}):
        return True
    prompt, reply, _ = pair
    is_prompt = isinstance(prompt, str) or (
        is_messages(prompt) and all(message["role"] != "assistant" for message in prompt)
    )
    outcomes = (row.get(name) for name in (*_REWARDS, *_SUCCESS))
    is_judged = any(isinstance(value, bool) or not math.isnan(number(value)) for value in outcomes)
    return is_prompt and isinstance(reply, str) and (is_judged or MAPPED in row)


def _pair_drafts(row: Row, where: Where) -> list[Draft]:
    pair = _prompt_and_reply(row)
    assert pair is not None
    prompt, reply, used = pair
    is_guess = False
    if is_messages(reply) or is_messages(prompt):
        asked = [{"role": "user", "content": text_of(prompt)}] if text_of(prompt) else []
        said = reply if is_messages(reply) else [{"role": "assistant", "content": reply}]
        dialogue = read_messages([*(prompt if is_messages(prompt) else asked), *said])
    else:
        dialogue, is_guess = read_flat(text_of(prompt), reply)
    shown = prompt if isinstance(prompt, str) else dialogue.prompt
    return [_draft(row, dialogue, used, is_guess=is_guess, prompt=shown)]


PAIRS = Format(
    name="prompt-and-reply rows",
    trainer="prompt-and-reply rows",
    matches=_is_pair,
    drafts=_pair_drafts,
    step=_step,
)


def _tau_drafts(row: Row, where: Where) -> list[Draft]:
    if not is_messages(row["traj"]):
        raise RowError("the episode has no messages: it ended with an error")
    draft = _draft(row, read_messages(row["traj"]), ("traj",))
    reward = number(row["reward"])
    # As tau-bench counts: an episode is solved where its reward is 1.
    draft.is_success = None if math.isnan(reward) else abs(reward - 1.0) <= 1e-6
    return [draft]


TAU = Format(
    name="tau-bench results",
    trainer="tau-bench",
    matches=has_keys("task_id", "reward", traj=list),
    drafts=_tau_drafts,
)
MESSAGES = Format(
    name="messages JSONL",
    trainer="messages",
    matches=lambda row: _messages(row) is not None,
    drafts=_drafts,
    step=_step,
)
