"""Is the reasoning a template? How much of it stands under most prompts, and its text with slots.

Legend: **N** prompts, **n** reasonings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from .sample import Reasoning, ngrams, word_spans

SLOT = "___"
_MAX_WORDS = 120
"""Alignment takes quadratic time; a longer reasoning is aligned on its first words."""
_MAX_FREED = 40
"""Fixed words up to which each is tried as a slot."""
_WORTH_A_SLOT = 1.1
_BEFORE_SIGN = re.compile(r" (?=[.,:;!?)\]])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What reasonings under most prompts have in common, around one typical reasoning."""

    text: str
    """Its words in order, `___` where they differ."""
    coverage: float
    match_frac: float
    """Share of all drawn reasonings that hold the fixed words in this order."""
    fillers: tuple[tuple[str, ...], ...]
    """For each slot, up to four different texts that stand in it, as aligned."""


class CommonGrams:
    """Which n-grams occur under more than half of the prompts other than a given one."""

    def __init__(self, reasonings: Sequence[Reasoning], size: int) -> None:
        self.size = size
        self._seen = {
            (gram, reasoning.prompt)
            for reasoning in reasonings
            for gram in ngrams(reasoning.words, size)
        }
        self._num_prompts = Counter(gram for gram, _ in self._seen)
        self._others = len({reasoning.prompt for reasoning in reasonings}) - 1

    def flags(self, reasoning: Reasoning) -> list[bool]:
        """For each n-gram of a reasoning, whether it stands under most other prompts too."""
        return [
            self._num_prompts[gram] - ((gram, reasoning.prompt) in self._seen) > self._others / 2
            for gram in ngrams(reasoning.words, self.size)
        ]

    def share(self, reasoning: Reasoning) -> float:
        """Share of its n-grams that do. NaN without words; a short reasoning is one gram."""
        flags = self.flags(reasoning)
        return sum(flags) / len(flags) if flags else float("nan")


def find_template(
    reasonings: Sequence[Reasoning], similarity_nn: NDArray[np.float64]
) -> Template | None:
    """The words that typical reasonings under most prompts share, in order.

    Each prompt is represented by the reasoning that is most like its siblings, and the template is
    built around the representative most like the others: its words are aligned with theirs, and
    those that align under more than half of the other prompts are fixed. None if no word is, or
    with fewer than two prompts.
    """
    chosen = _representatives(reasonings, similarity_nn)
    if len(chosen) < 2:
        return None
    among = similarity_nn[np.ix_(chosen, chosen)]
    typical = chosen.pop(int(among.sum(axis=1).argmax()))
    spelled = _spelled(reasonings[typical])
    base = reasonings[typical].words[: len(spelled)]
    aligned = [_aligned(base, reasonings[k].words[:_MAX_WORDS]) for k in chosen]
    votes = [sum(row[position] is not None for row in aligned) for position in range(len(base))]
    is_fixed = [count > len(chosen) / 2 for count in votes]
    if not any(is_fixed):
        return None
    is_fixed = _generalised(base, is_fixed, reasonings)
    fixed = [word for word, keep in zip(base, is_fixed, strict=True) if keep]
    if not any(sign.isalnum() for word in fixed for sign in word):
        return None  # signs alone, which any text has
    texts: list[tuple[Sequence[str], Sequence[int | None]]] = [(spelled, range(len(base)))]
    texts += [(_spelled(reasonings[k]), row) for k, row in zip(chosen, aligned, strict=True)]
    parts: list[str] = []
    fillers: list[tuple[str, ...]] = []
    for keep, run in groupby(range(len(base)), key=is_fixed.__getitem__):
        indices = list(run)
        if keep:
            parts += [spelled[index] for index in indices]
        else:
            parts.append(SLOT)
            fillers.append(_fillers(texts, indices[0], indices[-1] + 1))
    return Template(
        text=_BEFORE_SIGN.sub("", " ".join(parts)),
        coverage=len(fixed) / len(base),
        match_frac=float(np.mean([_holds(reasoning.words, fixed) for reasoning in reasonings])),
        fillers=tuple(fillers),
    )


def _generalised(
    base: Sequence[str], is_fixed: Sequence[bool], reasonings: Sequence[Reasoning]
) -> list[bool]:
    """With a slot in place of the one word that keeps most reasonings out, if that tells more.

    "I guess down." is what a third says, and "I guess ___." what two thirds say: the template that
    holds more, words times reasonings, is the better one.
    """
    out = list(is_fixed)
    places = [position for position, keep in enumerate(out) if keep]
    if not 1 < len(places) <= _MAX_FREED:
        return out

    def held(without: int | None) -> float:
        fixed_words = [base[position] for position in places if position != without]
        return len(fixed_words) * float(
            np.mean([_holds(reasoning.words, fixed_words) for reasoning in reasonings])
        )

    best = max(places, key=held)
    if held(best) >= _WORTH_A_SLOT * held(None):
        out[best] = False
    return out


def _representatives(
    reasonings: Sequence[Reasoning], similarity_nn: NDArray[np.float64]
) -> list[int]:
    """The index of one reasoning per prompt: the most like its siblings, the first of equals."""
    prompt_n = np.array([reasoning.prompt for reasoning in reasonings])
    groups = [np.flatnonzero(prompt_n == prompt) for prompt in np.unique(prompt_n)]
    return [
        int(members[similarity_nn[np.ix_(members, members)].sum(axis=1).argmax()])
        for members in groups
    ]


def _spelled(reasoning: Reasoning) -> list[str]:
    """Its words as written, the first ones of a long text."""
    return [reasoning.text[slice(*span)] for span in word_spans(reasoning.text)[:_MAX_WORDS]]


def _aligned(base: Sequence[str], other: Sequence[str]) -> list[int | None]:
    """For each word of `base` the position of the word of `other` it aligns with."""
    out: list[int | None] = [None] * len(base)
    for block in SequenceMatcher(None, base, other, autojunk=False).get_matching_blocks():
        for k in range(block.size):
            out[block.a + k] = block.b + k
    return out


def _fillers(
    texts: Sequence[tuple[Sequence[str], Sequence[int | None]]], start: int, end: int
) -> tuple[str, ...]:
    """What stands between the fixed words on both sides of a slot, in each text that has both."""
    fillers: dict[str, None] = {}
    for tokens, positions in texts:
        before = -1 if start == 0 else positions[start - 1]
        after = len(tokens) if end == len(positions) else positions[end]
        if before is not None and after is not None and before + 1 < after:
            fillers.setdefault(" ".join(tokens[before + 1 : after]))
    return tuple(fillers)[:4]


def _holds(tokens: Sequence[str], fixed: Sequence[str]) -> bool:
    """Whether `fixed` is a subsequence of `tokens`."""
    rest = iter(tokens)
    return all(word in rest for word in fixed)
