"""Rows that are answers to questions, such as those of a benchmark: no step counts them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from echoscope.store.records import FloatArray64

from ..foreign_names import WORDS, How, Meaning, meaning_of, spelled

MAX_ANSWERS = 100_000
_LEAST_ROWS = 3
"""Of one step, each right or wrong: fewer may be means that a trainer logged."""
_MAX_TEXT = 100
"""Longer text is kept as its hash: it may name a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumn:
    """Which field says how good an answer is."""

    name: str
    values: FloatArray64
    """(R,); NaN where a row does not say."""
    is_share: bool
    """Right or wrong, or a share in between; else a score of any scale."""


def short(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as it is kept: long text as its hash."""
    return {
        name: hashlib.blake2b(value.encode(errors="replace"), digest_size=8).hexdigest()
        if isinstance(value, str) and len(value) > _MAX_TEXT
        else value
        for name, value in record.items()
    }


def outcome_of(
    rows: Sequence[Mapping[str, Any]],
    to_number: Callable[[Any], float],
    mapping: Mapping[str, Meaning],
) -> AnswerColumn | None:
    """The field that says which answers are right, or how good they are; None without one."""
    ranked = []
    for index, name in enumerate(rows[0] if rows else ()):
        meaning = mapping.get(name) or meaning_of(name)
        key = "" if meaning is None else meaning.key.rpartition("/")[2]
        if meaning is not None and key in ("success_rate", "return_mean"):
            rank = (name not in mapping, key != "success_rate", meaning.rank)
            ranked.append((rank, index, name, meaning))
    for _, _, name, meaning in sorted(ranked, key=lambda entry: entry[:2]):
        values = np.array([to_number(row.get(name)) for row in rows])
        values = np.where(np.isfinite(values), values, np.nan)
        present = values[np.isfinite(values)]
        if not len(present):
            continue
        is_success = meaning.key.endswith("success_rate")
        is_within = bool(present.min() >= 0 and present.max() <= 1)
        is_binary = bool(np.isin(present, (0.0, 1.0)).all())
        if is_success and not is_within:
            continue
        values = 1.0 - values if meaning.how is How.COMPLEMENT else values
        return AnswerColumn(name=name, values=values, is_share=is_success or is_binary)
    return None


def are_answers(
    rows: Sequence[Mapping[str, Any]], outcome: AnswerColumn | None, *, has_one_step: bool
) -> bool:
    """Whether rows without steps, or all of one step, are answers of one evaluation.

    Args:
        has_one_step: They say a step, and all say the same.
    """
    if len(rows) < 2:
        return False
    fields = {spelled(name): name for name in rows[0]}
    if WORDS["of_answers"] & fields.keys():
        return True
    present = np.empty(0) if outcome is None else outcome.values[~np.isnan(outcome.values)]
    is_right_or_wrong = bool(len(present)) and bool(np.isin(present, (0.0, 1.0)).all())
    if has_one_step and is_right_or_wrong and len(present) == len(rows) >= _LEAST_ROWS:
        return True
    possible = WORDS["may_be_of_answers"] & fields.keys()
    has_text = any(_is_text(rows[0][fields[word]]) for word in possible)
    return has_text or (is_right_or_wrong and bool(possible))


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return not math.isfinite(float(value))
    except ValueError:
        return bool(value.strip())
