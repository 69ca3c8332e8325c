"""Rows of no trainer's own: conversations as messages, `{"messages": [{"role", "content"}, ...]}`;
prompt and reply under two keys; the results of tau-bench.

Known beside them: `reward` or `score`, `success` or `is_correct`, `step`, `group_id` and their
cousins. All other fields are kept. With `--map` a user says which key holds what (`Roles`): such a
row is read whatever its keys are called.

A row of prompt and reply with neither a reward nor a success is none: data of fine-tuning looks so.

The traces of a trackio project (`spooled/trackio_traces.py`) are such messages with any metadata.
Rewards, success and groups are read from the metadata under the same names; our export `trackio`
writes such names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...records import Split, StopReason
from ..dialogue import Dialogue, is_messages, read_flat, read_messages
from ..draft import Draft, RowError, number, text_of, whole, without
from ..format import MAPPED, Format, Row, Where, success_of

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
    yield _draft(row, read_messages(messages), (*_KEYS, *_STEPS))


def _draft(row: Row, dialogue: Dialogue, used: tuple[str, ...]) -> Draft:
    """The episode of a dialogue, with what other keys of its row say of it.

    Args:
        used: The keys that hold the text.
    """
    reward_key, reward = _value(row, _REWARDS)
    success_key, success = _value(row, _SUCCESS)
    _, group = _value(row, _GROUPS)
    fields = without(row, (*used, *_STEPS))
    is_success = success_of(success)
    if is_success is not None:
        fields.pop(success_key, None)
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=None if group is None else text_of(group),
        env=text_of(row.get("env") or row.get("env_id") or row.get("data_source"))[:200],
        final_observation=dialogue.final_observation,
        is_success=is_success,
        fields=fields,
    )
    if dialogue.system:
        fields["system"] = dialogue.system
    value = number(reward)
    if value == value:
        draft.set_episode_reward(value)
        fields.pop(reward_key, None)
    return draft


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


def _pair_drafts(row: Row, where: Where) -> Iterator[Draft]:
    pair = _prompt_and_reply(row)
    assert pair is not None
    prompt, reply, used = pair
    is_guess = False
    if is_messages(reply):
        before = prompt if is_messages(prompt) else _as_messages(prompt)
        dialogue = read_messages([*before, *reply])
    elif is_messages(prompt):
        dialogue = read_messages([*prompt, {"role": "assistant", "content": reply}])
    else:
        dialogue, is_guess = read_flat(text_of(prompt), reply)
    draft = _draft(row, dialogue, used)
    if isinstance(prompt, str):
        draft.prompt = prompt
    if is_guess:
        draft.reconstructed.add("turns")
    yield draft


def _as_messages(prompt: Any) -> list[dict[str, str]]:
    text = text_of(prompt)
    return [{"role": "user", "content": text}] if text else []


PAIRS = Format(
    name="prompt-and-reply rows",
    trainer="prompt-and-reply rows",
    matches=_is_pair,
    drafts=_pair_drafts,
    step=_step,
)


def _is_tau(row: Row) -> bool:
    return isinstance(row.get("traj"), list) and "task_id" in row and "reward" in row


def _tau_drafts(row: Row, where: Where) -> Iterator[Draft]:
    if not is_messages(row["traj"]):
        raise RowError("the episode has no messages: it ended with an error")
    draft = _draft(row, read_messages(row["traj"]), ("traj",))
    reward = number(row["reward"])
    # As tau-bench counts: an episode is solved where its reward is 1.
    draft.is_success = None if math.isnan(reward) else abs(reward - 1.0) <= 1e-6
    yield draft


TAU = Format(name="tau-bench results", trainer="tau-bench", matches=_is_tau, drafts=_tau_drafts)


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
