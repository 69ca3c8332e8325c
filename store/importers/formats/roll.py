"""ROLL: a line is a dict of columns, one entry an episode; verified answers or agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...records import StopReason
from ..dialogue import is_messages, read_flat, read_messages
from ..draft import (
    Draft,
    RowError,
    inner,
    name_of,
    number,
    numbers_of,
    optional_text,
    text_of,
    truth,
    whole,
    without,
)
from ..format import Format, Row, Where
from ..lines import BadJsonError, json_of

_STOPS = {
    "finish": StopReason.TERMINATED,
    "max_steps": StopReason.MAX_TURNS,
    "max_length": StopReason.MAX_TOKENS,
    "env_timeout": StopReason.TIMEOUT,
}


def _matches(row: Row) -> bool:
    is_known = "trajectory_data" in row or ("responses" in row and "scores" in row)
    return "global_step" in row and is_known and _length(row) is not None


def _length(row: Row) -> int | None:
    """The number of episodes: every column that is a list has as many entries."""
    column = row.get("trajectory_data", row.get("responses"))
    return len(column) if isinstance(column, list) else None


def _step(row: Row) -> int | None:
    value = row["global_step"]
    return whole(value[0] if isinstance(value, list) and value else value)


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    size = _length(row) or 0
    is_agent = "trajectory_data" in row
    num_read = 0
    for index in range(size):
        entry = {
            name: value[index] if isinstance(value, list) and len(value) == size else value
            for name, value in row.items()
        }
        # Rows other than the last of a stepwise trajectory are empty.
        if is_agent and not entry["trajectory_data"]:
            continue
        num_read += 1
        yield _agent_draft(entry) if is_agent else _answer_draft(entry)
    if not num_read:
        raise RowError("the line has no episodes")


def _answer_draft(entry: Mapping[str, Any]) -> Draft:
    messages, response = entry.get("messages"), text_of(entry["responses"])
    if is_messages(messages):
        dialogue = read_messages([*messages, {"role": "assistant", "content": response}])
    else:
        dialogue, _ = read_flat(text_of(entry.get("prompt")), response)
    draft = dialogue.draft(
        without(entry, ("prompt", "messages", "responses", "scores", "global_step")),
        reward=number(entry["scores"]),
        prompt=text_of(entry.get("prompt")) or dialogue.prompt,
        group=optional_text(entry.get("id")),
        env=name_of(entry.get("domain")),
        tag=name_of(entry.get("tag")),
        final_observation="",
    )
    draft.fields = {name: value for name, value in draft.fields.items() if name != "system"}
    return draft


def _agent_draft(entry: Mapping[str, Any]) -> Draft:
    data = _parsed(entry["trajectory_data"])
    if not isinstance(data, Mapping):
        raise RowError("trajectory_data is no JSON object")
    metrics, messages = inner(data, "metrics"), _parsed(entry.get("messages"))
    if not is_messages(messages) or not (dialogue := read_messages(messages)).turns:
        raise RowError("the episode has no messages")
    stop = text_of(inner(data, "failure_info", "stop_reason")).lower()
    draft = dialogue.draft(
        {
            "trajectory_data": without(data, ("last_observation", "metrics")),
            **without(entry, ("trajectory_data", "messages", "global_step")),
        },
        group=optional_text(inner(data, "env_info", "group_id")),
        env=name_of(inner(data, "env_info", "tag")),
        final_observation=dialogue.final_observation or text_of(data.get("last_observation")),
        stop_reason=_STOPS.get(stop, StopReason.UNKNOWN),
        is_success=truth(inner(metrics, "success")),
    )
    rewards = inner(data, "reward_info", "step_rewards")
    if isinstance(rewards, list) and len(rewards) == len(draft.turns):
        for turn, value in zip(draft.turns, rewards, strict=True):
            turn.reward = number(value)
    else:
        draft.set_episode_reward(number(inner(data, "reward_info", "episode_reward")))
    draft.turns[-1].info = numbers_of(metrics)
    rest = without(metrics, draft.turns[-1].info) if isinstance(metrics, Mapping) else {}
    if rest:
        draft.fields = {**draft.fields, "metrics": rest}
    return draft


def _parsed(value: Any) -> Any:
    """What a column holds as JSON text; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json_of(value.encode(errors="replace"))[0]
    except BadJsonError as error:
        raise RowError(f"a column is {error}") from None


COLUMNS = Format(
    name="ROLL rollout columns", trainer="ROLL", matches=_matches, drafts=_drafts, step=_step
)
