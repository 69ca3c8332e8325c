"""Does a response loop, does a turn echo the turn before, do actions follow from the reasoning?"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise

from echoscope.store.records import Trajectory, Turn

from .sample import MAX_CHARS, ngrams, words

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


MAX_MOVES, MAX_MOVE_WORDS, MAX_MOVE_CHARS = 64, 3, 60
"""Beyond them actions are free text (a search, a program), not names of moves."""


def named_moves(episodes: Sequence[Trajectory]) -> set[tuple[str, ...]]:
    """The words of every action executed; empty if actions are free text."""
    names = {action for episode in episodes for turn in episode.turns for action in turn.actions}
    if any(len(name) > MAX_MOVE_CHARS for name in names):
        return set()
    moves = {words(name) for name in names} - {()}
    is_free = len(moves) > MAX_MOVES or any(len(move) > MAX_MOVE_WORDS for move in moves)
    return set() if is_free else moves


def last_named(reasoning: str, moves: Collection[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The move whose name ends last in a reasoning (the longer of two); None if it names none."""
    tokens = words(reasoning)
    for end in range(len(tokens), 0, -1):
        for size in range(min(MAX_MOVE_WORDS, end), 0, -1):
            if tokens[end - size : end] in moves:
                return tokens[end - size : end]
    return None


def agreements(
    episodes: Sequence[Trajectory], moves: Collection[tuple[str, ...]]
) -> Iterator[tuple[Trajectory, Turn, bool]]:
    """Turns whose reasoning names a move, and whether the last one named is the last executed.

    Only the end of a long reasoning is read.
    """
    for episode in episodes:
        for turn in episode.turns:
            named = last_named(turn.reasoning[-MAX_CHARS:], moves) if turn.actions else None
            if named is not None:
                yield episode, turn, named == words(turn.actions[-1])
