"""ART and agent-lightning: conversations as requests and choices of the OpenAI interface.

ART wrote one group a line, `{"trajectories": [{"messages_and_choices": [...], "reward", ...}]}`,
before that the same as YAML, and writes Parquet now: a row an episode, objects in it as JSON text.

agent-lightning has events: requests of the model with their answers, and rewards. A reward belongs
to the reply before it. Events of one attempt are one row here (`spooled/joined.py`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...records import FinishReason, Split
from ..dialogue import Dialogue, is_messages, read_messages
from ..draft import Draft, DraftTurn, RowError, number, numbers_of, text_of, whole, without
from ..format import Format, Row, Where
from ..lines import BadJsonError, json_of

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
        more = [without(choice, ("message", "finish_reason", "index")) for choice in choices]
        if any(more):
            draft.fields = {**draft.fields, "choices": more}
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


def _is_parquet(row: Row) -> bool:
    messages = row.get("messages")
    return (
        "group_index" in row
        and "reward" in row
        and is_messages(messages)
        and all("trainable" in message for message in messages)
    )


def _parquet_drafts(row: Row, where: Where) -> Iterator[Draft]:
    messages = [
        {**message, "tool_calls": _object(message.get("tool_calls"))} for message in row["messages"]
    ]
    dialogue = read_messages(messages)
    kept = {
        name: _object(value)
        for name, value in without(row, ("messages", "reward", "metrics")).items()
    }
    if dialogue.system:
        kept["system"] = dialogue.system
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=f"{where.path} {text_of(row['group_index'])}",
        split=Split.EVAL if "val" in where.path.parts else Split.IMPORT,
        final_observation=dialogue.final_observation,
        fields=kept,
    )
    draft.set_episode_reward(number(row["reward"]))
    if draft.turns:
        draft.turns[-1].info = numbers_of(_object(row.get("metrics")))
    yield draft


def _object(value: Any) -> Any:
    """What a column holds as JSON text; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json_of(value.encode(errors="replace"))[0]
    except BadJsonError:
        return value


def _is_lightning(row: Row) -> bool:
    return "lightning_rollout" in row and isinstance(row.get("events"), list)


def _requests(row: Row) -> list[Mapping[str, Any]]:
    """The data of the requests that were answered."""
    return [
        event["data"]
        for event in row["events"]
        if event.get("event_type") == "model_request" and _choice(event.get("data")) is not None
    ]


def _choice(data: Any) -> Mapping[str, Any] | None:
    """The first choice of an answer."""
    response = data.get("response") if isinstance(data, Mapping) else None
    choices = response.get("choices") if isinstance(response, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    is_reply = isinstance(first, Mapping) and isinstance(first.get("message"), Mapping)
    return first if is_reply else None


def _lightning_step(row: Row) -> int | None:
    """The training step of the model that was asked first."""
    requests = _requests(row)
    return whole(requests[0].get("model_version")) if requests else None


def _lightning_drafts(row: Row, where: Where) -> Iterator[Draft]:
    requests = _requests(row)
    if not requests:
        raise RowError("the rollout has no request that the model answered")
    dialogue = _conversation(requests)
    rewards = _rewards(row["events"])
    other = [e for e in row["events"] if e.get("event_type") not in ("model_request", "reward")]
    fields: dict[str, Any] = {
        "rollout_id": row["lightning_rollout"],
        "attempt_id": row["attempt_id"],
        "rewards": [e["data"] for e in row["events"] if e.get("event_type") == "reward"],
        "model": requests[0].get("model"),
    }
    if other:
        fields["events"] = other
    if dialogue.system:
        fields["system"] = dialogue.system
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        final_observation=dialogue.final_observation,
        duration_s=_duration(row["events"]),
        fields=fields,
    )
    for turn, data in zip(draft.turns, requests, strict=True):
        _set_request(turn, data)
    if len(rewards) == 1:
        draft.set_episode_reward(rewards[0][1])
    elif rewards:
        for turn in draft.turns:
            turn.reward = 0.0
        for place, value in rewards:
            draft.turns[min(max(place, 0), len(draft.turns) - 1)].reward += value
    yield draft


def _conversation(requests: Sequence[Mapping[str, Any]]) -> Dialogue:
    """One conversation where each request goes on with the last; else a turn for each request."""
    asked = [(data.get("request") or {}).get("messages") for data in requests]
    replies = [{"role": "assistant", **(_choice(data) or {})["message"]} for data in requests]
    if is_messages(asked[-1]):
        said = [m for m in asked[-1] if m["role"] == "assistant"]
        is_one = len(said) == len(requests) - 1 and all(
            text_of(old.get("content")) == text_of(new.get("content"))
            for old, new in zip(said, replies, strict=False)
        )
        if is_one:
            return read_messages([*asked[-1], replies[-1]])
    whole_dialogue = Dialogue()
    for messages, reply in zip(asked, replies, strict=True):
        own = read_messages([reply])
        before = read_messages(messages) if is_messages(messages) else Dialogue()
        seen = [part for t in before.turns for part in (t.observation, t.response)]
        own.turns[0].observation = "\n\n".join(
            part for part in (*seen, before.final_observation) if part
        )
        whole_dialogue.system = whole_dialogue.system or before.system
        whole_dialogue.turns += own.turns
    return whole_dialogue


def _usage(data: Mapping[str, Any]) -> dict[str, Any]:
    """How many tokens a request took, by name."""
    usage = data.get("usage")
    return {f"usage/{k}": v for k, v in usage.items()} if isinstance(usage, Mapping) else {}


def _rewards(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(turn, value) of each reward: that of the reply before it."""
    turn, out = -1, []
    for event in events:
        data = event.get("data")
        if event.get("event_type") == "model_request" and _choice(data) is not None:
            turn += 1
        elif event.get("event_type") == "reward" and isinstance(data, Mapping):
            value = number(data.get("value"))
            if not math.isnan(value):
                out.append((turn, value))
    return out


def _duration(events: Sequence[Mapping[str, Any]]) -> float | None:
    times = [number(event.get("timestamp")) for event in events]
    known = [value for value in times if not math.isnan(value)]
    return max(known) - min(known) if len(known) > 1 else None


def _set_request(turn: DraftTurn, data: Mapping[str, Any]) -> None:
    """What a request says of its reply: version, ending, tokens and log-probs."""
    choice = _choice(data) or {}
    reason = text_of(data.get("finish_reason") or choice.get("finish_reason"))
    turn.finish_reason = _FINISH.get(reason, FinishReason.UNKNOWN)
    turn.policy_version = whole(data.get("model_version"))
    temperature = number((data.get("request") or {}).get("temperature"))
    turn.temperature = None if math.isnan(temperature) else temperature
    turn.info = numbers_of({"latency_ms": data.get("latency_ms"), **_usage(data)})
    prompt = data["response"].get("prompt_token_ids")
    tokens = choice.get("token_ids")
    if not isinstance(prompt, list) or not isinstance(tokens, list) or not tokens:
        return
    turn.prompt_tokens = np.array(prompt, dtype=np.int32)
    turn.response_tokens = np.array(tokens, dtype=np.int32)
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if isinstance(content, list) and len(content) == len(tokens):
        values = [number(entry.get("logprob")) for entry in content]
        turn.logprobs = np.array(values, dtype=np.float32)


PARQUET = Format(
    name="ART trajectories Parquet", trainer="ART", matches=_is_parquet, drafts=_parquet_drafts
)
EVENTS = Format(
    name="agent-lightning events",
    trainer="agent-lightning",
    matches=_is_lightning,
    drafts=_lightning_drafts,
    step=_lightning_step,
)
