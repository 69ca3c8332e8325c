"""tinker-cookbook: `*_rollout_summaries.jsonl`: rewards and lengths of each step, no text.

The text of the first groups stands in `*_logtree.json` beside it. `spooled/joined.py` adds it where
it can be told which attempt is which: by the reward that the tree shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ...records import Split
from ..dialogue import is_messages, read_messages
from ..draft import Draft, DraftTurn, number, numbers_of, text_of, whole, without
from ..format import Format, Row, Where, step_key

_STEP_USED = ("step_idx", "ob_len", "ac_len", "reward", "metrics")


def _matches(row: Row) -> bool:
    return (
        "group_idx" in row
        and "traj_idx" in row
        and isinstance(row.get("steps"), list)
        and "total_reward" in row
    )


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    steps = [step for step in row["steps"] if isinstance(step, Mapping)]
    version = whole(row.get("sampling_client_step"))
    turns = [
        DraftTurn(
            observation="",
            response="",
            reward=number(step.get("reward")),
            policy_version=version,
            info={
                **numbers_of(step.get("metrics")),
                **numbers_of({name: step.get(name) for name in ("ob_len", "ac_len")}),
            },
        )
        for step in steps
    ]
    group = text_of(row["group_idx"])
    tags = row.get("tags")
    is_evaluation = text_of(row.get("split")).startswith("eval")
    draft = Draft(
        turns=turns,
        prompt=f"group {group}",
        group=group,
        split=Split.EVAL if is_evaluation else Split.IMPORT,
        env=text_of(tags[0])[:200] if isinstance(tags, list) and tags else "",
        fields=without(row, ("steps", "iteration", "split", "logtree")),
    )
    more = [without(step, _STEP_USED) for step in steps]
    draft.fields = {**draft.fields, "steps": more}
    _set_text(draft, row.get("logtree"))
    if turns:
        # The last reward is given for the whole group after the steps.
        final = number(row.get("final_reward"))
        if not math.isnan(final):
            turns[-1].reward = turns[-1].reward + final
        turns[-1].info = {**turns[-1].info, **numbers_of(row.get("trajectory_metrics"))}
    yield draft


def _set_text(draft: Draft, found: object) -> None:
    """The prompt and the reply of an episode of one step, from the tree."""
    if not isinstance(found, Mapping) or len(draft.turns) != 1:
        return
    prompt, reply = found.get("prompt"), found.get("reply")
    replies = [reply]
    if not is_messages(prompt) or not is_messages(replies):
        return
    dialogue = read_messages([*prompt, *replies])
    if not dialogue.turns:
        return
    turn = draft.turns[0]
    last = dialogue.turns[-1]
    turn.observation, turn.response, turn.calls = last.observation, last.response, last.calls
    if dialogue.system:
        draft.fields = {**draft.fields, "system": dialogue.system}
    if len(dialogue.turns) > 1:
        # Replies in the prompt are examples, not the policy's own.
        examples = [part for t in dialogue.turns[:-1] for part in (t.observation, t.response)]
        turn.observation = "\n\n".join([*examples, last.observation])
    draft.reconstructed.add("logtree")


SUMMARIES = Format(
    name="tinker-cookbook rollout summaries",
    trainer="tinker-cookbook",
    matches=_matches,
    drafts=_drafts,
    step=step_key("iteration"),
)
