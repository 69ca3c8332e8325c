"""verifiers: `results.jsonl` of the older evaluations, and the episodes of v1 and of prime-rl.

An episode of v1 holds traces, and a trace is a graph of messages: each leaf is one branch of the
conversation, read from the root. Several leaves mean compaction or sub-agents. Tokens, their
log-probs and advantages are taken where every message of the branch has them. prime-rl writes
advantages and the trainer's log-probs later, as updates (`spooled/prime_annotations.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...records import Split, StopReason
from ..dialogue import Dialogue, is_messages, read_messages
from ..draft import Draft, RowError, number, numbers_of, text_of, whole, without
from ..format import Format, Row, Where

_LEGACY_USED = (
    *("prompt", "completion", "reward", "metrics", "timing", "is_completed", "stop_condition"),
)
_MAX_LEAVES = 64
_UPDATED = ("advantages", "trainer_logprobs", "entropies")
"""Values of tokens that an update may bring."""
_PER_TOKEN = ("logprobs", "reference_logprobs", *_UPDATED)
_MAX_DEPTH = 20


def _is_legacy(row: Row) -> bool:
    return (
        "example_id" in row
        and is_messages(row.get("prompt"))
        and isinstance(row.get("completion"), list)
        and "reward" in row
    )


def _legacy_drafts(row: Row, where: Where) -> Iterator[Draft]:
    dialogue = read_messages([*row["prompt"], *row["completion"]])
    metrics = numbers_of(row.get("metrics"))
    # Each metric is repeated at the top level.
    fields = {
        name: value
        for name, value in without(row, _LEGACY_USED).items()
        if name not in metrics or number(value) != metrics[name]
    }
    if dialogue.system:
        fields["system"] = dialogue.system
    timing = row.get("timing")
    milliseconds = number(timing.get("total_ms")) if isinstance(timing, Mapping) else math.nan
    more_timing = without(timing, ("total_ms",)) if isinstance(timing, Mapping) else {}
    if more_timing:
        fields["timing"] = more_timing
    condition = text_of(row.get("stop_condition"))
    if condition:
        fields["stop_condition"] = condition
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=text_of(row["example_id"]),
        env=_env_of(where),
        final_observation=dialogue.final_observation,
        stop_reason=_stop(condition, row.get("is_completed"), row.get("error")),
        duration_s=None if math.isnan(milliseconds) else milliseconds / 1000,
        fields=fields,
    )
    draft.set_episode_reward(number(row["reward"]))
    if draft.turns:
        draft.turns[-1].info = metrics
    yield draft


def _env_of(where: Where) -> str:
    """The environment that the folder `<env>--<model>` names."""
    named = (part.split("--")[0] for part in where.path.parts[:-1] if "--" in part)
    return next(named, "")


def _stop(condition: str, is_completed: object, error: object) -> StopReason:
    text = condition.lower()
    if error or "error" in text:
        return StopReason.ENV_ERROR
    for words, reason in (
        ("max_turns", StopReason.MAX_TURNS),
        ("prompt_too_long", StopReason.PROMPT_TOO_LONG),
        ("max_tokens", StopReason.MAX_TOKENS),
        ("timeout", StopReason.TIMEOUT),
        ("abort", StopReason.ABORTED),
    ):
        if words in text:
            return reason
    return StopReason.TERMINATED if is_completed is True else StopReason.UNKNOWN


def _is_episode(row: Row) -> bool:
    return (
        isinstance(row.get("traces"), list)
        and isinstance(row.get("env"), Mapping)
        and isinstance(row.get("task"), Mapping)
        and "run" in row
    )


def _inner(value: Any, *names: str) -> Any:
    """A value inside objects; None where one of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _episode_step(row: Row) -> int | None:
    return whole(_inner(row, "run", "work", "step"))


def _episode_drafts(row: Row, where: Where) -> Iterator[Draft]:
    num_traces = 0
    updates = row.get("_annotations")
    for written in row["traces"]:
        trace = _updated(written, updates) if isinstance(updates, list) else written
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
    parents = {whole(node.get("parent")) for node in nodes}
    return [index for index in range(len(nodes)) if index not in parents]


def _path(nodes: Sequence[Any], leaf: int) -> list[Any]:
    """The messages from the root to a leaf.

    Raises:
        RowError: the parents do not lead to a root.
    """
    path, at = [], leaf
    while True:
        path.append(nodes[at])
        parent = nodes[at].get("parent")
        if parent is None:
            return path[::-1]
        following = whole(parent)
        if following is None or not 0 <= following < at:
            raise RowError("the messages of a trace form no tree")
        at = following


def _branch(row: Row, trace: Mapping[str, Any], path: Sequence[Mapping[str, Any]]) -> Draft:
    dialogue = read_messages([_shown(node) for node in path])
    rewards = trace.get("rewards")
    total = _total_reward(rewards)
    step = _episode_step(row)
    is_evaluation = _inner(row, "run", "work", "type") == "eval" and step is not None
    errors = trace.get("errors") or row.get("errors")
    fields: dict[str, Any] = {
        "episode": without(row, ("traces", "_annotations")),
        "trace": without(trace, ("nodes", "metrics")),
    }
    if dialogue.system:
        fields["system"] = dialogue.system
    if any(node.get("timestamp") is not None for node in path):
        fields["timestamps"] = [node.get("timestamp") for node in path]
    advantage = number(_inner(trace, "info", "advantage"))
    condition = text_of(trace.get("stop_condition"))
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=_group_of(row),
        split=Split.EVAL if is_evaluation else Split.IMPORT,
        env=text_of(_inner(row, "env", "name") or _inner(row, "env", "id"))[:200],
        final_observation=dialogue.final_observation,
        stop_reason=_stop(condition, trace.get("is_completed"), errors),
        advantage=None if math.isnan(advantage) else advantage,
        is_kept=None if is_evaluation or not _is_used(trace) else True,
        fields=fields,
    )
    draft.set_episode_reward(total)
    version = whole(_inner(row, "run", "work", "policy", "start"))
    for turn in draft.turns:
        turn.policy_version = version
    if draft.turns:
        scores = rewards if isinstance(rewards, Mapping) else {}
        named = {f"reward/{k}": number(_inner(v, "score")) for k, v in scores.items()}
        known = {name: value for name, value in named.items() if not math.isnan(value)}
        draft.turns[-1].info = {**numbers_of(trace.get("metrics")), **known}
    _set_tokens(draft, dialogue, path)
    return draft


def _is_used(trace: Mapping[str, Any]) -> bool:
    """Whether an update of prime-rl's trainer used the trace; nothing is written of the others."""
    info = trace.get("info")
    return _inner(info, "effective") is True or _inner(info, "train", "effective") is True


def _updated(trace: Any, updates: Sequence[Any]) -> Any:
    """A trace with what was written of it afterwards; the newest counts."""
    nodes = trace.get("nodes") if isinstance(trace, Mapping) else None
    own = [u for u in updates if isinstance(u, Mapping) and u.get("trace_id") == trace.get("id")]
    if not isinstance(nodes, list) or not all(isinstance(n, Mapping) for n in nodes) or not own:
        return trace
    nodes = [dict(node) for node in nodes]
    info = trace.get("info")
    leaves = _leaves(nodes)[:_MAX_LEAVES]
    for update in own:
        info = _merged(info, update.get("info") or {})
        branches = update.get("branches")
        for branch in branches if isinstance(branches, list) else ():
            index = whole(_inner(branch, "index"))
            if index is None or not 0 <= index < len(leaves):
                continue
            for name in _UPDATED:
                _spread(branch.get(name), name, _path(nodes, leaves[index]))
    return {**trace, "nodes": nodes, "info": info}


def _merged(old: Any, new: Any, depth: int = 0) -> Any:
    """Two objects, the second one's values first."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping) or depth > _MAX_DEPTH:
        return new
    return {**old, **{k: _merged(old.get(k), v, depth + 1) for k, v in new.items()}}


def _spread(values: Any, name: str, path: Sequence[dict[str, Any]]) -> None:
    """Give the messages of a branch their part of a list with a value for each of its tokens.

    A message takes its part if each of its sampled tokens has a value.
    """
    if not isinstance(values, list):
        return
    begin = 0
    for node in path:
        ids = node.get("token_ids")
        size = len(ids) if isinstance(ids, list) else 0
        own = values[begin : begin + size]
        begin += size
        mask = node.get("mask")
        if len(own) < size:
            return
        if not isinstance(mask, list) or len(mask) != size:
            continue
        sampled = [value for value, is_sampled in zip(own, mask, strict=True) if is_sampled]
        if sampled and not any(math.isnan(number(value)) for value in sampled):
            node[name] = sampled


def _is_reply(node: Mapping[str, Any]) -> bool:
    """Whether the policy wrote the message: a reply may also be given, as an example."""
    return node["message"].get("role") == "assistant" and node.get("sampled") is not False


def _shown(node: Mapping[str, Any]) -> Mapping[str, Any]:
    message: Mapping[str, Any] = node["message"]
    is_given = message.get("role") == "assistant" and not _is_reply(node)
    return {**message, "role": "given"} if is_given else message


def _group_of(row: Row) -> str | None:
    group = _inner(row, "group", "id") or _inner(row, "task", "hash") or _inner(row, "task", "key")
    return None if group is None else text_of(group)


def _total_reward(rewards: Any) -> float:
    """The weighted sum of the scores; NaN without any."""
    if not isinstance(rewards, Mapping):
        return math.nan
    parts = []
    for value in rewards.values():
        score = number(_inner(value, "score"))
        weight = _inner(value, "weight")
        if not math.isnan(score):
            parts.append(score * (1.0 if weight is None else number(weight)))
    return sum(parts) if parts else math.nan


def _set_tokens(draft: Draft, dialogue: Dialogue, path: Sequence[Mapping[str, Any]]) -> None:
    """Tokens of each turn, where every message has its own; nothing where one has not."""
    if not all(isinstance(node.get("token_ids"), list) and node["token_ids"] for node in path):
        return
    context: list[int] = []
    found: list[tuple[list[int], list[int], dict[str, Any]]] = []
    for node in path:
        ids = node["token_ids"]
        if not _is_reply(node):
            context += ids
            continue
        mask = node.get("mask") or [True] * len(ids)
        sampled = np.flatnonzero(np.array(mask, dtype=bool))
        if len(mask) != len(ids) or not len(sampled):
            return
        first, last = int(sampled[0]), int(sampled[-1]) + 1
        if last - first != len(sampled):
            return  # the sampled tokens of a reply must follow each other
        found.append(
            (
                [*context, *ids[:first]],
                ids[first:last],
                {name: _aligned(node.get(name), first, last, len(ids)) for name in _PER_TOKEN},
            )
        )
        context += ids
    for turn, (prompt, response, values) in zip(draft.turns, found, strict=True):
        turn.prompt_tokens = np.array(prompt, dtype=np.int32)
        turn.response_tokens = np.array(response, dtype=np.int32)
        turn.logprobs, turn.entropies = values["logprobs"], values["entropies"]
    references = [values["reference_logprobs"] for *_, values in found]
    if references and all(values is not None for values in references):
        draft.reference_logprobs = tuple(references)
    retold = [values["trainer_logprobs"] for *_, values in found]
    if retold and all(values is not None for values in retold):
        draft.trainer_logprobs = tuple(retold)
    advantages = [values["advantages"] for *_, values in found]
    if advantages and all(values is not None for values in advantages):
        draft.advantages = tuple(advantages)
        joined = np.concatenate(advantages)
        if draft.advantage is None and len(joined):
            draft.advantage = float(joined.mean())


def _aligned(values: Any, first: int, last: int, size: int) -> Any:
    """Values of the sampled tokens: one each, or one per token of the message."""
    if not isinstance(values, list):
        return None
    if len(values) == size:
        values = values[first:last]
    if len(values) != last - first:
        return None
    return np.array([number(value) for value in values], dtype=np.float32)


LEGACY = Format(
    name="verifiers results JSONL",
    trainer="verifiers",
    matches=_is_legacy,
    drafts=_legacy_drafts,
)
EPISODES = Format(
    name="verifiers v1 episodes",
    trainer="verifiers",
    matches=_is_episode,
    drafts=_episode_drafts,
    step=_episode_step,
)
