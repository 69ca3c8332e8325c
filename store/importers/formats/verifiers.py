"""verifiers: `results.jsonl` of the older evaluations, and the episodes of v1 and of prime-rl.

An episode of v1 holds traces, and a trace is a graph of messages: each leaf is one branch of the
conversation, read from the root. Several leaves mean compaction or sub-agents. Tokens, their
log-probs and advantages are taken where every message of the branch has them. What prime-rl
writes later, as annotations beside the episodes, is not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...records import FloatArray, Split, StopReason
from .. import read
from ..dialogue import is_messages, read_messages
from ..draft import Draft, RowError
from ..format import Format, Row, Where, has_keys
from .by_keys import Keys, by_keys

_LEGACY = Keys(
    prompt=("prompt",),
    reply=("completion",),
    group=("example_id",),
    stop=("stop_condition",),
    step=(),
)
_MAX_LEAVES = 64
_PER_TOKEN = ("logprobs", "entropies", "reference_logprobs", "advantages")


_has_legacy_keys = has_keys("example_id", "reward", completion=list)


def _of_legacy(draft: Draft, row: Row, where: Where) -> None:
    timing, metrics = row.get("timing"), read.numbers(row.get("metrics"))
    draft.add_info(metrics)
    draft.stop_reason = _stop(row.get("stop_condition"), row.get("is_completed"), row.get("error"))
    draft.env = _env_of(where)
    milliseconds = read.number_or_none(read.inner(timing, "total_ms"))
    draft.duration_s = None if milliseconds is None else milliseconds / 1000
    draft.fields = {
        name: value
        for name, value in read.without(draft.fields, ("metrics", "is_completed")).items()
        # Each metric is repeated at the top level.
        if name not in metrics or read.number(value) != metrics[name]
    }


def _env_of(where: Where) -> str:
    """The environment that the folder `<env>--<model>` names."""
    named = (part.split("--")[0] for part in where.path.parts[:-1] if "--" in part)
    return next(named, "")


def _stop(condition: Any, is_completed: object, error: object) -> StopReason:
    if error:
        return StopReason.ENV_ERROR
    reason = read.stop(condition)
    is_done = reason is StopReason.UNKNOWN and is_completed is True
    return StopReason.TERMINATED if is_done else reason


def _episode_step(row: Row) -> int | None:
    return read.whole(read.inner(row, "run", "work", "step"))


def _episode_drafts(row: Row, where: Where) -> Iterator[Draft]:
    num_traces = 0
    for trace in row["traces"]:
        nodes = trace.get("nodes") if isinstance(trace, Mapping) else None
        if not isinstance(nodes, list) or not nodes:
            continue
        leaves = _leaves(nodes)
        for number_, leaf in enumerate(leaves[:_MAX_LEAVES]):
            draft = _branch(row, trace, _path(nodes, leaf))
            if len(leaves) > 1:
                draft.reconstructed.add("branches")
                draft.fields = {**draft.fields, "branch": f"{number_ + 1} of {len(leaves)}"}
            num_traces += 1
            yield draft
    if not num_traces:
        raise RowError("the episode has no trace with messages")


def _leaves(nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The messages that none follows: the last one of each branch."""
    parents = {read.whole(node.get("parent")) for node in nodes}
    return [index for index in range(len(nodes)) if index not in parents]


def _path(nodes: Sequence[Any], leaf: int) -> list[Any]:
    """The messages from the root to a leaf.

    Raises:
        RowError: the parents do not lead to a root.
    """
    path, index = [], leaf
    while True:
        path.append(nodes[index])
        parent = nodes[index].get("parent")
        if parent is None:
            return path[::-1]
        following = read.whole(parent)
        if following is None or not 0 <= following < index:
            raise RowError("the messages of a trace form no tree")
        index = following


def _branch(row: Row, trace: Mapping[str, Any], path: Sequence[Mapping[str, Any]]) -> Draft:
    scored = trace.get("rewards")
    rewards: Mapping[str, Any] = scored if isinstance(scored, Mapping) else {}
    work = read.inner(row, "run", "work")
    is_evaluation = read.inner(work, "type") == "eval" and _episode_step(row) is not None
    fields: dict[str, Any] = {
        "episode": read.without(row, ("traces",)),
        "trace": read.without(trace, ("nodes", "metrics")),
    }
    if any(node.get("timestamp") is not None for node in path):
        fields["timestamps"] = [node.get("timestamp") for node in path]
    task = read.inner(row, "task", "hash") or read.inner(row, "task", "key")
    draft = read_messages([_shown(node) for node in path]).draft(
        fields,
        reward=_total_reward(rewards),
        group=read.text_or_none(read.inner(row, "group", "id") or task),
        split=Split.EVAL if is_evaluation else Split.IMPORT,
        env=read.name(read.inner(row, "env", "name") or read.inner(row, "env", "id")),
        stop_reason=_stop(
            trace.get("stop_condition"),
            trace.get("is_completed"),
            trace.get("errors") or row.get("errors"),
        ),
        advantage=read.number_or_none(read.inner(trace, "info", "advantage")),
    )
    for turn in draft.turns:
        turn.policy_version = read.whole(read.inner(work, "policy", "start"))
    scores = {f"reward/{k}": read.number(read.inner(v, "score")) for k, v in rewards.items()}
    draft.add_info({**read.numbers(trace.get("metrics")), **read.numbers(scores)})
    _set_tokens(draft, path)
    return draft


def _is_reply(node: Mapping[str, Any]) -> bool:
    """Whether the policy wrote the message: a reply may also be given, as an example."""
    return node["message"].get("role") == "assistant" and node.get("sampled") is not False


def _shown(node: Mapping[str, Any]) -> Mapping[str, Any]:
    message: Mapping[str, Any] = node["message"]
    is_given = message.get("role") == "assistant" and not _is_reply(node)
    return {**message, "role": "given"} if is_given else message


def _total_reward(rewards: Mapping[str, Any]) -> float:
    """The weighted sum of the scores; NaN without any."""
    parts = []
    for value in rewards.values():
        score, weight = read.number(read.inner(value, "score")), read.inner(value, "weight")
        if not math.isnan(score):
            parts.append(score * (1.0 if weight is None else read.number(weight)))
    return sum(parts) if parts else math.nan


def _set_tokens(draft: Draft, path: Sequence[Mapping[str, Any]]) -> None:
    """Tokens of each turn, where every message has its own; nothing where one has not."""
    if not all(isinstance(node.get("token_ids"), list) and node["token_ids"] for node in path):
        return
    context: list[int] = []
    sampled: list[tuple[list[int], list[int], dict[str, Any]]] = []
    for node in path:
        ids = node["token_ids"]
        if _is_reply(node):
            mask = node.get("mask") or [True] * len(ids)
            runs = read.sampled_runs(mask)
            if len(mask) != len(ids) or len(runs) != 1:
                return  # the sampled tokens of a reply must follow each other
            ((first, last),) = runs
            values = {name: _aligned(node.get(name), first, last, len(ids)) for name in _PER_TOKEN}
            sampled.append(([*context, *ids[:first]], ids[first:last], values))
        context += ids
    for turn, (prompt, response, values) in zip(draft.turns, sampled, strict=True):
        turn.set_tokens(prompt, response)
        turn.logprobs, turn.entropies = values["logprobs"], values["entropies"]
    for name in ("reference_logprobs", "advantages"):
        arrays = tuple(values[name] for *_, values in sampled)
        if arrays and all(array is not None for array in arrays):
            setattr(draft, name, arrays)


def _aligned(values: Any, first: int, last: int, size: int) -> FloatArray | None:
    """Values of the sampled tokens: one each, or one per token of the message."""
    if not isinstance(values, list):
        return None
    if len(values) == size:
        values = values[first:last]
    return read.floats(values) if len(values) == last - first else None


LEGACY = by_keys(
    _LEGACY,
    _of_legacy,
    name="verifiers results JSONL",
    trainer="verifiers",
    matches=lambda row: _has_legacy_keys(row) and is_messages(row.get("prompt")),
)
EPISODES = Format(
    name="verifiers v1 episodes",
    trainer="verifiers",
    matches=has_keys("run", traces=list, env=Mapping, task=Mapping),
    drafts=_episode_drafts,
    step=_episode_step,
)
