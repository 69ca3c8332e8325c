"""verl's dumps of rollouts and validation: one row a sample, prompt and response as flat text.

The classic trainer writes `input, output, gts, score, step` and each extra of the reward function.
The v1 trainer adds `uid`, `{sample}_{rollout}_{output}`. VAGEN trains with the same writer and
keeps the special tokens, so its turns are exact. Older versions of verl write no `gts`. Neither
does verl-agent, which writes one row a turn without the id of the trajectory: its prompts ask for
an action, or count the steps taken."""

from __future__ import annotations

import re
from typing import Any

from ...records import Split
from ..dialogue import has_marks, read_flat
from ..draft import (
    Draft,
    RowError,
    first_number,
    name_of,
    number,
    truth,
    without,
)
from ..format import Format, Row, Where, step_key

_USED = ("input", "output", "score", "step", "uid")
_SUCCESS = ("acc", "success", "is_correct")
_TURN_OF_AGENT = re.compile(
    r"<action>|</action>|admissible actions|already taken \d+ step|respond for the current step"
)
"""What a prompt of verl-agent asks for, or what its reply holds."""


def _is_dump(row: Row) -> bool:
    is_text = isinstance(row.get("input"), str) and isinstance(row.get("output"), str)
    return is_text and "score" in row and "step" in row


def _is_v1(row: Row) -> bool:
    return _is_dump(row) and isinstance(row.get("uid"), str)


def _is_classic(row: Row) -> bool:
    return _is_dump(row) and "gts" in row


def _is_vagen(row: Row) -> bool:
    return _is_classic(row) and (has_marks(row["input"]) or has_marks(row["output"]))


def _is_plain(row: Row) -> bool:
    return _is_dump(row) and "gts" not in row


def _is_agent(row: Row) -> bool:
    return _is_plain(row) and any(_TURN_OF_AGENT.search(row[key]) for key in ("input", "output"))


def _drafts(row: Row, where: Where) -> list[Draft]:
    if not row["output"].strip() and not row["input"].strip():
        raise RowError("prompt and response are empty")
    dialogue, is_guess = read_flat(row["input"], row["output"])
    draft = dialogue.draft(
        without(row, _USED),
        reward=number(row["score"]),
        is_guess=is_guess,
        prompt=row["input"],
        env=name_of(row.get("data_source")),
        is_success=truth(first_number(row, _SUCCESS)),
    )
    if where.is_evaluation:
        draft.split = Split.EVAL
        draft.reconstructed.add("split")
    return [draft]


def _v1_drafts(row: Row, where: Where) -> list[Draft]:
    (draft,) = _drafts(row, where)
    parts = row["uid"].rsplit("_", 2)
    draft.fields = {**draft.fields, "uid": row["uid"]}
    if len(parts) == 3:
        draft.group = parts[0]
    return [draft]


def _agent_drafts(row: Row, where: Where) -> list[Draft]:
    (draft,) = _drafts(row, where)
    draft.reconstructed.add("turn_is_episode")
    return [draft]


def _dump(name: str, matches: Any, drafts: Any = _drafts, **more: Any) -> Format:
    return Format(
        **{"name": name, "trainer": "verl", "matches": matches, "drafts": drafts, **more},
        step=step_key("step"),
    )


V1 = _dump("verl v1 JSONL", _is_v1, _v1_drafts)
VAGEN = _dump("VAGEN training JSONL", _is_vagen)
CLASSIC = _dump("verl JSONL", _is_classic)
AGENT = _dump("verl-agent JSONL", _is_agent, _agent_drafts, trainer="verl-agent", goes_on=_is_plain)
PLAIN = _dump("verl JSONL without gts", _is_plain)
