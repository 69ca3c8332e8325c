"""ART and agent-lightning: conversations as requests and choices of the OpenAI interface.

ART wrote one group a line, `{"trajectories": [{"messages_and_choices": [...], "reward", ...}]}`.
(Its Parquet files are in `table.py`.)

agent-lightning has events: requests of the model with their answers, and rewards. A reward belongs
to the reply before it. Events of one attempt are one row here (`spooled/logs.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import read
from ..dialogue import Dialogue, is_messages, read_messages
from ..draft import Draft, DraftTurn, RowError
from ..format import Format, Row, Where, has_keys


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    text = f"{where.path} {read.text(row['trajectories'])}"
    group = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
    for trajectory in row["trajectories"]:
        items = trajectory["messages_and_choices"]
        choices = [item for item in items if isinstance(item.get("message"), Mapping)]
        more = [read.without(choice, ("message", "finish_reason", "index")) for choice in choices]
        draft = read_messages([_message(item) for item in items]).draft(
            {
                **read.without(trajectory, ("messages_and_choices", "reward", "metrics")),
                **({"choices": more} if any(more) else {}),
            },
            reward=read.number(trajectory.get("reward")),
            group=group,
        )
        if len(choices) == len(draft.turns):
            for turn, choice in zip(draft.turns, choices, strict=True):
                turn.finish_reason = read.finish(choice.get("finish_reason"))
        draft.add_info(read.numbers(trajectory.get("metrics")))
        yield draft


def _message(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as it is, or the message of a choice of the OpenAI interface."""
    answer = item.get("message")
    return {"role": "assistant", **answer} if isinstance(answer, Mapping) else item


GROUPS = Format(
    name="ART trajectory groups",
    trainer="ART",
    matches=lambda row: any(
        "messages_and_choices" in first for first in read.objects(row.get("trajectories"))[:1]
    ),
    drafts=_drafts,
    is_split_by_name=True,
)


def _requests(row: Row) -> list[Mapping[str, Any]]:
    """The data of the requests that were answered."""
    return [event["data"] for event in row["events"] if _is_answered(event)]


def _is_answered(event: Mapping[str, Any]) -> bool:
    return event.get("event_type") == "model_request" and bool(_choice(event.get("data")))


def _choice(data: Any) -> Mapping[str, Any]:
    """The first choice of an answer; nothing where it is no reply."""
    choices = read.inner(data, "response", "choices")
    first = next(iter(read.objects(choices)), {})
    return first if isinstance(first.get("message"), Mapping) else {}


def _lightning_step(row: Row) -> int | None:
    """The training step of the model that was asked first."""
    requests = _requests(row)
    return read.whole(requests[0].get("model_version")) if requests else None


def _lightning_drafts(row: Row, where: Where) -> list[Draft]:
    events, requests = row["events"], _requests(row)
    if not requests:
        raise RowError("the rollout has no request that the model answered")
    other = [e for e in events if e.get("event_type") not in ("model_request", "reward")]
    stamps = [read.number_or_none(event.get("timestamp")) for event in events]
    times = [stamp for stamp in stamps if stamp is not None]
    draft = _conversation(requests).draft(
        {
            "rollout_id": row["lightning_rollout"],
            "attempt_id": row["attempt_id"],
            "rewards": [e["data"] for e in events if e.get("event_type") == "reward"],
            "model": requests[0].get("model"),
            **({"events": other} if other else {}),
        },
        duration_s=max(times) - min(times) if len(times) > 1 else None,
    )
    for turn, data in zip(draft.turns, requests, strict=True):
        _set_request(turn, data)
    rewards = _rewards(events)
    if len(rewards) == 1:
        draft.set_episode_reward(rewards[0][1])
    elif rewards:
        for turn in draft.turns:
            turn.reward = 0.0
        for turn_index, value in rewards:
            draft.turns[min(max(turn_index, 0), len(draft.turns) - 1)].reward += value
    return [draft]


def _conversation(requests: Sequence[Mapping[str, Any]]) -> Dialogue:
    """One conversation where each request goes on with the last; else a turn for each request."""
    asked = [read.inner(data, "request", "messages") for data in requests]
    replies = [{"role": "assistant", **_choice(data)["message"]} for data in requests]
    if is_messages(asked[-1]):
        replies_before = [m for m in asked[-1] if m["role"] == "assistant"]
        is_one = len(replies_before) == len(requests) - 1 and all(
            read.text(old.get("content")) == read.text(new.get("content"))
            for old, new in zip(replies_before, replies, strict=False)
        )
        if is_one:
            return read_messages([*asked[-1], replies[-1]])
    whole_dialogue = Dialogue()
    for messages, reply in zip(asked, replies, strict=True):
        reply_turn = read_messages([reply])
        before = read_messages(messages) if is_messages(messages) else Dialogue()
        seen = [part for t in before.turns for part in (t.observation, t.response)]
        reply_turn.turns[0].observation = "\n\n".join(
            part for part in (*seen, before.final_observation) if part
        )
        whole_dialogue.system = whole_dialogue.system or before.system
        whole_dialogue.turns += reply_turn.turns
    return whole_dialogue


def _rewards(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(turn, value) of each reward: that of the reply before it."""
    turn, out = -1, []
    for event in events:
        turn += _is_answered(event)
        value = read.number_or_none(read.inner(event, "data", "value"))
        if event.get("event_type") == "reward" and value is not None:
            out.append((turn, value))
    return out


def _set_request(turn: DraftTurn, data: Mapping[str, Any]) -> None:
    """What a request says of its reply: version, ending, tokens and log-probs."""
    choice, usage = _choice(data), data.get("usage")
    turn.finish_reason = read.finish(data.get("finish_reason") or choice.get("finish_reason"))
    turn.policy_version = read.whole(data.get("model_version"))
    turn.temperature = read.number_or_none(read.inner(data, "request", "temperature"))
    counts = usage.items() if isinstance(usage, Mapping) else ()
    named = {f"usage/{name}": value for name, value in counts}
    turn.info = read.numbers({"latency_ms": data.get("latency_ms"), **named})
    content = read.inner(choice, "logprobs", "content")
    logprobs = [read.inner(e, "logprob") for e in content] if isinstance(content, list) else None
    turn.set_tokens(data["response"].get("prompt_token_ids"), choice.get("token_ids"), logprobs)


EVENTS = Format(
    name="agent-lightning events",
    trainer="agent-lightning",
    matches=has_keys("lightning_rollout", events=list),
    drafts=_lightning_drafts,
    step=_lightning_step,
)
