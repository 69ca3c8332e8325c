"""ROLL: a line is a dict of columns, one entry an episode; verified answers or agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...records import StopReason
from ..dialogue import Dialogue, is_messages, read_flat, read_messages
from ..draft import Draft, RowError, number, numbers_of, text_of, truth, whole, without
from ..format import Format, Row, Where
from ..lines import BadJsonError, json_of


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
    messages = entry.get("messages")
    response = text_of(entry["responses"])
    if is_messages(messages):
        dialogue = read_messages([*messages, {"role": "assistant", "content": response}])
    else:
        dialogue, _ = read_flat(text_of(entry.get("prompt")), response)
    fields = without(entry, ("prompt", "messages", "responses", "scores", "global_step"))
    draft = Draft(
        turns=dialogue.turns,
        prompt=text_of(entry.get("prompt")) or dialogue.prompt,
        group=None if entry.get("id") is None else text_of(entry["id"]),
        env=text_of(entry.get("domain"))[:200],
        tag=text_of(entry.get("tag"))[:200],
        fields=fields,
    )
    draft.set_episode_reward(number(entry["scores"]))
    return draft


def _agent_draft(entry: Mapping[str, Any]) -> Draft:
    data = _object(entry["trajectory_data"])
    env, reward = _part(data, "env_info"), _part(data, "reward_info")
    failure = _part(data, "failure_info")
    messages = entry.get("messages")
    if isinstance(messages, str):
        messages = _json(messages)
    dialogue = read_messages(messages) if is_messages(messages) else Dialogue()
    if not dialogue.turns:
        raise RowError("the episode has no messages")
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=None if env.get("group_id") is None else text_of(env["group_id"]),
        env=text_of(env.get("tag"))[:200],
        final_observation=dialogue.final_observation or text_of(data.get("last_observation")),
        stop_reason=_stop(text_of(failure.get("stop_reason"))),
        is_success=truth(_part(data, "metrics").get("success")),
        fields={
            "trajectory_data": without(data, ("last_observation", "metrics")),
            **without(entry, ("trajectory_data", "messages", "global_step")),
            **({"system": dialogue.system} if dialogue.system else {}),
        },
    )
    rewards = reward.get("step_rewards")
    if isinstance(rewards, list) and len(rewards) == len(draft.turns):
        for turn, value in zip(draft.turns, rewards, strict=True):
            turn.reward = number(value)
    else:
        draft.set_episode_reward(number(reward.get("episode_reward")))
    metrics = _part(data, "metrics")
    draft.turns[-1].info = numbers_of(metrics)
    rest = without(metrics, draft.turns[-1].info)
    if rest:
        draft.fields = {**draft.fields, "metrics": rest}
    return draft


def _stop(text: str) -> StopReason:
    known = {
        "finish": StopReason.TERMINATED,
        "max_steps": StopReason.MAX_TURNS,
        "max_length": StopReason.MAX_TOKENS,
        "env_timeout": StopReason.TIMEOUT,
    }
    return known.get(text.lower(), StopReason.UNKNOWN)


def _object(value: Any) -> Mapping[str, Any]:
    found = _json(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        raise RowError("trajectory_data is no JSON object")
    return found


def _json(text: str) -> Any:
    try:
        return json_of(text.encode(errors="replace"))[0]
    except BadJsonError as error:
        raise RowError(f"a column is {error}") from None


def _part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}


COLUMNS = Format(
    name="ROLL rollout columns", trainer="ROLL", matches=_matches, drafts=_drafts, step=_step
)
