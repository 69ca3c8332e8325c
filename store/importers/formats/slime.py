"""slime's debug files of rollouts (`--save-debug-rollout-data`): samples with tokens, as `.pt`.

The response is one text with all later observations in it, and `loss_mask` says which of its tokens
were sampled. Where the special tokens are kept the turns are exact. Tokens and log-probs are stored
where there is one run of sampled tokens for each reply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .. import read
from ..dialogue import Dialogue, is_messages, read_flat, read_messages
from ..draft import Draft, RowError
from ..format import Format, Row, Where, step_key

_USED = (
    *("prompt", "response", "response_length", "tokens", "loss_mask", "rollout_log_probs"),
    *("status", "remove_sample", "reward"),
)
_REWARDS = ("score", "reward", "acc")


def _drafts(row: Row, where: Where) -> list[Draft]:
    sample = row["sample"]
    dialogue, is_guess = _dialogue(sample)
    if not dialogue.turns:
        raise RowError("the sample has no reply")
    draft = dialogue.draft(
        read.without(sample, _USED),
        is_guess=is_guess,
        prompt=read.text(sample.get("prompt")),
        group=read.text_or_none(read.whole(sample.get("group_index"))),
        stop_reason=read.stop(sample.get("status")),
        is_kept=False if sample.get("remove_sample") is True else None,
    )
    draft.turns[-1].finish_reason = read.finish(sample.get("status"))
    _set_reward(draft, sample.get("reward"))
    _set_tokens(draft, sample)
    return [draft]


def _dialogue(sample: Mapping[str, Any]) -> tuple[Dialogue, bool]:
    prompt, response = sample.get("prompt"), read.text(sample.get("response"))
    if not is_messages(prompt):
        return read_flat(read.text(prompt), response)
    tail, is_guess = read_flat("", response)
    if len(tail.turns) <= 1:
        return read_messages([*prompt, {"role": "assistant", "content": response}]), False
    head = read_messages([*prompt, {"role": "assistant", "content": tail.turns[0].response}])
    head.turns[-1].calls = tail.turns[0].calls
    head.turns += tail.turns[1:]
    head.final_observation = tail.final_observation
    return head, is_guess


def _set_reward(draft: Draft, reward: Any) -> None:
    """The reward of the episode: a number, or one of several by name."""
    if not isinstance(reward, Mapping):
        draft.set_episode_reward(read.number(reward))
        return
    named = read.numbers(reward)
    draft.add_info({f"reward/{name}": value for name, value in named.items()})
    chosen = next((named[name] for name in _REWARDS if name in named), math.nan)
    if math.isnan(chosen) and named:
        chosen = sum(named.values())
        if len(named) > 1:
            draft.reconstructed.add("reward_terms")
    draft.set_episode_reward(chosen)


def _set_tokens(draft: Draft, sample: Mapping[str, Any]) -> None:
    tokens, size = sample.get("tokens"), read.whole(sample.get("response_length"))
    if not isinstance(tokens, list) or size is None or not 0 < size <= len(tokens):
        return
    mask, logprobs = sample.get("loss_mask"), sample.get("rollout_log_probs")
    head = [0] * (len(tokens) - size)
    mask = [*head, *(mask if isinstance(mask, list) else [1] * size)]
    logprobs = [*head, *logprobs] if isinstance(logprobs, list) else None
    versions = sample.get("weight_versions")
    if draft.set_sampled(tokens, mask, logprobs) and isinstance(versions, list) and versions:
        for turn in draft.turns:
            turn.policy_version = read.whole(read.number(versions[0]))


SAMPLES = Format(
    name="slime samples",
    trainer="slime",
    matches=lambda row: (
        "slime_rollout" in row and read.inner(row.get("sample"), "response") is not None
    ),
    drafts=_drafts,
    step=step_key("slime_rollout"),
    is_split_by_name=True,
)
