"""tinker-cookbook: `*_rollout_summaries.jsonl`: rewards, lengths and logs of each step, no text."""

from __future__ import annotations

from ...records import Split
from ..dialogue import Dialogue
from ..draft import (
    Draft,
    DraftTurn,
    name_of,
    number,
    number_or_none,
    numbers_of,
    objects_of,
    text_of,
    whole,
    without,
)
from ..format import Format, Row, Where, has_keys, step_key

_STEP_USED = ("step_idx", "ob_len", "ac_len", "reward", "metrics")


def _drafts(row: Row, where: Where) -> list[Draft]:
    steps = objects_of(row["steps"])
    dialogue = Dialogue()
    dialogue.turns = [
        DraftTurn(
            observation="",
            response="",
            reward=number(step.get("reward")),
            policy_version=whole(row.get("sampling_client_step")),
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
    draft = dialogue.draft(
        without(row, ("steps", "iteration", "split")),
        prompt=f"group {group}",
        group=group,
        split=Split.EVAL if is_evaluation else Split.IMPORT,
        env=name_of(tags[0]) if isinstance(tags, list) and tags else "",
    )
    draft.fields = {**draft.fields, "steps": [without(step, _STEP_USED) for step in steps]}
    final = number_or_none(row.get("final_reward"))
    if draft.turns and final is not None:
        # It is given for the whole group after the steps.
        draft.turns[-1].reward += final
    draft.add_info(numbers_of(row.get("trajectory_metrics")))
    return [draft]


SUMMARIES = Format(
    name="tinker-cookbook rollout summaries",
    trainer="tinker-cookbook",
    matches=has_keys("group_idx", "traj_idx", "total_reward", steps=list),
    drafts=_drafts,
    step=step_key("iteration"),
)
