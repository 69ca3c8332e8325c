"""SkyRL, NeMo-RL and AReaL: a rollout as flat text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...records import FinishReason, FloatArray, Split
from ..dialogue import Dialogue, has_marks, read_flat, read_messages, split_marked
from ..draft import (
    Draft,
    DraftTurn,
    RowError,
    floats,
    name_of,
    number,
    number_or_none,
    sampled_runs,
    text_of,
    whole,
    without,
)
from ..format import Format, Row, Where, has_keys

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


def _skyrl_drafts(row: Row, where: Where) -> list[Draft]:
    prompt, response = text_of(row["input_prompt"]), text_of(row["output_response"])
    dialogue, is_guess = read_flat(prompt, response)
    # The score is one number, or one per token.
    scores = row["score"] if isinstance(row["score"], list) else [row["score"]]
    is_number = not isinstance(row["score"], list)
    used = ("input_prompt", "output_response", "env_class", *(("score",) if is_number else ()))
    draft = dialogue.draft(
        without(row, used),
        reward=sum(map(number, scores)) if scores else math.nan,
        is_guess=is_guess,
        prompt=prompt,
        env=name_of(row["env_class"]),
        tag=name_of(row.get("data_source")),
    )
    if draft.turns:
        reason = text_of(row.get("stop_reason")).lower()
        draft.turns[-1].finish_reason = _FINISH.get(reason, FinishReason.UNKNOWN)
    return [draft]


def _is_nemo(row: Row) -> bool:
    return "content" in row and "rewards" in row and ("input_lengths" in row or len(row) <= 3)


def _unwrapped(value: Any) -> Any:
    """The one value of a batch of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


_NEMO_USED = (
    *("content", "rewards", "token_ids", "token_loss_mask", "advantages", "input_lengths"),
    *("generation_logprobs", "prev_logprobs"),
)


def _nemo_drafts(row: Row, where: Where) -> list[Draft]:
    dialogue, is_guess = _nemo_dialogue(_unwrapped(row["content"]))
    sample_mask = number_or_none(_unwrapped(row.get("sample_loss_mask")))
    draft = dialogue.draft(
        {name: _unwrapped(value) for name, value in without(row, _NEMO_USED).items()},
        reward=number(_unwrapped(row["rewards"])),
        is_guess=is_guess,
        split=Split.EVAL if where.path.stem.startswith("val_") else Split.IMPORT,
        is_kept=None if sample_mask is None else bool(sample_mask),
    )
    if draft.turns:
        _set_nemo_tokens(draft, row)
    return [draft]


def _nemo_dialogue(content: Any) -> tuple[Dialogue, bool]:
    """The turns, and whether they are a guess."""
    dialogue = Dialogue()
    if isinstance(content, list) and content and all(isinstance(p, str) for p in content):
        # One text a message, without roles: replies take turns with what they answer.
        pairs = zip(content[::2], content[1::2], strict=False)
        dialogue.turns = [DraftTurn(observation=ask, response=reply) for ask, reply in pairs]
        dialogue.final_observation = content[-1] if len(content) % 2 else ""
        return dialogue, len(dialogue.turns) > 1
    text = text_of(content)
    if not text.strip():
        raise RowError("the row has no text")
    if has_marks(text):
        return read_messages(split_marked(text, "user")), False
    dialogue.turns = [DraftTurn(observation="", response=text)]
    return dialogue, True


def _set_nemo_tokens(draft: Draft, row: Row) -> None:
    """Tokens and what belongs to them, where each reply is one run of sampled tokens; else the
    mean advantage alone."""
    ids, mask = _unwrapped(row.get("token_ids")), _unwrapped(row.get("token_loss_mask"))
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        return
    length = whole(_unwrapped(row.get("input_lengths")))
    runs = sampled_runs([number(value) for value in mask[:length]])
    if not runs:
        return
    advantages = _per_token(row, "advantages", runs, len(ids))
    given = _unwrapped(row.get("advantages"))
    if advantages is not None:
        draft.advantage = float(np.concatenate(advantages).mean())
    elif not isinstance(given, list):
        draft.advantage = number_or_none(given)
    if len(runs) != len(draft.turns):
        return
    draft.advantages = advantages
    draft.trainer_logprobs = _per_token(row, "prev_logprobs", runs, len(ids))
    logprobs = _per_token(row, "generation_logprobs", runs, len(ids))
    for place, (turn, (first, last)) in enumerate(zip(draft.turns, runs, strict=True)):
        turn.set_tokens(ids[:first], ids[first:last])
        turn.logprobs = None if logprobs is None else logprobs[place]


def _per_token(
    row: Row, name: str, runs: Sequence[tuple[int, int]], size: int
) -> tuple[FloatArray, ...] | None:
    """The values of the sampled tokens of each reply; None where not every token has one."""
    values = _unwrapped(row.get(name))
    if not isinstance(values, list) or len(values) != size:
        return None
    return tuple(floats(values[first:last]) for first, last in runs)


def _areal_drafts(row: Row, where: Where) -> list[Draft]:
    dialogue, is_guess = read_flat(text_of(row.get("prompt")), text_of(row.get("completion")))
    for turn in dialogue.turns:
        turn.policy_version = whole(row["head_version"])
    draft = dialogue.draft(
        without(row, ("prompt", "completion", "reward")),
        reward=number(row.get("reward")),
        is_guess=is_guess,
        prompt=text_of(row.get("prompt")),
        group=text_of(row["task_id"]),
        split=Split.EVAL if "eval-rollout" in where.path.parts else Split.IMPORT,
    )
    return [draft]


def _version_folder(where: Where) -> int | None:
    """AReaL: `<version>/<task_id>.jsonl`; the name of the file is that of a task."""
    name = where.path.parent.name
    return int(name) if name.isascii() and name.isdigit() and len(name) <= 8 else None


SKYRL = Format(
    name="SkyRL evaluation JSONL",
    trainer="SkyRL",
    matches=has_keys("input_prompt", "output_response", "env_class", "score"),
    drafts=_skyrl_drafts,
)
NEMO = Format(
    name="NeMo-RL training data JSONL", trainer="NeMo-RL", matches=_is_nemo, drafts=_nemo_drafts
)
AREAL = Format(
    name="AReaL rollout JSONL",
    trainer="AReaL",
    matches=has_keys("task_id", "sample_idx", "head_version", "tail_version"),
    drafts=_areal_drafts,
    file_step=_version_folder,
)
