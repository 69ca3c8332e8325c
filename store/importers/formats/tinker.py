"""tinker-cookbook: `*_rollout_summaries.jsonl`: rewards, lengths and logs of each step, no text."""

from __future__ import annotations

from ...records import Split
from .. import read
from ..dialogue import Dialogue
from ..draft import Draft, DraftTurn
from ..format import Format, Row, Where, has_keys, step_key

_STEP_USED = ("step_idx", "ob_len", "ac_len", "reward", "metrics")


def _drafts(row: Row, where: Where) -> list[Draft]:
    steps = read.objects(row["steps"])
    turns = [
        DraftTurn(
            observation="",
            response="",
            reward=read.number(step.get("reward")),
            policy_version=read.whole(row.get("sampling_client_step")),
            info={
                **read.numbers(step.get("metrics")),
                **read.numbers({name: step.get(name) for name in ("ob_len", "ac_len")}),
            },
        )
        for step in steps
    ]
    group = read.text(row["group_idx"])
    tags = row.get("tags")
    is_evaluation = read.text(row.get("split")).startswith("eval")
    draft = Dialogue(turns=turns).draft(
        read.without(row, ("steps", "iteration", "split")),
        prompt=f"group {group}",
        group=group,
        split=Split.EVAL if is_evaluation else Split.IMPORT,
        env=read.name(tags[0]) if isinstance(tags, list) and tags else "",
    )
    draft.fields = {**draft.fields, "steps": [read.without(step, _STEP_USED) for step in steps]}
    final = read.number_or_none(row.get("final_reward"))
    if draft.turns and final is not None:
        # It is given for the whole group after the steps.
        draft.turns[-1].reward += final
    draft.add_info(read.numbers(row.get("trajectory_metrics")))
    return [draft]


SUMMARIES = Format(
    name="tinker-cookbook rollout summaries",
    trainer="tinker-cookbook",
    matches=has_keys("group_idx", "traj_idx", "total_reward", steps=list),
    drafts=_drafts,
    step=step_key("iteration"),
)
