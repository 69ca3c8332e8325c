"""rLLM: one JSON document an episode, of training (`episode_id`) or evaluation (`eval_idx`).

The messages of the last step of a trajectory are the whole conversation. Rewards of steps count as
rewards of turns where there are as many steps as replies and they add up to the trajectory's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...records import Split
from .. import read
from ..dialogue import Dialogue, is_messages, read_messages
from ..draft import Draft, DraftTurn
from ..format import Format, Row, Where, step_key

_TOKENS = ("prompt_ids", "response_ids", "logprobs", "weight_version")
_USED = ("trajectories", "metrics", "training_step", "timing")
_TEXTS = ("observation", "model_response", "input", "output")
"""Fields of a step that mostly repeat what the messages say."""


def _matches(row: Row) -> bool:
    episodes = row.get("trajectories")
    first = episodes[0] if isinstance(episodes, list) and episodes else None
    is_known = any(name in row for name in ("episode_id", "eval_idx", "termination_reason"))
    return isinstance(read.inner(first, "steps"), list) and is_known


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    is_validation = any(part.startswith("val_") for part in where.path.parts)
    timing = row.get("timing")
    more_timing = read.without(timing, ("total",)) if isinstance(timing, Mapping) else {}
    for trajectory in row["trajectories"]:
        steps = read.objects(trajectory.get("steps"))
        dialogue = _dialogue(steps)
        draft = dialogue.draft(
            {
                "episode": read.without(row, _USED),
                "trajectory": read.without(trajectory, ("steps",)),
                **({"timing": more_timing} if more_timing else {}),
            },
            group=_group(row, read.text(trajectory.get("name"))),
            split=Split.EVAL if is_validation else Split.IMPORT,
            env=read.name(trajectory.get("name")),
            stop_reason=read.stop(row.get("termination_reason")),
            is_success=read.truth(row.get("is_correct")),
            duration_s=read.number_or_none(read.inner(timing, "total")),
        )
        draft.set_episode_reward(total := read.number(trajectory.get("reward")))
        rewards = [read.number(step.get("reward")) for step in steps]
        is_known = not any(map(math.isnan, rewards))
        is_of_steps = is_known and draft.set_turn_rewards(rewards, total)
        if len(steps) == len(draft.turns):
            _set_tokens(draft, steps)
        _set_steps(draft, steps, is_of_steps=is_of_steps)
        draft.add_info(read.numbers(row.get("metrics")))
        yield draft


def _group(row: Row, name: str) -> str | None:
    task = row.get("task_hash") or row.get("task_id")
    if task is None and isinstance(row.get("episode_id"), str) and ":" in row["episode_id"]:
        task = row["episode_id"].rsplit(":", 1)[0]
    return None if task is None else f"{read.text(task)} {name}"


def _dialogue(steps: Sequence[Mapping[str, Any]]) -> Dialogue:
    """The messages of the last step; else what each step observed and answered."""
    if steps and is_messages(steps[-1].get("chat_completions")):
        return read_messages(steps[-1]["chat_completions"])
    dialogue = Dialogue()
    for step in steps:
        response = read.text(step.get("model_response") or step.get("output"))
        observation = read.text(step.get("observation") or step.get("input"))
        dialogue.turns.append(DraftTurn(observation=observation, response=response))
    return dialogue


def _set_tokens(draft: Draft, steps: Sequence[Mapping[str, Any]]) -> None:
    for turn, step in zip(draft.turns, steps, strict=True):
        turn.set_tokens(step.get("prompt_ids"), step.get("response_ids"), step.get("logprobs"))
        if turn.response_tokens is not None:
            turn.policy_version = read.whole(step.get("weight_version"))


def _set_steps(draft: Draft, steps: Sequence[Mapping[str, Any]], *, is_of_steps: bool) -> None:
    """Actions of the turns, and what else a step holds: what a turn has is not kept twice."""
    is_by_turn = len(steps) == len(draft.turns)
    more = []
    for index, step in enumerate(steps):
        used = ["chat_completions", *(_TOKENS if is_by_turn else ())]
        used += ["reward"] if is_of_steps else []
        if is_by_turn:
            turn, action = draft.turns[index], step.get("action")
            if isinstance(action, str) and action:
                turn.actions = (action,)
                used.append("action")
            used += [n for n in _TEXTS if step.get(n) in (turn.observation, turn.response)]
        more.append(read.without(step, used))
    draft.fields = {**draft.fields, "steps": more}


EPISODES = Format(
    name="rLLM episodes",
    trainer="rLLM",
    matches=_matches,
    drafts=_drafts,
    step=step_key("training_step"),
)
