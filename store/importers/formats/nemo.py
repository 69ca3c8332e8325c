"""NeMo-RL: a rollout as text, or as a list of texts, with its tokens."""

from __future__ import annotations

from typing import Any

from .. import read
from ..dialogue import Dialogue, has_marks, read_messages, split_marked
from ..draft import Draft, DraftTurn, RowError
from ..format import Format, Row, Where


def _unwrapped(value: Any) -> Any:
    """The one value of a batch of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


_NEMO_USED = (
    *("content", "rewards", "token_ids", "token_loss_mask", "advantages", "input_lengths"),
    *("generation_logprobs", "prev_logprobs"),
)


def _nemo_drafts(row: Row, where: Where) -> list[Draft]:
    plain = {name: _unwrapped(value) for name, value in row.items()}
    dialogue, is_guess = _nemo_dialogue(plain["content"])
    sample_mask = read.number_or_none(plain.get("sample_loss_mask"))
    draft = dialogue.draft(
        read.without(plain, _NEMO_USED),
        reward=read.number(plain["rewards"]),
        is_guess=is_guess,
        is_kept=None if sample_mask is None else bool(sample_mask),
    )
    mask, length = plain.get("token_loss_mask"), read.whole(plain.get("input_lengths"))
    if isinstance(mask, list) and length is not None:
        mask = [value if index < length else 0 for index, value in enumerate(mask)]
    names = ("generation_logprobs", "advantages", "prev_logprobs")
    draft.set_sampled(plain.get("token_ids"), mask, *(plain.get(name) for name in names))
    draft.advantage = read.number_or_none(plain.get("advantages"))
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
    text = read.text(content)
    if not text.strip():
        raise RowError("the row has no text")
    if has_marks(text):
        return read_messages(split_marked(text, "user")), False
    dialogue.turns = [DraftTurn(observation="", response=text)]
    return dialogue, True


NEMO = Format(
    name="NeMo-RL training data JSONL",
    trainer="NeMo-RL",
    matches=lambda row: (
        "content" in row and "rewards" in row and ("input_lengths" in row or len(row) <= 3)
    ),
    drafts=_nemo_drafts,
    is_split_by_name=True,
)
