"""SkyRL, NeMo-RL, AReaL and EasyR1: a rollout as flat text.

EasyR1 strips the special tokens; `spooled/easyr1_log.py` has its file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...records import FinishReason, FloatArray, Split, StopReason
from ..dialogue import has_marks, read_flat, read_messages, split_marked
from ..draft import Draft, DraftTurn, RowError, number, sampled_runs, text_of, whole, without
from ..format import Format, Row, Where, step_key

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


def _is_skyrl(row: Row) -> bool:
    return all(name in row for name in ("input_prompt", "output_response", "env_class", "score"))


def _skyrl_drafts(row: Row, where: Where) -> Iterator[Draft]:
    prompt, response = text_of(row["input_prompt"]), text_of(row["output_response"])
    dialogue, is_guess = read_flat(prompt, response)
    # The score is one number, or one per token.
    scores = row["score"] if isinstance(row["score"], list) else [row["score"]]
    fields = without(row, ("input_prompt", "output_response", "score", "env_class"))
    if isinstance(row["score"], list):
        fields["score"] = row["score"]
    if dialogue.system:
        fields["system"] = dialogue.system
    draft = Draft(
        turns=dialogue.turns,
        prompt=prompt,
        env=text_of(row["env_class"])[:200],
        tag=text_of(row.get("data_source"))[:200],
        final_observation=dialogue.final_observation,
        fields=fields,
    )
    if is_guess:
        draft.reconstructed.add("turns")
    if draft.turns:
        reason = text_of(row.get("stop_reason")).lower()
        draft.turns[-1].finish_reason = _FINISH.get(reason, FinishReason.UNKNOWN)
    draft.set_episode_reward(sum(map(number, scores)) if scores else math.nan)
    yield draft


def _is_nemo(row: Row) -> bool:
    return "content" in row and "rewards" in row and ("input_lengths" in row or len(row) <= 3)


def _unwrapped(value: Any) -> Any:
    """The one value of a batch of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _nemo_drafts(row: Row, where: Where) -> Iterator[Draft]:
    content = _unwrapped(row["content"])
    draft = _nemo_text(content)
    used = ("content", "rewards", "token_ids", "token_loss_mask", "advantages", "input_lengths")
    draft.fields = {
        **draft.fields,
        **{
            name: _unwrapped(value)
            for name, value in without(row, (*used, "generation_logprobs", "prev_logprobs")).items()
        },
    }
    if where.path.stem.startswith("val_"):
        draft.split = Split.EVAL
    draft.set_episode_reward(number(_unwrapped(row["rewards"])))
    if draft.turns:
        _set_nemo_tokens(draft, row)
    sample_mask = number(_unwrapped(row.get("sample_loss_mask")))
    if not math.isnan(sample_mask):
        draft.is_kept = bool(sample_mask)
    yield draft


def _nemo_text(content: Any) -> Draft:
    if isinstance(content, list) and content and all(isinstance(p, str) for p in content):
        # One text a message, without roles: replies take turns with what they answer.
        pairs = list(zip(content[::2], content[1::2], strict=False))
        turns = [DraftTurn(observation=ask, response=reply) for ask, reply in pairs]
        final = content[-1] if len(content) % 2 else ""
        return Draft(
            turns=turns,
            prompt=content[0],
            final_observation=final,
            reconstructed={"turns"} if len(turns) > 1 else set(),
        )
    text = text_of(content)
    if not text.strip():
        raise RowError("the row has no text")
    if has_marks(text):
        dialogue = read_messages(split_marked(text, "user"))
        return Draft(
            turns=dialogue.turns,
            prompt=dialogue.prompt,
            final_observation=dialogue.final_observation,
            fields={"system": dialogue.system} if dialogue.system else {},
        )
    return Draft(turns=[DraftTurn(observation="", response=text)], reconstructed={"turns"})


def _set_nemo_tokens(draft: Draft, row: Row) -> None:
    """Tokens and what belongs to them, where each reply is one run of sampled tokens; else the
    mean advantage alone."""
    ids, mask = _unwrapped(row.get("token_ids")), _unwrapped(row.get("token_loss_mask"))
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        return
    runs = sampled_runs(
        [number(value) for value in mask[: whole(_unwrapped(row.get("input_lengths")))]]
    )
    if not runs:
        return
    advantages = _per_token(row, "advantages", runs, len(ids))
    given = _unwrapped(row.get("advantages"))
    if advantages is not None:
        draft.advantage = float(np.concatenate(advantages).mean())
    elif not isinstance(given, list) and not math.isnan(number(given)):
        draft.advantage = number(given)
    if len(runs) != len(draft.turns):
        return
    draft.advantages = advantages
    draft.trainer_logprobs = _per_token(row, "prev_logprobs", runs, len(ids))
    logprobs = _per_token(row, "generation_logprobs", runs, len(ids))
    for place, (turn, (first, last)) in enumerate(zip(draft.turns, runs, strict=True)):
        turn.prompt_tokens = np.array(ids[:first], dtype=np.int32)
        turn.response_tokens = np.array(ids[first:last], dtype=np.int32)
        turn.logprobs = None if logprobs is None else logprobs[place]


def _per_token(
    row: Row, name: str, runs: Sequence[tuple[int, int]], size: int
) -> tuple[FloatArray, ...] | None:
    """The values of the sampled tokens of each reply; None where not every token has one."""
    values = _unwrapped(row.get(name))
    if not isinstance(values, list) or len(values) != size:
        return None
    return tuple(
        np.array([number(value) for value in values[first:last]], dtype=np.float32)
        for first, last in runs
    )


def _is_areal(row: Row) -> bool:
    return all(name in row for name in ("task_id", "sample_idx", "head_version", "tail_version"))


def _areal_drafts(row: Row, where: Where) -> Iterator[Draft]:
    dialogue, is_guess = read_flat(text_of(row.get("prompt")), text_of(row.get("completion")))
    fields = without(row, ("prompt", "completion", "reward"))
    if dialogue.system:
        fields["system"] = dialogue.system
    draft = Draft(
        turns=dialogue.turns,
        prompt=text_of(row.get("prompt")),
        group=text_of(row["task_id"]),
        split=Split.EVAL if "eval-rollout" in where.path.parts else Split.IMPORT,
        final_observation=dialogue.final_observation,
        stop_reason=StopReason.UNKNOWN,
        fields=fields,
    )
    if is_guess:
        draft.reconstructed.add("turns")
    version = whole(row["head_version"])
    for turn in draft.turns:
        turn.policy_version = version
    draft.set_episode_reward(number(row.get("reward")))
    yield draft


def _version_folder(where: Where) -> int | None:
    """AReaL: `<version>/<task_id>.jsonl`; the name of the file is that of a task."""
    name = where.path.parent.name
    return int(name) if name.isascii() and name.isdigit() and len(name) <= 8 else None


def _no_step(row: Mapping[str, Any]) -> int | None:
    return None


def _is_easyr1(row: Row) -> bool:
    return isinstance(row.get("easyr1"), Mapping)


def _easyr1_drafts(row: Row, where: Where) -> Iterator[Draft]:
    if "problem" in row:
        raise RowError(str(row["problem"]))
    sample = row["easyr1"]
    dialogue, is_guess = read_flat(sample["prompt"], sample["output"])
    fields = without(sample, ("prompt", "output", "score"))
    draft = Draft(
        turns=dialogue.turns,
        prompt=sample["prompt"],
        final_observation=dialogue.final_observation,
        fields=fields,
    )
    if dialogue.system:
        fields["system"] = dialogue.system
    if is_guess:
        draft.reconstructed.add("turns")
    if "validation" in row:
        draft.reconstructed.add("validations")
    draft.set_episode_reward(number(sample["score"].strip()))
    yield draft


SKYRL = Format(
    name="SkyRL evaluation JSONL", trainer="SkyRL", matches=_is_skyrl, drafts=_skyrl_drafts
)
NEMO = Format(
    name="NeMo-RL training data JSONL", trainer="NeMo-RL", matches=_is_nemo, drafts=_nemo_drafts
)
AREAL = Format(
    name="AReaL rollout JSONL",
    trainer="AReaL",
    matches=_is_areal,
    drafts=_areal_drafts,
    step=_no_step,
    file_step=_version_folder,
)
EASYR1 = Format(
    name="EasyR1 generations",
    trainer="EasyR1",
    matches=_is_easyr1,
    drafts=_easyr1_drafts,
    step=step_key("validation"),
    file_step=lambda where: None,
)
