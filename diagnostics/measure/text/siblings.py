"""Do the reasonings of one prompt differ? Pairs of them, and the entropy of their words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .sample import Reasoning

_START, _END = "<start>", "<end>"
"""Marks that no word equals: words have no sign beside a letter."""


def sibling_pairs(prompt_n: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices (i, j), i < j, of every two reasonings of the same prompt."""
    rows, columns = np.triu_indices(len(prompt_n), k=1)
    same = prompt_n[rows] == prompt_n[columns]
    return rows[same], columns[same]


def by_prompt(reasonings: Sequence[Reasoning]) -> list[list[tuple[str, ...]]]:
    """Words of the reasonings, prompt by prompt."""
    groups: dict[int, list[tuple[str, ...]]] = {}
    for reasoning in reasonings:
        groups.setdefault(reasoning.prompt, []).append(reasoning.words)
    return list(groups.values())


def ngram_entropy(texts: Sequence[Sequence[str]]) -> float:
    """Nats per word given the word before, H(pair) - H(first of the pair), both after Chao-Shen.

    Each text begins and ends with a mark, so that first words and the length count. Exact in the
    limit for texts that a first-order Markov chain writes; above the true rate otherwise.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    for tokens in texts:
        pairs.update(zip((_START, *tokens), (*tokens, _END), strict=True))
    firsts: Counter[str] = Counter()
    for (first, _), count in pairs.items():
        firsts[first] += count
    return chao_shen(pairs.values()) - chao_shen(firsts.values())


def chao_shen(counts: Iterable[int]) -> float:
    """Entropy in nats from counts, corrected for what was not seen (Chao and Shen 2003).

    Coverage C = 1 - f1 / n with f1 the number of outcomes seen once; p~ = C p^;
    H = -sum p~ ln p~ / (1 - (1 - p~)^n), a Horvitz-Thompson sum. Where everything was seen once,
    f1 = n - 1 keeps C above 0. NaN without counts.
    """
    array = np.array([count for count in counts if count > 0], dtype=np.float64)
    if not array.size:
        return float("nan")
    total = array.sum()
    singles = int((array == 1).sum())
    coverage = 1.0 - min(singles, total - 1) / total
    p = coverage * array / total
    seen = -np.expm1(total * np.log1p(-np.minimum(p, 1 - 1e-15)))
    return float(-(p * np.log(p) / seen).sum()) + 0.0
