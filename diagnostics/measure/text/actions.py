"""Do the actions follow from the reasoning?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from echoscope.store.records import Trajectory, Turn

from .sample import MAX_CHARS, words

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
