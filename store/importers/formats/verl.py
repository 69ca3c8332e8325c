"""verl's dumps of rollouts and validation: one row a sample, prompt and response as flat text.

The classic trainer writes `input, output, gts, score, step` and each extra of the reward function.
The v1 trainer adds `uid`, `{sample}_{rollout}_{output}`. VAGEN trains with the same writer and
keeps the special tokens, so its turns are exact. verl-agent writes one row a turn, without `gts`
and without the id of the trajectory. VAGEN's evaluation is a folder an episode, with
`messages.json` and `metrics.json`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from ...records import Split
from ..dialogue import has_marks, is_messages, read_flat, read_messages
from ..draft import Draft, RowError, number, numbers_of, text_of, truth, without
from ..format import Format, Row, Where, step_key

_USED = ("input", "output", "score", "step", "uid")
_SUCCESS = ("acc", "success", "is_correct")
_FOLDER = re.compile(r"(.+)_seed_(-?\d+)")
_FOLDER_REWARDS = ("total_reward", "cumulative_reward", "score", "reward")
_FOLDER_SUCCESS = ("success", "is_success", "traj_success")


def _is_dump(row: Row) -> bool:
    return (
        isinstance(row.get("input"), str)
        and isinstance(row.get("output"), str)
        and "score" in row
        and "step" in row
    )


def _is_v1(row: Row) -> bool:
    return _is_dump(row) and isinstance(row.get("uid"), str)


def _is_vagen(row: Row) -> bool:
    return _is_dump(row) and "gts" in row and (has_marks(row["input"]) or has_marks(row["output"]))


def _is_classic(row: Row) -> bool:
    return _is_dump(row) and "gts" in row


def _draft(row: Row, where: Where) -> Draft:
    if not row["output"].strip() and not row["input"].strip():
        raise RowError("prompt and response are empty")
    dialogue, is_guess = read_flat(row["input"], row["output"])
    fields = without(row, _USED)
    success = next((truth(number(row[name])) for name in _SUCCESS if name in row), None)
    draft = Draft(
        turns=dialogue.turns,
        prompt=row["input"],
        env=text_of(row.get("data_source"))[:200],
        final_observation=dialogue.final_observation,
        is_success=success,
        fields=fields,
    )
    if dialogue.system:
        fields["system"] = dialogue.system
    if is_guess:
        draft.reconstructed.add("turns")
    if where.is_evaluation:
        draft.split = Split.EVAL
        draft.reconstructed.add("split")
    draft.set_episode_reward(number(row["score"]))
    return draft


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    yield _draft(row, where)


def _v1_drafts(row: Row, where: Where) -> Iterator[Draft]:
    draft = _draft(row, where)
    parts = row["uid"].rsplit("_", 2)
    draft.fields = {**draft.fields, "uid": row["uid"]}
    if len(parts) == 3:
        draft.group = parts[0]
    yield draft


def _agent_drafts(row: Row, where: Where) -> Iterator[Draft]:
    draft = _draft(row, where)
    draft.reconstructed.add("turn_is_episode")
    yield draft


def _is_vagen_folder(row: Row) -> bool:
    return "vagen_metrics" in row and is_messages(row.get("messages"))


def _vagen_folder_drafts(row: Row, where: Where) -> Iterator[Draft]:
    dialogue = read_messages(row["messages"])
    metrics = row["vagen_metrics"] if isinstance(row["vagen_metrics"], Mapping) else {}
    named = _FOLDER.fullmatch(row["vagen_folder"])
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=row["vagen_folder"] if named else None,
        env=named[1] if named else "",
        tag=next((part for part in where.path.parts if part.startswith("tag_")), ""),
        final_observation=dialogue.final_observation,
        is_success=next(
            (truth(metrics[name]) for name in _FOLDER_SUCCESS if name in metrics), None
        ),
        fields={
            "folder": row["vagen_folder"],
            "metrics": without(metrics, ()),
            **({"system": dialogue.system} if dialogue.system else {}),
        },
    )
    reward = next((number(metrics[name]) for name in _FOLDER_REWARDS if name in metrics), math.nan)
    draft.set_episode_reward(reward)
    if draft.turns:
        draft.turns[-1].info = numbers_of(metrics)
    yield draft


V1 = Format(
    name="verl v1 JSONL",
    trainer="verl",
    matches=_is_v1,
    drafts=_v1_drafts,
    step=step_key("step"),
)
VAGEN = Format(
    name="VAGEN training JSONL",
    trainer="verl",
    matches=_is_vagen,
    drafts=_drafts,
    step=step_key("step"),
)
CLASSIC = Format(
    name="verl JSONL",
    trainer="verl",
    matches=_is_classic,
    drafts=_drafts,
    step=step_key("step"),
)
AGENT = Format(
    name="verl-agent JSONL",
    trainer="verl-agent",
    matches=_is_dump,
    drafts=_agent_drafts,
    step=step_key("step"),
)
VAGEN_FOLDERS = Format(
    name="VAGEN evaluation folders",
    trainer="VAGEN",
    matches=_is_vagen_folder,
    drafts=_vagen_folder_drafts,
    file_step=lambda where: None,
)
