"""tinker-cookbook: `*_rollout_summaries.jsonl`: rewards and lengths of each step, no text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ...records import Split
from ..draft import Draft, DraftTurn, number, numbers_of, text_of, whole, without
from ..format import Format, Row, Where, step_key


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
        fields=without(row, ("steps", "group_idx", "iteration", "split")),
    )
    if turns:
        # The last reward is given for the whole group after the steps.
        final = number(row.get("final_reward"))
        if not math.isnan(final):
            turns[-1].reward = turns[-1].reward + final
        turns[-1].info = {**turns[-1].info, **numbers_of(row.get("trajectory_metrics"))}
    yield draft


SUMMARIES = Format(
    name="tinker-cookbook rollout summaries",
    trainer="tinker-cookbook",
    matches=_matches,
    drafts=_drafts,
    step=step_key("iteration"),
)
