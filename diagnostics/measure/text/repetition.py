"""Does a response loop, does a turn echo the turn before?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise

from echoscope.store.records import Trajectory, Turn

from .sample import ngrams, words

GRAM = 4
"""Words in the n-grams whose repetition counts."""
CHAR_RUN, WORD_RUN = 16, 8
"""A run of one sign or one word this long is a loop."""
_LOOP_SHARE, _LOOP_WORDS = 0.5, 24
_CHAR_RUN = re.compile(r"(.)\1+", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """Repetition inside one response."""

    repeated_ngram_frac: float
    """1 - different / all n-grams of four words; 0 for a text of fewer."""
    longest_word_run: int
    char_run: tuple[int, int]
    num_words: int

    @property
    def longest_char_run(self) -> int:
        return self.char_run[1] - self.char_run[0]

    @property
    def is_loop(self) -> bool:
        """One sign or word over and over, or most n-grams of a long response said before."""
        return (
            self.longest_char_run >= CHAR_RUN
            or self.longest_word_run >= WORD_RUN
            or (self.repeated_ngram_frac >= _LOOP_SHARE and self.num_words >= _LOOP_WORDS)
        )


@lru_cache(maxsize=512)
def loops(text: str) -> Loops:
    """Repetition inside a text, in time linear in its length. Siblings say the same: remembered."""
    tokens = words(text)
    grams = ngrams(tokens, GRAM)
    # Blanks and line breaks draw boards and indent code: a run of them is no loop.
    runs = [run.span() for run in _CHAR_RUN.finditer(text) if not run[1].isspace()]
    return Loops(
        repeated_ngram_frac=1 - len(set(grams)) / len(grams) if grams else 0.0,
        longest_word_run=max((sum(1 for _ in run) for _, run in groupby(tokens)), default=0),
        char_run=max(runs, key=lambda span: span[1] - span[0], default=(0, min(len(text), 1))),
        num_words=len(tokens),
    )


def echo_share(now: str, before: str) -> float | None:
    """Share of a reasoning's n-grams of four words that stood in the one before.

    A shorter reasoning is one gram, met if its words stand in the other in one run. None if
    either has no words.
    """
    tokens, earlier = words(now), words(before)
    if not tokens or not earlier:
        return None
    size = min(len(tokens), GRAM)
    before_grams = set(ngrams(earlier, size))
    grams = ngrams(tokens, size)
    return sum(gram in before_grams for gram in grams) / len(grams)


def turn_pairs(episodes: Sequence[Trajectory]) -> list[tuple[Trajectory, Turn, Turn]]:
    """Every two consecutive turns of an episode, (trajectory, before, now)."""
    return [(episode, *pair) for episode in episodes for pair in pairwise(episode.turns)]
