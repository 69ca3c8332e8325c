"""Does a response loop, a turn echo the turn before, an episode repeat itself?"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

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
    compression_ratio: float
    """UTF-8 bytes over their zlib size: below 1 for short texts, above 5 for loops."""
    longest_char_run: int
    longest_word_run: int
    char_run: tuple[int, int]
    """Where the longest run of one character stands."""
    num_words: int

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
    raw = text.encode("utf-8", errors="surrogatepass")
    # Blanks and line breaks draw boards and indent code: a run of them is no loop.
    runs = [found.span() for found in _CHAR_RUN.finditer(text) if not found[1].isspace()]
    longest = max(runs, key=lambda span: span[1] - span[0], default=(0, min(len(text), 1)))
    return Loops(
        repeated_ngram_frac=1 - len(set(grams)) / len(grams) if grams else 0.0,
        compression_ratio=len(raw) / len(zlib.compress(raw, 1)) if raw else 1.0,
        longest_char_run=longest[1] - longest[0],
        longest_word_run=max((sum(1 for _ in run) for _, run in groupby(tokens)), default=0),
        char_run=longest,
        num_words=len(tokens),
    )


def echo_share(now: str, before: str) -> float | None:
    """Share of a reasoning's n-grams of four words that stood in the one before.

    A shorter reasoning is one gram, found if its words stand in the other in one run. None if
    either has no words.
    """
    tokens, earlier = words(now), words(before)
    if not tokens or not earlier:
        return None
    size = min(len(tokens), GRAM)
    known = set(ngrams(earlier, size))
    grams = ngrams(tokens, size)
    return sum(gram in known for gram in grams) / len(grams)


def turn_pairs(episodes: Sequence[Trajectory]) -> list[tuple[Trajectory, Turn, Turn]]:
    """Every two consecutive turns of an episode, (trajectory, before, now)."""
    return [
        (episode, before, now)
        for episode in episodes
        for before, now in zip(episode.turns, episode.turns[1:], strict=False)
    ]


def repeated_action_shares(episodes: Sequence[Trajectory]) -> tuple[float, float]:
    """Shares of turns after the first, with actions, that repeat an earlier turn of their episode.

    First: the very actions of the turn before. Second: the same actions after the same
    observation, at any earlier turn. NaN without such turns.
    """
    repeats = loops_found = total = 0
    for episode in episodes:
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for turn in episode.turns:
            key = (turn.observation, turn.actions)
            if turn.actions and turn.index:
                total += 1
                repeats += turn.actions == episode.turns[turn.index - 1].actions
                loops_found += key in seen
            seen.add(key)
    if not total:
        return float("nan"), float("nan")
    return repeats / total, loops_found / total
