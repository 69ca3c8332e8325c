"""What the actions say: their entropy, and whether they follow from the reasoning."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from echoscope.store.records import Trajectory, Turn

from .sample import words
from .siblings import chao_shen

MAX_MOVES, MAX_MOVE_WORDS, MAX_MOVE_CHARS = 64, 3, 60
"""Beyond them actions are free text (a search, a program), not names of moves."""


def action_entropies(episodes: Sequence[Trajectory]) -> tuple[float, float]:
    """Nats of a turn's first action: overall, and given the observation (Chao-Shen corrected).

    The second averages over observations met at least twice, weighted by how often; NaN if none
    is. Turns that executed nothing do not count. NaN without actions.
    """
    by_observation: dict[str, Counter[str]] = {}
    overall: Counter[str] = Counter()
    for turn in _acting_turns(episodes):
        by_observation.setdefault(turn.observation, Counter())[turn.actions[0]] += 1
        overall[turn.actions[0]] += 1
    repeated = [counts for counts in by_observation.values() if counts.total() >= 2]
    weight = sum(counts.total() for counts in repeated)
    given = sum((c.total() * chao_shen(c.values()) for c in repeated), 0.0)
    return chao_shen(overall.values()), given / weight if weight else math.nan


def named_moves(episodes: Sequence[Trajectory]) -> set[tuple[str, ...]]:
    """The words of every action executed; empty if actions are free text."""
    names = {action for turn in _acting_turns(episodes) for action in turn.actions}
    if any(len(name) > MAX_MOVE_CHARS for name in names):
        return set()
    moves = {words(name) for name in names}
    moves.discard(())
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
    episodes: Sequence[Trajectory], moves: Collection[tuple[str, ...]], *, max_chars: int
) -> Iterator[tuple[Trajectory, Turn, bool]]:
    """Turns whose reasoning names a move, and whether the last one named is the last executed.

    Only the last `max_chars` characters of a reasoning are read.
    """
    for episode in episodes:
        for turn in episode.turns:
            named = last_named(turn.reasoning[-max_chars:], moves) if turn.actions else None
            if named is not None:
                yield episode, turn, named == words(turn.actions[-1])


def _acting_turns(episodes: Sequence[Trajectory]) -> list[Turn]:
    return [turn for episode in episodes for turn in episode.turns if turn.actions]
