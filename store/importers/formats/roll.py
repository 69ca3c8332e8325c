"""ROLL: a line is a dict of columns, one entry an episode; verified answers or agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .. import read
from ..dialogue import is_messages, read_messages
from ..draft import Draft, RowError
from ..format import Format, Row, Where
from .by_keys import Keys, draft_of


def _matches(row: Row) -> bool:
    is_known = "trajectory_data" in row or ("responses" in row and "scores" in row)
    return "global_step" in row and is_known and _length(row) is not None


def _length(row: Row) -> int | None:
    """The number of episodes: every column that is a list has as many entries."""
    column = row.get("trajectory_data", row.get("responses"))
    return len(column) if isinstance(column, list) else None


def _step(row: Row) -> int | None:
    value = row["global_step"]
    return read.whole(value[0] if isinstance(value, list) and value else value)


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
        yield _agent_draft(entry) if is_agent else draft_of(entry, _ANSWER)
    if not num_read:
        raise RowError("the line has no episodes")


_ANSWER = Keys(
    prompt=("messages", "prompt"),
    reply=("responses",),
    reward=("scores",),
    group=("id",),
    env=("domain",),
    tag=("tag",),
    step=("global_step",),
)
"""Of an entry with a verified answer."""


def _agent_draft(entry: Mapping[str, Any]) -> Draft:
    data = read.json_in(entry["trajectory_data"])
    if not isinstance(data, Mapping):
        raise RowError("trajectory_data is no JSON object")
    metrics, messages = read.inner(data, "metrics"), read.json_in(entry.get("messages"))
    if not is_messages(messages) or not (dialogue := read_messages(messages)).turns:
        raise RowError("the episode has no messages")
    draft = dialogue.draft(
        {
            "trajectory_data": read.without(data, ("last_observation", "metrics")),
            **read.without(entry, ("trajectory_data", "messages", "global_step")),
        },
        group=read.text_or_none(read.inner(data, "env_info", "group_id")),
        env=read.name(read.inner(data, "env_info", "tag")),
        final_observation=dialogue.final_observation or read.text(data.get("last_observation")),
        stop_reason=read.stop(read.inner(data, "failure_info", "stop_reason")),
        is_success=read.truth(read.inner(metrics, "success")),
    )
    if not draft.set_turn_rewards(read.inner(data, "reward_info", "step_rewards")):
        draft.set_episode_reward(read.number(read.inner(data, "reward_info", "episode_reward")))
    draft.turns[-1].info = read.numbers(metrics)
    rest = read.without(metrics, draft.turns[-1].info) if isinstance(metrics, Mapping) else {}
    if rest:
        draft.fields = {**draft.fields, "metrics": rest}
    return draft


COLUMNS = Format(
    name="ROLL rollout columns", trainer="ROLL", matches=_matches, drafts=_drafts, step=_step
)
