"""Is the reasoning copied from the prompt?"""

from __future__ import annotations

from collections.abc import Sequence

from .sample import Reasoning, ngrams, words

GRAM = 3
"""Words in the n-grams that count as copied."""


def copied_share(reasoning: Reasoning) -> float | None:
    """Share of a reasoning's n-grams of three words that stand in its observation.

    A shorter reasoning is one gram. None without words.
    """
    size = min(len(reasoning.words), GRAM)
    if not size:
        return None
    known = set(ngrams(words(reasoning.observation), size))
    grams = ngrams(reasoning.words, size)
    return sum(gram in known for gram in grams) / len(grams)


def masked_texts(reasonings: Sequence[Reasoning]) -> list[str]:
    """The reasonings without any word that stands in one of their observations.

    Words are taken out wherever *some* observation has them: masking only a reasoning's own
    observation would leave a trace of it, namely which words are gone.
    """
    shown = {
        word
        for observation in {reasoning.observation for reasoning in reasonings}
        for word in words(observation)
    }
    return [
        " ".join(word for word in reasoning.words if word not in shown) for reasoning in reasonings
    ]
